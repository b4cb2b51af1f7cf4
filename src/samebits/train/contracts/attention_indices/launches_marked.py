"""Launches of attention's tiles that are done again with care, behind the kernels for Hopper.

What a launch hands over is written here as the functions beside the kernels have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from samebits.ops.attention.triton_marked import MARKED, MARKS, attention_dk_dv_marked, attention_dq_marked
from samebits.ops.attention.triton_marked_forward import attention_forward_marked
from samebits.train.contracts.attention_indices.handed import (
    LENGTHS_BELOW,
    RULES,
    SEQUENCES_BELOW,
    SUMMARIES,
    Table,
    head_sizes,
    heads,
    ruled,
    side_by_side,
    whole,
)
from samebits.train.contracts.attention_indices.launches_backward import statistics_of
from samebits.train.contracts.attention_indices.launches_forward import SPLIT
from samebits.train.contracts.attention_indices.machine import OneWay
from samebits.train.contracts.launch_indices.values import Anything


def _marked(kernel: Any, keys: bool, forward: bool) -> Callable[[OneWay], None]:
    """triton_hopper.py and triton_hopper_backward.py: a mark for 64 rows of a line, a head of a sequence. Heads lie
    side by side, a multiple of 8 wide."""

    def launch(m: OneWay) -> None:
        m.summaries = SUMMARIES
        rule = m.one_of(*RULES)
        (sequences,) = m.sizes("sequences", below=SEQUENCES_BELOW)
        tokens, key_tokens = m.sizes("tokens key_tokens", below=2**31)
        longest, longest_key = m.sizes("longest longest_key", below=LENGTHS_BELOW)
        every, key_heads, group = heads(m, as_product=keys)
        head, _ = head_sizes(m, False)
        lines = key_heads if keys else every
        # Tiles are whole numbers of marks, so that a line may have more marks than its rows need.
        (line_marks,) = m.sizes("line_marks", below=LENGTHS_BELOW // MARKED.value)
        (marks,) = m.sizes("marks")
        m.assume(marks == sequences.to(64) * lines * line_marks)
        m.limits += [(line_marks.term, sequences.to(64) * lines, 1), (lines.term, sequences.to(64), every)]
        m.factors += [(lines.term, group)] if keys else []
        programs = m.cdiv(marks, MARKS.value)
        operands: dict[str, Any] = {}
        sizes = {"q": (tokens, every), "k": (key_tokens, key_heads), "v": (key_tokens, key_heads)}
        outputs = {"dk": sizes["k"], "dv": sizes["k"]} if keys else {"out" if forward else "dq": sizes["q"]}
        for name, (long, wide) in {**sizes, **({} if forward else {"do": sizes["q"]})}.items():
            operands |= side_by_side(m, name, long, wide, head)
        numbers = {name: each for name, each in ruled(m, (*rule[:2], False)).items() if not name.startswith("cap")}
        del numbers["SOFTCAP"]
        m.call(
            kernel,
            program=m.unknown(0, programs),
            **operands,
            marks_ptr=whole(m, "marks", marks),
            **{f"{name}_ptr": whole(m, name, *size, head) for name, size in outputs.items()},
            **Table(longest, tokens).buffers("q", sequences),
            **Table(longest_key, key_tokens).buffers("k", sequences),
            heads=every,
            marks=marks,
            line_marks=line_marks,
            **numbers,
            **({"lse_ptr": whole(m, "lse", tokens, every), "SPLIT": SPLIT} if forward else {"scale": Anything(m)}),
            **({} if forward else statistics_of(m, sequences, every, longest)),
            HEAD=head,
            GROUP=group,
        )

    return launch


KERNELS: Final[dict[str, Callable[[OneWay], None]]] = {
    "attention_forward_marked": _marked(attention_forward_marked, False, True),
    "attention_dq_marked": _marked(attention_dq_marked, False, False),
    "attention_dk_dv_marked": _marked(attention_dk_dv_marked, True, False),
}
