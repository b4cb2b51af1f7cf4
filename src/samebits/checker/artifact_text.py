"""What of a compiled Triton kernel decides its order and its rounding, read from its TTGIR and its PTX.

Knows no component and compiles nothing. What it cannot place it keeps as text, so that two artifacts are rather taken
for different than for equal."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

FLOATS: Final = r"(?:f16x2|bf16x2|f16|bf16|f32|f64|tf32)"
REDUCE: Final = re.compile(
    r'"tt\.reduce"\([^)]*\) <\{axis = (\d+) : i32[^}]*\}> \(\{(.*?)tt\.reduce\.return.*?\}\)[^:]*: \((.*?)\) ->',
    re.DOTALL,
)
TENSOR: Final = re.compile(r"tensor<([\dx]+)x(\w+), (#[\w.]+(?:<\{.*?\}>)?)>")
ALIAS: Final = re.compile(r"^(#\w+) = (#ttg.*)$", re.MULTILINE)
ATOMIC: Final = re.compile(rf"\b((?:red|atom)\.[\w.:]*\.{FLOATS})\b")
APPROXIMATE: Final = re.compile(r"\b(\w+\.(?:approx|full)[\w.]*)")
ARITHMETIC: Final = re.compile(
    rf"\b((?:add|sub|mul|fma|mad|div|rcp|sqrt|rsqrt|ex2|lg2|sin|cos|tanh|cvt)\.[\w.]*{FLOATS})\b"
)
MATRIX: Final = re.compile(r"\b((?:wgmma\.mma_async|mma)\.sync\.[\w.]*)")


@dataclass(frozen=True, slots=True)
class Essence:
    """Everything of an artifact that can change a bit, as far as it is known."""

    reductions: tuple[str, ...]
    """Sums over more than two elements come with the layout that decides their order."""
    dots: tuple[str, ...]
    arithmetic: tuple[str, ...]
    fusion: bool
    atomics: tuple[str, ...]
    approximations: tuple[str, ...]

    @staticmethod
    def of(facts: Mapping[str, Any]) -> Essence:
        """What was written as JSON, where a tuple is a list."""
        fields: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in facts.items()}
        return Essence(**fields)

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()


def essence(ttgir: str, ptx: str, *, fusion: bool) -> Essence:
    # Comments and source locations say nothing about bits.
    code = "\n".join(line.split("//")[0] for line in ptx.splitlines() if not line.lstrip().startswith("."))
    return Essence(
        reductions=tuple(sorted(set(reductions(ttgir)))),
        dots=tuple(sorted(set(dots(ttgir)))),
        arithmetic=tuple(sorted({_unpacked(each) for each in ARITHMETIC.findall(code)} | set(matrix_units(code)))),
        fusion=fusion,
        atomics=tuple(sorted(set(ATOMIC.findall(code)))),
        approximations=tuple(sorted(set(APPROXIMATE.findall(code)))),
    )


def reductions(ttgir: str) -> list[str]:
    """One line a reduction. Two elements, or a maximum, have no order that a layout could change."""
    layouts = dict(ALIAS.findall(ttgir))
    found = []
    for axis, region, operands in REDUCE.findall(ttgir):
        combiner = " ".join(re.findall(r"= (arith\.\w+|\w+\.\w+)", region))
        tensors = TENSOR.findall(operands)
        if not tensors:
            found.append(f"{combiner}: {operands}")
            continue
        shape, kind, layout = tensors[0]
        length = int(shape.split("x")[int(axis)])
        orderless = length == 2 or combiner in ("arith.maxnumf", "arith.minnumf", "arith.maxsi", "arith.minsi")
        found.append(
            f"{combiner} {kind}"
            if orderless
            else f"{combiner} {shape}x{kind} axis {axis} {layouts.get(layout, layout)}"
        )
    return found


def dots(ttgir: str) -> list[str]:
    """Operand types and precision. The chain along k is the same for every tile (see samebits.numerics.adder)."""
    found = []
    for line in re.findall(r"[^\n]*(?:tt\.dot |warp_group_dot )[^\n]*", ttgir):
        precision = re.search(r"inputPrecision = (\w+)", line)
        kinds = re.findall(r"(?:tensor|memdesc)<[\dx]*x(\w+)[,>]", line)
        found.append(f"dot {' '.join(kinds[:3])} {precision.group(1) if precision else 'default'}")
    return found


def matrix_units(code: str) -> list[str]:
    """Instructions of the matrix unit by what they add at a time: the tile shape drops out, the depth does not."""
    found = []
    for name in MATRIX.findall(code):
        depth = re.search(r"m\d+n\d+k(\d+)", name)
        found.append(f"matrix k{depth.group(1) if depth else '?'} {' '.join(sorted(set(re.findall(FLOATS, name))))}")
    return found


def _unpacked(instruction: str) -> str:
    """Two elements in one register round as each of them alone does."""
    return instruction.replace("bf16x2", "bf16").replace("f16x2", "f16")
