"""Launches of attention by Triton, backward: row sums, then two passes that own what they write.

One pass walks the keys for a tile of queries (triton_dq.py), the other the queries for a tile of keys
(triton_dk_dv.py). Weights are recomputed from the saved log-sum-exp: memory grows with the tokens, not with their
square."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from samebits.ops._triton.device import on_device
from samebits.ops._triton.forced import forced_launch
from samebits.ops._triton.launch import Described, run
from samebits.ops._triton.sizes import cdiv, next_power_of_2
from samebits.ops.attention import triton_hopper_backward
from samebits.ops.attention.forms import Rule, Sequences
from samebits.ops.attention.triton_blocks import aligned, describable, describe
from samebits.ops.attention.triton_delta import row_sums
from samebits.ops.attention.triton_dk_dv import attention_dk_dv
from samebits.ops.attention.triton_dq import attention_dq


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardLaunch:
    """Decides speed, never bits. Tiles are multiples of 16, the width of the tensor core's fused addition."""

    queries: int = 64
    keys: int = 64
    described: bool = True
    specialised: bool = True
    """By the kernels in triton_hopper_backward.py, whatever the tiles, where they can take what is asked and blocks may
    come through the tensor memory accelerator: for many queries."""
    warps: int = 4
    stages: int = 2


DQ_LAUNCH: Final = BackwardLaunch(queries=128, keys=64, warps=8, stages=3)
DK_DV_LAUNCH: Final = BackwardLaunch(queries=64, keys=64, warps=4, stages=2)
# Both kernels, for heads that leave shared memory for a third stage.
NARROW_HEAD: Final = BackwardLaunch(queries=64, keys=64, warps=4, stages=3)
WIDE_HEAD: Final = BackwardLaunch(queries=64, keys=64, warps=8, stages=1)
FLOAT32: Final = BackwardLaunch(queries=16, keys=16, described=False, warps=4, stages=1)
# Small tiles, so that little is computed again, and one kernel for whatever launch the first pass had.
CAREFUL_LAUNCH: Final = FLOAT32


def choose(q: Tensor, usual: BackwardLaunch) -> BackwardLaunch:
    """The launch for these sizes: narrow tiles where registers or shared memory are short."""
    if q.dtype == torch.float32:
        return FLOAT32
    head = q.shape[-1]
    return NARROW_HEAD if head <= 64 else usual if head <= 128 else WIDE_HEAD


def backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    sequences: Sequences,
    rule: Rule,
    *,
    dq_launch: BackwardLaunch | None = None,
    dk_dv_launch: BackwardLaunch | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped like q, k, v and contiguous; rows of no sequence are 0."""
    heads, head = q.shape[1:]
    asked = forced_launch(BackwardLaunch)
    given = dq_launch or dk_dv_launch or asked
    specialised = given.specialised and given.described if given else triton_hopper_backward.pays(q, sequences)
    if specialised and triton_hopper_backward.takes(do, q, k, v, sequences, rule):
        return triton_hopper_backward.backward(do, q, k, v, out, lse, sequences, rule)
    # Lines of a multiple of 16 bytes, as the tensor memory accelerator wants them.
    pitch, padded = cdiv(sequences.longest_query, 4) * 4, max(16, next_power_of_2(head))
    statistics = torch.empty(sequences.count * 2 * heads, pitch, dtype=torch.float32, device=q.device)
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    strides = (*q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *do.stride()[:2])
    table = (sequences.q_start, sequences.q_length, sequences.k_start, sequences.k_length)
    sizes = {"HEAD": head, "PADDED": padded, "GROUP": heads // k.shape[1]}
    flags = {"CAUSAL": rule.causal, "WINDOWED": rule.window > 0, "SOFTCAP": rule.softcap > 0}
    precision = {"ALIGNED": aligned(q, k, v, do), "EXACT": q.dtype == torch.float32}
    factors = (rule.exponent_factor, rule.gradient_factor, rule.score_factor, rule.cap)

    def launch(
        kernel: Any,
        launch: BackwardLaunch,
        lines: int,
        length: int,
        axis: str,
        outputs: tuple[Tensor, ...],
        described: tuple[Described | None, ...],
    ) -> None:
        """The kernel over tiles of an axis ("queries" or "keys"); once more, with care, where it was not finite."""
        first_tile = getattr(launch, axis)
        first_tiles = cdiv(length, first_tile)
        wrong = torch.empty(sequences.count * lines * first_tiles, dtype=torch.int32, device=q.device)
        for careful, numbers in ((False, launch), (True, CAREFUL_LAUNCH)):
            given = (None,) * len(described) if careful else described
            tiles = cdiv(length, getattr(numbers, axis))
            rest = (*table, *strides, pitch, heads, tiles, first_tile, first_tiles, rule.window, *factors)
            run(
                kernel,
                sequences.count * lines * tiles,
                (q, k, v, do, statistics, wrong, *outputs, *given, *rest),
                warps=numbers.warps,
                stages=numbers.stages,
                **sizes,
                QUERIES=numbers.queries,
                KEYS=numbers.keys,
                **flags,
                DESCRIBED=given[0] is not None,
                CAREFUL=careful,
                **precision,
            )

    with on_device(q):
        row_sums(do, out, lse, sequences, statistics)
        first = dq_launch or asked or choose(q, DQ_LAUNCH)
        by_tiles = first.described and describable(k, v)
        keys = (describe(k, first.keys), describe(v, first.keys)) if by_tiles else (None, None)
        launch(attention_dq, first, heads, sequences.longest_query, "queries", (dq,), keys)
        second = dk_dv_launch or asked or choose(q, DK_DV_LAUNCH)
        queries: tuple[Described | None, ...] = (None, None, None)
        if second.described and describable(q, do):
            lines = Described(statistics, [len(statistics), pitch], [pitch, 1], [1, second.queries])
            queries = (describe(q, second.queries), describe(do, second.queries), lines)
        launch(attention_dk_dv, second, k.shape[1], sequences.longest_key, "keys", (dk, dv), queries)
    return dq, dk, dv
