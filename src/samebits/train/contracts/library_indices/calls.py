"""Calls that reach every function of the C++ library: operators forward and backward, and functions beside them.

Sizes are those of the operators' own contracts, and counts around the widths of vectors."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import numpy as np
import torch

from samebits import native
from samebits.model.contracts.operators import Asked, declared_operators, results
from samebits.native.launch_numbers import forced
from samebits.native.sources import kernel_sources
from samebits.numerics import elementary
from samebits.numerics.adder import fused_chain
from samebits.numerics.elementary.philox import philox_uint32_native
from samebits.ops.logprob.cpu_kernel import logit_gradient_in_place

FORMATS: Final = ("float32", "bfloat16", "float16")
SIZES: Final = 3
"""Shapes of each operator's contract, the smallest first."""
COUNTS: Final = (1, 3, 4, 5, 15, 16, 17, 31, 33, 63, 65, 1023, 4099)
_EXPORTED: Final = re.compile(r"^SAMEBITS_EXPORT int32_t SAMEBITS_NAME\((\w+)\)", re.MULTILINE)
Named = tuple[str, Callable[[], object]]


def functions() -> list[str]:
    """Every function that is compiled for each instruction set, read from the sources."""
    return sorted(name for file in kernel_sources() for name in _EXPORTED.findall(file.read_text()))


def _instruction_set() -> str | None:
    found = forced("instruction_set")
    return None if found is None else str(found)


def _operators() -> Iterator[Named]:
    for declared in declared_operators():
        for size in range(SIZES):
            for format in FORMATS:
                asked = Asked(size=size, recipe="normal", format=format, seed=1)
                yield f"{declared.name} {format} {size}", partial(results, declared, asked)


def _elementary() -> Iterator[Named]:
    for count in COUNTS:
        x = np.linspace(-3, 3, count, dtype=np.float32)
        for name in elementary.FUNCTIONS:
            yield f"{name} {count}", partial(elementary.elementary, name, x, _instruction_set())
        yield f"philox {count}", partial(philox_uint32_native, 7, 1, count, _instruction_set())
        yield f"worst {count}", partial(elementary.worst_ulp, "exp", 0x3F800000, count, _instruction_set())
        yield f"quick forms {count}", partial(_quick, count)


def _quick(count: int) -> None:
    """In whole vectors, as the library asks."""
    differing = ctypes.c_int64()
    arguments = 0, 0x3F800000, -(-count // 64) * 64, ctypes.addressof(differing)
    native.call("elementary_quick_differs", "iuqp", *arguments, instruction_set=_instruction_set())


def _conversions() -> Iterator[Named]:
    for count in COUNTS:
        for kind in (1, 2):
            for by_vectors in (0, 1):
                for back in (False, True):
                    numbers = kind, by_vectors, back, count
                    yield f"convert {numbers}", partial(_convert, *numbers)


def _convert(kind: int, by_vectors: int, back: bool, count: int) -> None:
    half, single = np.zeros(count, np.uint16), np.zeros(count, np.float32)
    kinds, given, out = ((0, kind), single, half) if back else ((kind, 0), half, single)
    addresses = given.ctypes.data, out.ctypes.data
    native.call("convert", "iiippq", *kinds, by_vectors, *addresses, count, instruction_set=_instruction_set())


def _others() -> Iterator[Named]:
    for m, k, n in ((1, 1, 1), (3, 17, 5), (2, 64, 33)):
        a, b = (torch.ones(*shape, dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
        yield f"fused_chain {m, k, n}", partial(fused_chain, a, b, instruction_set=_instruction_set())
        for format in FORMATS:
            yield f"logits {m, n} {format}", partial(_in_place, m, n, format)


def _in_place(rows: int, vocabulary: int, format: str) -> None:
    statistics = torch.zeros(rows), torch.zeros(rows)
    logits, ids = torch.zeros(rows, vocabulary), torch.zeros(rows, dtype=torch.int64)
    logit_gradient_in_place(statistics[0], logits, ids, statistics[1], -100, getattr(torch, format))


GROUPS: Final[Mapping[str, Callable[[], Iterator[Named]]]] = MappingProxyType(
    {"operators": _operators, "elementary": _elementary, "conversions": _conversions, "others": _others}
)
