"""Bits of decode_step on a GPU beside what the engine launches: products, and whole passes of a few layers.

A part is a process, since compiling takes longer than running. What waits for too little need not show at once: a pass
is replayed again and again, and every replay compared."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from attention_cases import all_differing
from torch import Tensor

from decode_step.products import Form, product
from decode_step.racing import FORMS, IN_USE
from decode_step.step import Ideas, JoinedStep
from samebits.bench.cases import Setting
from samebits.bench.shapes import PUBLISHED
from samebits.bench.stock_model import random_weights
from samebits.infer.decode_step import DecodeStep, capturing
from samebits.infer.drawing import Choices
from samebits.infer.pages import LayerCache
from samebits.model import Model, ModelConfig
from samebits.numerics.bits import compare
from samebits.ops.matmul import triton_kernel as matmul
from samebits.ops.matmul.launch_table import Launch
from samebits.ops.swiglu import triton_kernel as swiglu

PAGE: Final = 16
REPLAYS: Final = 30
SHAPES: Final = {
    "llama-3-8b": replace(PUBLISHED["llama-3-8b"], num_hidden_layers=2, vocab_size=5003),
    "llama of heads of 64": replace(
        PUBLISHED["llama-3-8b"],
        hidden_size=2048,
        head_dim=64,
        intermediate_size=8192,
        num_hidden_layers=3,
        vocab_size=4099,
    ),
    "smollm2-135m": replace(PUBLISHED["smollm2-135m"], num_hidden_layers=4, vocab_size=3001),
}
ROWS: Final = (1, 2, 7, 16, 33, 64, 130)
EVERY: Final = Ideas(rotation=True, unfilled=True, form=Form(), programmatic=True)
SOME: Final = (
    EVERY,
    replace(EVERY, form=Form(features=32, ahead=24, programs=2)),
    replace(EVERY, form=Form(early=False)),
    Ideas(rotation=True),
    Ideas(unfilled=True),
    Ideas(form=Form()),
    replace(EVERY, form=None),
)
FEWER: Final = (SOME[0], SOME[1], SOME[-1])
"""For more than two rows: every kernel is compiled anew for an idea."""
# K and N of products: tails of tiles and of steps, and a chain shorter than what is on its way.
SIZES: Final = ((4096, 6144), (14336, 1024), (576, 1000), (328, 200))


def all_parts() -> list[str]:
    products = [("products", number, rows) for number in range(len(FORMS)) for rows in (16, 64)]
    steps = [("steps", number, rows) for number in range(len(SHAPES)) for rows in (2, 130)]
    return all_differing(differing, [*steps, *products, ("launches", 0, 16)])


def differing(part: str, number: int, rows: int) -> list[str]:
    """Every comparison of a part that does not hold, of up to so many rows and more than the part before has."""
    torch.manual_seed(number)
    fewest = {2: 1, 16: 1, 64: 17, 130: 3}[rows]
    some = [each for each in ROWS if fewest <= each <= rows]
    if part == "products":
        return products_differing(FORMS[number], some)
    if part == "launches":
        return [found for each in IN_USE for found in launches_differing(each, some)]
    name, config = list(SHAPES.items())[number]
    return [found for each in some for found in steps_differing(name, config, each)]


def launches_differing(launch: Launch, some: Sequence[int]) -> list[str]:
    """Launches of the product in use that the race tries, beside the one that the launch table has."""
    found = []
    for (k, n), rows in itertools.product(SIZES, some):
        x, weight = (torch.randn(*shape, device="cuda").bfloat16() for shape in ((rows, k), (n, k)))
        for out_dtype in (torch.bfloat16, torch.float32):
            ours = matmul.gemm(x, weight.T, launch=launch, out_dtype=out_dtype)
            parting = compare(ours.cpu(), matmul.gemm(x, weight.T, out_dtype=out_dtype).cpu())
            if parting is not None:
                found.append(f"{launch} {rows}x{k}x{n} {out_dtype}: {parting}")
    return found


def products_differing(form: Form, some: Sequence[int]) -> list[str]:
    found = []
    formats = (torch.bfloat16, torch.float16) if form == FORMS[0] else (torch.bfloat16,)
    for (k, n), rows, finite, dtype in itertools.product(SIZES, some, (True, False), formats):
        x, weight = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((rows, k), (n, k)))
        if not finite:
            x[-1, 5], weight[3, 7], weight[n // 2 + 1, 2] = torch.nan, torch.inf, -torch.inf
        whole, wide = matmul.gemm(x, weight.T), matmul.gemm(x, weight.T, out_dtype=torch.float32)
        gate, up = (each.contiguous() for each in whole.chunk(2, 1))
        expected = (whole, wide, swiglu.forward(gate, up))
        for programmatic in (False, True):
            ways: list[dict[str, Any]] = [{}, {"out_dtype": torch.float32}, {"gated": True}]
            given = [product(x, weight, form, programmatic=programmatic, **way) for way in ways]
            for way, ours, theirs in zip(ways, given, expected, strict=True):
                parting = compare(ours.cpu(), theirs.cpu())
                if parting is not None:
                    found.append(f"{form} {way} {rows}x{k}x{n} {dtype} finite {finite} {programmatic}: {parting}")
    return found


def steps_differing(name: str, config: ModelConfig, rows: int) -> list[str]:
    found = []
    model = Model(config=config, weights=random_weights(config, Setting(torch.device("cuda"), torch.bfloat16)))
    for finite, longest in ((True, 300), (True, 4500), (False, 300)):
        if not finite:
            model.weights["model.layers.0.self_attn.o_proj.weight"].data[5, 3] = torch.inf
        whole = model.for_inference()
        expected, caches = decoded(whole, rows, longest, finite, None)
        for ideas in (EVERY,) if longest > 2048 else SOME if rows <= 2 else FEWER:
            ideas = replace(ideas, most_keys=2048 if ideas.unfilled and longest < 2048 else 0)
            given, kept = decoded(whole, rows, longest, finite, ideas)
            pairs = zip((*given, *kept), (*expected, *caches), strict=True)
            for place, (ours, theirs) in enumerate(pairs):
                if not same(ours, theirs):
                    words = f"{name} rows {rows} keys {longest} finite {finite} {ideas}"
                    found.append(f"{words}: result {place}: {compare(ours.cpu(), theirs.cpu())}")
    return found


def decoded(
    model: Model, rows: int, longest: int, finite: bool, ideas: Ideas | None
) -> tuple[list[Tensor], list[Tensor]]:
    """What a step gives, and the caches behind it; every replay has given the same, or its first other result is
    given."""
    generator = torch.Generator("cuda").manual_seed(rows)
    most, config = -(-longest // PAGE), model.config
    sizes = (rows * most, PAGE, model.key_heads, config.head_dim)
    where: dict[str, Any] = {"dtype": model.dtype, "device": model.device}
    caches = [LayerCache(*sizes, **where) for _ in range(config.num_hidden_layers)]
    kept = [each for cache in caches for each in (cache.k, cache.v)]
    for each in kept:
        each.normal_(generator=generator)
    if not finite:
        kept[1][0, 1, 0, 3], kept[0][-1, 2, 0, 1] = torch.nan, -torch.inf
    how = (model, caches, rows, most, capturing(model.device))
    step = DecodeStep(*how) if ideas is None else JoinedStep(*how, ideas)
    given = inputs(rows, longest, most)
    first = [each.clone() for each in step.run(*given)]
    for _ in range(REPLAYS):
        again = step.run(*given)
        if not all(same(*each) for each in zip(again, first, strict=True)):
            return list(again), kept
    return first, kept


def same(left: Tensor, right: Tensor) -> bool:
    """As `compare` has it, without a way through main memory: equal bits, or NaN both."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[left.element_size()]
    equal = left.view(kind) == right.view(kind)
    if left.is_floating_point():
        equal |= left.isnan() & right.isnan()
    return bool(equal.all())


def inputs(rows: int, longest: int, most: int) -> tuple[list[int], list[int], list[list[int]], Choices]:
    """Ids, keys that are held (ragged, the longest of them first), tables and greedy choices."""
    held = [longest - 2 if row == 0 else (97 * row + 13) % (longest - 1) for row in range(rows)]
    order = torch.randperm(rows * most, generator=torch.Generator().manual_seed(rows)).view(rows, most)
    whole = torch.zeros(4, rows, dtype=torch.int64)
    parts = torch.tensor([[0.0], [1.0]]).repeat(1, rows)
    return [(37 * row + 5) % 3000 for row in range(rows)], held, order.tolist(), Choices(whole, parts)
