"""How a kernel of this folder is launched: as ops/_triton/launch.py does it, and programmatically.

For captured passes alone: what the host takes for a launch does not matter there."""

from __future__ import annotations

from typing import Any


def run(kernel: Any, programs: int, arguments: tuple[Any, ...], *, warps: int, **constants: Any) -> None:
    """Launch `kernel` on a line of `programs` programs; constants, and options of the compiler, by name.

    It may begin before the kernel before it has ended: Triton's launcher sets the attribute
    (CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) by the option `launch_pdl`, and a stream that is captured
    makes an edge of that kind of it."""
    kernel[(programs,)](*arguments, **constants, num_warps=warps, num_ctas=1, enable_fp_fusion=False, launch_pdl=True)
