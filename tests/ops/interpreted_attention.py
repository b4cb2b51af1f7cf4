"""Attention's Triton kernels run by Triton's interpreter, with the arithmetic of the declared order, beside others.

Most cases have splits of two blocks, in the kernels' launch and in the reference, so that few keys make many splits;
one has the real ones, beside the CPU. Run with TRITON_INTERPRET=1, in a process of its own. Prints a line of JSON: by
case, the first difference or null."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from samebits.checker.tracing.comparing import without_gpu
from samebits.numerics.bits import compare
from samebits.numerics.fma import fma32
from samebits.numerics.recipes import make
from samebits.ops.attention import cpu_kernel, reference, triton_backward, triton_kernel
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, Rule, Sequences
from samebits.ops.attention.triton_kernel import Launch

HEADS, KEY_HEADS, SIZE = 2, 1, 8
WALKED = Launch(tile=16, packed=True, described=False, stages=1)
SHARED = Launch(tile=16, packed=True, described=False, shared=True, stages=1)
SMALL = 2 * BLOCK_KEYS
# Queries and keys of every sequence: a border of splits in the tile; other lengths beside it, and no key at all.
PACK = ((3, 4 * SMALL + 1),)
RAGGED = ((1, 5), (2, 2 * SMALL + 70), (1, 0), (2, SMALL))
CAUSAL = Rule(causal=True, window=0, scale=0.3, softcap=0.0)
WINDOWED = Rule(causal=True, window=SMALL + 20, scale=0.3, softcap=0.0)
FULL = Rule(causal=False, window=0, scale=0.3, softcap=5.0)


def fused(_: Any, a: Any, b: Any, c: Any) -> Any:
    return interpreter.TensorHandle(fma32(a.data, b.data, c.data), c.dtype.scalar)


def dot(_: Any, a: Any, b: Any, total: Any, *__: Any) -> Any:
    """A chain of fused multiply-adds, as float32 is multiplied on a GPU."""
    sums = total.data
    for step in range(a.data.shape[1]):
        sums = fma32(a.data[:, step, None], b.data[None, step], sums)
    return interpreter.TensorHandle(sums, total.dtype.scalar)


def install() -> None:
    """The order's own products and sums; patches once for the process what the interpreter patches at every call."""
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter.InterpreterBuilder.create_fma = fused
    patch_tensor = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        """numpy makes no number of an array of one element; the interpreter's scalars are such arrays."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.reshape(-1)[0]))
        scope.set_attr(tensor, "__bool__", lambda self: self.type.is_block() or bool(self.handle.data.reshape(-1)[0]))

    interpreter._patch_lang_tensor = patched
    scope = interpreter._LangPatchScope()
    for language in (tl, tl.core):
        interpreter._patch_builtin(language, interpreter.interpreter_builder, scope)
        interpreter._patch_builtin(language.tensor, interpreter.interpreter_builder, scope)
        patched(language.tensor, scope)
        interpreter._patch_lang_core(language, scope)
    interpreter._patch_builtin(tl.math, interpreter.interpreter_builder, scope)
    interpreter.InterpretedFunction.__call__ = lambda self, *given, **options: self.rewrite()(*given, **options)


def tensors(pack: tuple[tuple[int, int], ...], recipe: str) -> tuple[list[Tensor], dict[str, Any]]:
    q_length, k_length = (torch.tensor([pair[side] for pair in pack]) for side in (0, 1))
    q_start, k_start = (torch.cumsum(lengths, 0) - lengths for lengths in (q_length, k_length))
    shapes = ((int(q_length.sum()), HEADS, SIZE), *[(int(k_length.sum()), KEY_HEADS, SIZE)] * 2)
    made = [torch.from_numpy(make(recipe, shape, seed, "float32")) for seed, shape in enumerate(shapes)]
    tables = {"q_start": q_start, "q_length": q_length, "k_start": k_start, "k_length": k_length}
    longest = {"longest_query": int(q_length.max()), "longest_key": int(k_length.max())}
    return made, {**tables, **longest}


def paged(made: list[Tensor], tables: dict[str, Any]) -> tuple[list[Tensor], dict[str, Any]]:
    """The same keys of one sequence in pages that lie anywhere."""
    q, k, v = made
    pages = -(-len(k) // 16)
    table = torch.tensor([[(7 * page + 3) % pages for page in range(pages)]], dtype=torch.int32)
    storage = [torch.full((pages * 16, KEY_HEADS, SIZE), torch.nan) for _ in range(2)]
    places = table[0].long()[torch.arange(len(k)) // 16] * 16 + torch.arange(len(k)) % 16
    for to, of in zip(storage, (k, v), strict=True):
        to[places] = of
    return [q, *storage], {**tables, "pages": table, "page_size": 16}


def difference(made: list[Tensor], tables: dict[str, Any], rule: Rule, launch: Launch, beside: Any) -> str | None:
    sequences = Sequences(**tables)
    q, k, v = made
    expected = beside.forward(q, k, v, sequences, rule)
    with without_gpu():
        found = triton_kernel.forward(q, k, v, sequences, rule, launch=launch)
    for name, ours, theirs in zip(("out", "lse"), found, expected, strict=True):
        wrong = compare(ours, theirs)
        if wrong is not None:
            return f"{name}: {wrong}"
    return None


def cases() -> Iterator[tuple[str, list[Tensor], dict[str, Any], Rule]]:
    yield "causal", *tensors(PACK, "normal"), CAUSAL
    yield "a window over borders", *tensors(RAGGED, "normal"), WINDOWED
    yield "full, capped, in pages", *paged(*tensors(((1, 2 * SMALL + 3),), "normal")), FULL
    # Not finite: a key before every window, one within some windows, and the last, which only the last query sees.
    made, tables = tensors(PACK, "normal")
    made[2][[0, 3 * SMALL - 20, -1]] = torch.tensor([torch.inf, torch.nan, torch.inf])[:, None, None]
    yield "not finite where not every row sees it", made, tables, WINDOWED


def gradients_differ(made: list[Tensor], tables: dict[str, Any], rule: Rule, held: int) -> str | None:
    """Where gradients and those of the CPU part, if memory that is not asked to be cleared holds this number."""
    sequences = Sequences(**tables)
    q, k, v = made
    do = torch.from_numpy(make("normal", tuple(q.shape), 3, "float32"))
    saved = cpu_kernel.forward(q, k, v, sequences, rule)
    expected = cpu_kernel.backward(do, q, k, v, *saved, sequences, rule)
    empty = torch.empty
    torch.empty = lambda *sizes, **options: empty(*sizes, **options).fill_(held)
    try:
        with without_gpu():
            found = triton_backward.backward(do, q, k, v, *saved, sequences, rule)
    finally:
        torch.empty = empty
    for name, ours, theirs in zip(("dq", "dk", "dv"), found, expected, strict=True):
        wrong = compare(ours, theirs)
        if wrong is not None:
            return f"{name}: {wrong}"
    return None


def gradients(planted: bool) -> dict[str, str | None]:
    """Small packs, whatever memory held; planted: the first pass believes that a pass before it has left marks."""
    install()
    if planted:
        run = triton_backward.run
        triton_backward.__dict__["run"] = lambda *given, **options: run(
            *given, **{name: value or name == "CAREFUL" for name, value in options.items()}
        )
    found: dict[str, str | None] = {}
    with np.errstate(all="ignore"):
        for held in (0, 1):
            for words, made, tables, rule in few():
                found[f"{words}, memory of {held}"] = gradients_differ(made, tables, rule, held)
    return found


def few() -> Iterator[tuple[str, list[Tensor], dict[str, Any], Rule]]:
    """A name, operands, the tables of their sequences, and who sees whom."""
    pack = ((1, 5), (18, 37), (1, 0), (20, 9))
    yield "causal", *tensors(pack, "normal"), CAUSAL
    yield "full", *tensors(pack, "wide"), FULL
    made, tables = tensors(pack, "normal")
    made[2][[0, 20, -1]] = torch.tensor([torch.inf, torch.nan, torch.inf])[:, None, None]
    yield "not finite where not every row sees it", made, tables, CAUSAL


def main(planted: bool) -> dict[str, str | None]:
    """All cases, or one of them with splits of another length than the reference has, which must differ."""
    install()
    ways = {"walked": WALKED, "shared": SHARED}
    found: dict[str, str | None] = {}
    with np.errstate(all="ignore"):
        given = tensors(((1, SPLIT_KEYS + 1),), "normal")
        if not planted:
            found["real splits"] = difference(*given, CAUSAL, SHARED, cpu_kernel)
        for module, keys in ((triton_kernel, SMALL), (reference, 2 * SMALL if planted else SMALL)):
            module.__dict__["SPLIT_KEYS"] = keys
        for words, made, tables, rule in list(cases())[: 1 if planted else None]:
            for way, launch in ways.items():
                found[f"{words}, {way}"] = difference(made, tables, rule, launch, reference)
    return found


if __name__ == "__main__":
    asked = gradients if "gradients" in sys.argv else main
    print(json.dumps(asked(planted="planted" in sys.argv)))
