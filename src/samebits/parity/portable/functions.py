"""The elementary functions over patterns spread through all of float32, the square root, and Philox's words."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch import Tensor

from samebits import native
from samebits.native.launch_numbers import forced
from samebits.numerics.elementary import FUNCTIONS
from samebits.numerics.elementary.philox import philox_uint32_native
from samebits.ops._cpu import run
from samebits.ops.roots import square_root
from samebits.parity.portable.bits import digest

PATTERNS: Final = 1 << 18
# Odd and near the golden ratio of 2^32: consecutive multiples spread evenly over all patterns.
STRIDE: Final = 0x9E3779B1
# Wherever one form ends and another begins, and the ends of the format.
BORDERS: Final = (0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000)
SEED, STREAM, WORDS = 0x0123456789ABCDEF, 7, 1001


def arguments(device: torch.device) -> Tensor:
    """Both signs of every border, then the spread patterns, as float32."""
    spread = np.arange(PATTERNS, dtype=np.uint32) * np.uint32(STRIDE)
    borders = np.array(BORDERS, np.uint32)
    patterns = np.concatenate([borders, borders | np.uint32(1 << 31), spread])
    return torch.from_numpy(patterns.view(np.float32)).to(device)


def functions(device: torch.device) -> dict[str, str]:
    """The digest of each function's values."""
    x = arguments(device)
    found = {name: digest(_apply(name, x)) for name in FUNCTIONS}
    # A negative number has no root.
    return found | {"sqrt": digest(square_root(x.abs())), "philox": digest(_words(device))}


def _apply(name: str, x: Tensor) -> Tensor:
    if x.device.type != "cpu":
        from samebits.parity.portable.triton_functions import apply

        return apply(name, x)
    y = torch.empty_like(x)
    run("elementary", "ippq", FUNCTIONS.index(name), x.data_ptr(), y.data_ptr(), x.numel())
    return y


def _words(device: torch.device) -> Tensor:
    if device.type != "cpu":
        from samebits.parity.portable.triton_functions import words

        return words(SEED, STREAM, WORDS, device)
    chosen = forced("instruction_set")
    assert chosen is None or chosen in native.instruction_sets()
    drawn = philox_uint32_native(SEED, STREAM, WORDS, instruction_set=None if chosen is None else str(chosen))
    return torch.from_numpy(drawn.view(np.int32))
