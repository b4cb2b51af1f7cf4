"""What a schedule computes: for every range of elements the tree of combinations over ranks, and then the values.

The trees come from the schedule's rounds alone, so that they depend on the algorithm, the number of elements and the
number of ranks, never on who came first. Arithmetic is that of the tensor's dtype, rounded at every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from samebits.sim.schedule import Schedule

Combine = Callable[[Tensor, Tensor], Tensor]
Node = tuple[int, int]
"""Two values that are combined, the local one first: below W a rank's own, else W plus an earlier node's number."""


def _least(local: Tensor, received: Tensor) -> Tensor:
    """The local value unless the received one is strictly smaller: so a NaN survives only where it is local."""
    return torch.where(received < local, received, local)


def _greatest(local: Tensor, received: Tensor) -> Tensor:
    return torch.where(received > local, received, local)


OPERATORS: Final[dict[str, Combine]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": _least,
    "MAX": _greatest,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
# What gloo adds; it refuses the rest, fp8 among them.
DTYPES: Final = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int32, torch.int64}
)
_WHOLE: Final = frozenset({torch.uint8, torch.int8, torch.int32, torch.int64})


def operator_name(op: object) -> str:
    """The name of a reduce operator of torch.distributed."""
    kinds = (*OPERATORS, "PREMUL_SUM")
    for name in kinds:
        if op == getattr(dist.ReduceOp, name):
            return name
    raise ValueError(f"reduce operator is {op}; allowed: {', '.join(OPERATORS)}")


@dataclass(frozen=True, slots=True)
class Part:
    """A range of elements and the tree that yields them on every holder: nodes in order, the last is the result."""

    begin: int
    end: int
    nodes: tuple[Node, ...]


def trees_of(schedule: Schedule, holder: int = 0) -> tuple[Part, ...]:
    """How the elements that `holder` ends with are combined, range by range.

    Each rank's state is a tree for each range between two cuts; a round moves trees as it moves values."""
    rounds = list(schedule.rounds())
    cuts = sorted(
        {0, schedule.elements, *(int(edge) for one in rounds for side in (one.begin, one.end) for edge in side)}
    )
    at = {cut: place for place, cut in enumerate(cuts)}
    ranks, known = schedule.ranks, dict[Node, int]()
    state = [[rank] * (len(cuts) - 1) for rank in range(ranks)]
    for one in rounds:
        spans = [slice(at[int(begin)], at[int(end)]) for begin, end in zip(one.begin, one.end, strict=True)]
        sent = [state[int(src)][span] for src, span in zip(one.src, spans, strict=True)]
        for dst, span, trees in zip(one.dst, spans, sent, strict=True):
            mine = state[int(dst)]
            mine[span] = (
                [ranks + known.setdefault(pair, len(known)) for pair in zip(mine[span], trees, strict=True)]
                if one.reduce
                else trees
            )
    return _joined(cuts, state[holder], list(known), ranks)


def _joined(cuts: list[int], roots: list[int], nodes: list[Node], ranks: int) -> tuple[Part, ...]:
    """Neighbouring ranges of one tree as one."""
    parts: list[Part] = []
    last = -1
    for begin, end, root in zip(cuts, cuts[1:], roots, strict=False):
        if parts and root == last:
            parts[-1] = Part(parts[-1].begin, end, parts[-1].nodes)
        else:
            parts.append(Part(begin, end, _below(root, nodes, ranks)))
        last = root
    return tuple(parts)


def _below(root: int, nodes: list[Node], ranks: int) -> tuple[Node, ...]:
    """The nodes under a root, renumbered, children before parents."""
    order: dict[int, int] = {}
    listed: list[Node] = []

    def visit(tree: int) -> int:
        if tree < ranks:
            return tree
        if tree not in order:
            pair = nodes[tree - ranks]
            listed.append((visit(pair[0]), visit(pair[1])))
            order[tree] = ranks + len(listed) - 1
        return order[tree]

    visit(root)
    return tuple(listed)


Algorithm = Callable[[int, int, int], Schedule]


@lru_cache(maxsize=512)
def _plan(algorithm: Algorithm, ranks: int, elements: int, itemsize: int, holder: int) -> tuple[Part, ...]:
    return trees_of(algorithm(ranks, elements, itemsize), holder)


def reduced(inputs: Sequence[Tensor], op: str, algorithm: Algorithm, holder: int = 0) -> Tensor:
    """What `holder` ends with: the ranks' flat tensors combined as the algorithm's schedule says."""
    first = inputs[0]
    if first.is_complex():
        flat = reduced([torch.view_as_real(each).reshape(-1) for each in inputs], op, algorithm, holder)
        return torch.view_as_complex(flat.view(-1, 2))
    if first.dtype is torch.bool:
        return reduced([each.view(torch.uint8) for each in inputs], op, algorithm, holder).view(torch.bool)
    if first.dtype not in DTYPES or op not in OPERATORS or (op.startswith("B") and first.dtype not in _WHOLE):
        raise RuntimeError(f"sim: {op} of {first.dtype} is refused, as gloo refuses it")
    combine, ranks = OPERATORS[op], len(inputs)
    out = first.clone()
    for part in _plan(algorithm, ranks, first.numel(), first.element_size(), holder):
        values = [each[part.begin : part.end] for each in inputs]
        for local, received in part.nodes:
            values.append(combine(values[local], values[received]))
        out[part.begin : part.end] = values[-1] if part.nodes else values[holder]
    if op == "AVG" and ranks > 1:
        # torch's gloo divides in place, which torch refuses for whole numbers.
        out.div_(ranks)
    return out
