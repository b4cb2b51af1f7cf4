"""The one way a Triton kernel is launched: every option that could touch bits given explicitly, counted, and quick.

Knows no operator. The counters let a test say "one compiled kernel per row of the launch table, and it did run"."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

_launches: Counter[str] = Counter()
_kernels: dict[str, Any] = {}
_compiled: dict[tuple[Any, ...], Any] = {}


@dataclass(slots=True)
class Described:
    """A matrix as the tensor memory accelerator sees it. The caller has checked alignment and strides."""

    base: Tensor
    shape: list[int]
    strides: list[int]
    block_shape: list[int]
    padding: str = "zero"


def run(kernel: Any, programs: int, arguments: tuple[Any, ...], *, warps: int, stages: int, **constants: Any) -> None:
    """Launch `kernel` on a line of `programs` programs. Constants stand after the arguments in its signature.

    Contraction is off (a product and a sum stay two roundings unless the source says fma) and one program is one
    thread block, whatever the defaults of the installed Triton are. Kernels specialise on no number and no alignment,
    so dtypes and constants name the compiled one; finding it here costs a tenth of Triton's own way to it."""
    name = kernel.__name__
    _launches[name] += 1
    device = torch.cuda.current_device()
    key = (name, device, warps, stages, *map(_kind, arguments), *constants.values())
    compiled = _compiled.get(key)
    if compiled is None or triton.knobs.runtime.launch_enter_hook.calls:  # a profiler wants to be told by Triton
        _kernels[name] = kernel
        given = [TensorDescriptor(**_fields(each)) if isinstance(each, Described) else each for each in arguments]
        _compiled[key] = kernel[(programs,)](
            *given, **constants, num_warps=warps, num_stages=stages, num_ctas=1, enable_fp_fusion=False
        )
        return
    stream = torch._C._cuda_getCurrentRawStream(device)
    compiled.run(
        programs,
        1,
        1,
        stream,
        compiled.function,
        compiled.packed_metadata,
        None,
        None,
        None,
        *arguments,
        *constants.values(),
    )


def _fields(described: Described) -> dict[str, Any]:
    return {name: getattr(described, name) for name in Described.__slots__}


def _kind(argument: Any) -> Any:
    """What of an argument a compiled kernel depends on."""
    if isinstance(argument, Described):
        return argument.base.dtype
    return argument.dtype if isinstance(argument, Tensor) else type(argument)


def launch_count(name: str | None = None) -> int:
    """Launches so far in this process, of one kernel or of all."""
    return sum(_launches.values()) if name is None else _launches[name]


def compiled_kernels(name: str | None = None) -> list[Any]:
    """The compiled kernels (with their `asm`) that launches so far have asked for, of one kernel or of all."""
    kernels = list(_kernels.values()) if name is None else [_kernels[name]] if name in _kernels else []
    return [compiled for kernel in kernels for cache in kernel.device_caches.values() for compiled in cache[0].values()]


def compiled_count(name: str | None = None) -> int:
    """How many kernels were compiled for the launches so far, of one kernel or of all."""
    return len(compiled_kernels(name))
