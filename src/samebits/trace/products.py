"""Whether a product is that of its arguments: a few elements computed again in float64, and why they may be others.

A kernel that was told n and k in each other's place writes a product of other numbers from the same memory; that
product is computed too. Knows tensors, and no kernel."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

# Elements of a result that are computed again.
SAMPLES: Final = 16
_ROUNDOFF: Final = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def wrong_product(a_MK: Tensor, b_KN: Tensor, out_MN: Tensor, before_MN: Tensor | None, bias_N: Tensor | None) -> str:
    """What is wrong with `out` = before + a b + bias; empty where the sampled elements are right."""
    (rows, depth), columns = a_MK.shape, b_KN.shape[1]
    if tuple(out_MN.shape) != (rows, columns):
        return f"the product of {rows}x{depth} and {depth}x{columns} has shape {tuple(out_MN.shape)}"
    if not out_MN.numel() or not depth:
        return ""
    row, column = _sampled(rows, columns, out_MN.device)
    left_SK, right_SK = a_MK[row].double(), b_KN[:, column].T.double()
    terms_SK = left_SK * right_SK
    wanted, size = terms_SK.sum(1), terms_SK.abs().sum(1)
    for added in (None if before_MN is None else before_MN[row, column], None if bias_N is None else bias_N[column]):
        if added is not None:
            wanted, size = wanted + added.double(), size + added.double().abs()
    found = out_MN[row, column].double()
    # A rounding for each term and for each addition, and the one into the format of the result.
    allowed = (depth + 3) * 2.0**-24 * size + _ROUNDOFF[out_MN.dtype] * wanted.abs() + (depth + 1) * 2.0**-126
    # What is no number is right where the arguments give none either; the contracts of values judge it.
    bad = ((found - wanted).abs() > allowed) | (found.isnan() & wanted.isfinite())
    if not bool(bad.any()):
        return ""
    place = int(bad.int().argmax())
    at = f"({int(row[place])}, {int(column[place])})"
    said = f"element {at} is {float(found[place]):.6g}, that of these arguments {float(wanted[place]):.6g}"
    return f"{said}; {_reason(a_MK, b_KN, out_MN, before_MN)}m={rows}, n={columns}, k={depth}"


def _sampled(rows: int, columns: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Elements at equal distances; the first among them."""
    flat = torch.arange(0, rows * columns, max(1, rows * columns // SAMPLES), device=device)[:SAMPLES]
    return flat // columns, flat % columns


def _reason(a_MK: Tensor, b_KN: Tensor, out_MN: Tensor, before_MN: Tensor | None) -> str:
    """Whether the first element is that of a product of n terms, read from where its strides lead."""
    depth, columns = b_KN.shape
    left, right = _along(a_MK, 1, columns), _along(b_KN, 0, columns)
    if depth == columns or left is None or right is None:
        return ""
    swapped = float((left * right).sum()) + (0.0 if before_MN is None else float(before_MN[0, 0]))
    scale = float((left * right).abs().sum()) + 2.0**-126
    near = abs(float(out_MN[0, 0]) - swapped) <= ((columns + 3) * 2.0**-24 + _ROUNDOFF[out_MN.dtype]) * scale
    return "it is the product with n and k swapped: " if near else ""


def _along(tensor: Tensor, axis: int, count: int) -> Tensor | None:
    """`count` numbers from the first element on along an axis, beyond its end too; None where memory ends before."""
    last = tensor.storage_offset() + (count - 1) * tensor.stride(axis)
    if last >= tensor.untyped_storage().nbytes() // tensor.element_size():
        return None
    return torch.as_strided(tensor, (count,), (tensor.stride(axis),)).double()
