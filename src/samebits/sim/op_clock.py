"""Time for kernels of ranks that really run: each torch operator adds its roofline cost to the clock of its rank.

Entered by every rank (`Settings(around=counted(device))`). FLOPs are those that torch counts for an operator, bytes are
those of its tensors; operators that only look at memory differently are free. Values are not touched, and do not enter:
times depend on shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import flop_registry

from samebits.sim.decoder_cost import Kernel
from samebits.sim.gpus import Device
from samebits.sim.rank import current

# What moves messages has clocks of its own.
COLLECTIVES: Final = ("c10d", "_c10d_functional", "_dtensor")
ATTENTION: Final = "attention"


class OpClock(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Advances the clock of the rank that runs, operator by operator."""

    def __init__(self, device: Device, dtype: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.dtype = device, dtype

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        rank = current()
        if rank is not None and not func.is_view and func.namespace not in COLLECTIVES:
            kernel = kernel_of(func, args, kwargs or {}, out)
            rank.clock += rank.slowness * kernel.seconds(self.device, self.dtype)
        return out


def kernel_of(func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> Kernel:
    """One operator as a kernel: its FLOPs, and the bytes of what it reads and writes."""
    count = flop_registry.get(func.overloadpacket)
    flops = 0 if count is None else count(*args, **kwargs, out_val=out)
    name = str(func.overloadpacket)
    return Kernel(name, float(flops), float(sum(_bytes((args, kwargs, out)))), ATTENTION in name)


def _bytes(values: Any) -> Iterator[int]:
    return (each.numel() * each.element_size() for each in tree_iter(values) if isinstance(each, Tensor))


def counted(device: Device, dtype: str = "float32") -> Callable[[int], AbstractContextManager[object]]:
    """What every rank enters; `dtype`: at which of the device's peaks products run."""
    if dtype not in device.flops:
        raise ValueError(f"{device.name}: dtype is {dtype!r}; allowed: {', '.join(device.flops)}")
    return lambda rank: OpClock(device, dtype)
