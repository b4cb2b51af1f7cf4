"""The norm of gradients that lie on many ranks, with the bits of `grad_norm` on one.

Each piece of the sum lies whole on one rank; the pieces' sums go to all ranks, which add them in the declared order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import torch
from torch import Tensor

from samebits.ops.arguments import choose_backend
from samebits.ops.backends import kernel_module
from samebits.ops.grad_norm.reference import LANES, PIECE
from samebits.ops.roots import square_root
from samebits.parallel.collectives import gather
from samebits.parallel.layout import Ownership
from samebits.parallel.world import Group

NORM: Final = "sums of squares"


def piece_sums(group: Group, ownership: Ownership, gradients: Mapping[str, Tensor]) -> Tensor:
    """float32: the sum of squares of every piece of every tensor, in order. `gradients`: this rank's ranges."""
    first = next(iter(gradients.values()))
    cuts = ownership.cuts()
    sums = torch.zeros(cuts[-1], dtype=torch.float32, device=first.device)
    # Of one piece alone, the sum over pieces adds its sum to zeros.
    kernel = kernel_module("samebits.ops.grad_norm", "grad_norm", choose_backend("norms", first, None), first.device)
    own = [
        kernel.square_sum([piece])
        for gradient in gradients.values()
        if gradient.numel()
        for piece in torch.split(gradient.reshape(-1), PIECE)
    ]
    if own:
        sums[cuts[group.place] : cuts[group.place + 1]] = torch.stack(own)
    return gather(group, sums, cuts, NORM)


def norm_of(sums: Tensor, ownership: Ownership, names: Collection[str] | None = None) -> Tensor:
    """The norm of some of the tensors together, of all unless named, from the sums of their pieces."""
    if names is not None:
        sums = sums[[number for number, (name, _) in enumerate(ownership.pieces()) if name in names]]
    lanes = sums.new_zeros(LANES)
    for part in torch.split(sums, LANES):
        lanes[: len(part)] += part
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return square_root(lanes[0])
