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

from samebits.ops._triton.repeated import Bound, Repeated

_launches: Counter[str] = Counter()
_kernels: dict[str, Any] = {}
_compiled: dict[tuple[Any, ...], Repeated] = {}


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
    key = _key(name, device, warps, stages, arguments, constants)
    compiled = _compiled.get(key)
    if compiled is None or observed():
        _kernels[name] = kernel
        given = [TensorDescriptor(**_fields(each)) if isinstance(each, Described) else each for each in arguments]
        made = kernel[(programs,)](
            *given, **constants, num_warps=warps, num_stages=stages, num_ctas=1, enable_fp_fusion=False
        )
        if made is not None:  # a tracer in Triton's place compiles nothing
            _compiled[key] = Repeated(made, tuple(constants.values()))
    else:
        compiled(programs, torch._C._cuda_getCurrentRawStream(device), arguments)


def bind(
    kernel: Any, programs: int, arguments: tuple[Any, ...], *, warps: int, stages: int, **constants: Any
) -> Bound | None:
    """A launch that `run` made, for `run_again`; None where nothing was compiled for it."""
    compiled = _compiled.get(_key(kernel.__name__, torch.cuda.current_device(), warps, stages, arguments, constants))
    return None if compiled is None else compiled.bound(programs, arguments)


def run_again(kernel: Any, bound: Bound, device: int, *addresses: int) -> None:
    """A bound launch with its tensors at these addresses, on the current stream of the current device."""
    _launches[kernel.__name__] += 1
    bound(torch._C._cuda_getCurrentRawStream(device), *addresses)


def observed() -> bool:
    """Whether a profiler wants to be told of launches by Triton."""
    return bool(triton.knobs.runtime.launch_enter_hook.calls)


def _fields(described: Described) -> dict[str, Any]:
    return {name: getattr(described, name) for name in Described.__slots__}


def _key(
    name: str, device: int, warps: int, stages: int, arguments: tuple[Any, ...], constants: dict[str, Any]
) -> tuple[Any, ...]:
    """What names a compiled kernel: of an argument, its dtype or the kind of number that it is."""
    kinds = [each.dtype if isinstance(each, Tensor) else _kind(each) for each in arguments]
    return (name, device, warps, stages, *kinds, *constants.values())


def _kind(argument: Any) -> Any:
    return argument.base.dtype if isinstance(argument, Described) else type(argument)


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
