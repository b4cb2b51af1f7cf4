"""AdamW on the CPU: hands a table of pointers to the C++ kernel beside this file. Tensors come contiguous."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from torch import Tensor

from samebits.ops._cpu import FORMATS, run
from samebits.ops.adamw.reference import Numbers


def update(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    masters: Sequence[Tensor],
    numbers: Numbers,
) -> None:
    """One step of every tensor, in place, in one call."""
    table = array("q")
    for index, param in enumerate(params):
        master = masters[index].data_ptr() if masters else 0
        table.extend(
            (
                param.numel(),
                FORMATS[param.dtype],
                FORMATS[grads[index].dtype],
                param.data_ptr(),
                grads[index].data_ptr(),
                exp_avgs[index].data_ptr(),
                exp_avg_sqs[index].data_ptr(),
                master,
            )
        )
    run("adamw", "qpffffffff", len(params), table.buffer_info()[0], *numbers.values)
