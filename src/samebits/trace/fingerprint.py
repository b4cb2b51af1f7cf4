"""Fingerprints of tensors by row and by column: small enough to keep at every step, and they name what differs.

A fingerprint of a row or column is an exact sum over integers, so no order of adding reaches it: two tensors of equal
bits have equal ones on any machine. Where one element differs, its row and its column do, and the rows' plain XOR is
the difference of the two bit patterns. Tensors of more dimensions count as matrices of their first axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Odd, so that multiplying by it loses nothing.
_SPREAD = 0x9E3779B97F4A7C15 - 2**64
_PATTERN = {4: torch.int32, 2: torch.int16, 8: torch.int64, 1: torch.uint8}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fingerprint:
    """Of one tensor."""

    shape: tuple[int, ...]
    dtype: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    xors: tuple[int, ...]
    """Of the bit patterns of each row."""

    def document(self) -> dict[str, Any]:
        """As JSON; read back by `of_document`."""
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            **{name: [f"{each:x}" for each in getattr(self, name)] for name in ("rows", "columns", "xors")},
        }

    @classmethod
    def of_document(cls, document: dict[str, Any]) -> Fingerprint:
        numbers = {name: tuple(int(each, 16) for each in document[name]) for name in ("rows", "columns", "xors")}
        shape = tuple(document["shape"])
        wanted = dict(zip(("rows", "columns", "xors"), _sizes(shape), strict=True))
        for name, size in wanted.items():
            if len(numbers[name]) != size:
                raise ValueError(f"a fingerprint of {shape} has {len(numbers[name])} {name}; allowed: {size}")
        return cls(shape=shape, dtype=document["dtype"], **numbers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parting:
    """Where two tensors differ first."""

    row: int
    column: int
    """Of the first element that differs in that row, where that is `exact`; else the first column that differs."""
    exact: bool
    alone: bool
    """No other element of that row differs."""
    columns: tuple[int, ...]
    """All that differ, in any row."""
    rows_differing: int
    xor: int
    """Of all differing patterns of the row: the flipped bits, where one element differs."""

    def element(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The index of the first element that differs, as far as it is known."""
        return (self.row, self.column) if len(shape) > 1 else (self.column,)


def fingerprint(tensor: Tensor) -> Fingerprint:
    """Of a tensor's bits, where it is."""
    flat = tensor.detach().contiguous()
    matrix = flat.reshape(flat.shape[0], flat.shape[1:].numel()) if flat.dim() > 1 else flat.reshape(1, flat.numel())
    patterns_RC = matrix.view(_PATTERN[matrix.element_size()]).to(torch.int64) & ((1 << 8 * matrix.element_size()) - 1)
    mixed_RC = _mixed(patterns_RC + 1)
    rows, columns = matrix.shape
    odd = _factors(max(rows, columns), tensor.device)
    return Fingerprint(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        rows=_unsigned((mixed_RC * odd[:columns]).sum(1)),
        columns=_unsigned((mixed_RC * odd[:rows, None]).sum(0)),
        xors=_unsigned(_xor(patterns_RC)),
    )


def _sizes(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """How many rows, columns and XORs a tensor of this shape has."""
    rows, columns = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))
    return rows, columns, rows


def parting(one: Fingerprint, other: Fingerprint) -> Parting | None:
    """Where they part; None: the same bits."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        raise ValueError(
            f"fingerprint: {one.dtype} {one.shape} against {other.dtype} {other.shape}; allowed: of the same kind"
        )
    rows = [row for row, pair in enumerate(zip(one.rows, other.rows, strict=True)) if pair[0] != pair[1]]
    columns = [column for column, pair in enumerate(zip(one.columns, other.columns, strict=True)) if pair[0] != pair[1]]
    if bool(rows) != bool(columns):
        raise ValueError(
            f"fingerprint: {len(rows)} rows differ and {len(columns)} columns; allowed: some of both or none of both"
        )
    if not rows:
        return None
    first = rows[0]
    # Where one row differs, every column is one of its own.
    single = columns[0] if len(columns) == 1 else None if len(rows) == 1 else _single(one, other, first, columns)
    return Parting(
        row=first,
        column=columns[0] if single is None else single,
        exact=single is not None or len(rows) == 1,
        alone=single is not None,
        columns=tuple(columns),
        rows_differing=len(rows),
        xor=one.xors[first] ^ other.xors[first],
    )


def _single(one: Fingerprint, other: Fingerprint, row: int, columns: list[int]) -> int | None:
    """The column of the only element of this row that differs, where it is the only one of its column, too: then both
    their sums differ by the same number, each times the factor of its place."""
    odd = _factors(max(row, *columns) + 1).tolist()
    of_row = other.rows[row] - one.rows[row]
    for column in columns:
        of_column = other.columns[column] - one.columns[column]
        if (of_row * odd[row] - of_column * odd[column]) % 2**64 == 0:
            return column
    return None


def _factors(count: int, device: torch.device | None = None) -> Tensor:
    """What the elements of a row, or of a column, are multiplied by: an odd number for each place."""
    return _mixed(torch.arange(count, dtype=torch.int64, device=device)) | 1


def _mixed(numbers: Tensor) -> Tensor:
    """Numbers of 64 bits, scattered: neighbours have nothing in common."""
    mixed = numbers * _SPREAD
    mixed = mixed ^ (mixed >> 29)
    mixed = mixed * _SPREAD
    return mixed ^ (mixed >> 32)


def _xor(patterns_RC: Tensor) -> Tensor:
    """Over each row, by halves."""
    while patterns_RC.shape[1] > 1:
        half = -(-patterns_RC.shape[1] // 2)
        left, right = patterns_RC[:, :half].clone(), patterns_RC[:, half:]
        left[:, : right.shape[1]] ^= right
        patterns_RC = left
    return patterns_RC.reshape(-1) if patterns_RC.shape[1] else patterns_RC.new_zeros(len(patterns_RC))


def _unsigned(numbers: Tensor) -> tuple[int, ...]:
    return tuple(each & (2**64 - 1) for each in numbers.tolist())
