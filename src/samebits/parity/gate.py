"""The chain gate: one text through a chain of operators, in every form a batch can take; no bit may differ.

The text packed into one batch is the measure. Logprobs and input gradients are compared row by row, restored by
sequence and position; weight gradients over the whole text, for every way to cut it into micro-batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from samebits.checker.environment import unavailable
from samebits.contracts.registry import nearest
from samebits.nn.strategy import Operators
from samebits.numerics.bits import compare
from samebits.ops.attention import DenseCache, PagedCache
from samebits.parity.chain import Cache, Chain, Layout, Sizes, Text, make_text, make_weights, packed, padded
from samebits.records.report import Finding, Verdict

# Fours add up to multiples of 16, where a chain of the matrix units may be left and resumed.
LENGTHS = (61, 83, 96, 80, 17, 127, 160, 96)
FOUR = 4
DEVICES = {"cpu": "cpu", "triton": "cuda"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What one form gave: by sequence number, and sums over the rows that took part."""

    logprobs: dict[int, Tensor]
    gradients: dict[int, Tensor]
    sums: dict[str, Tensor]


Forms: TypeAlias = Iterator[tuple[str, Result]]


def run(chain: Chain, text: Text, layout: Layout) -> Result:
    """One batch forward and backward; the chain's sums go on."""
    dtype, device = text.hidden[0].dtype, text.hidden[0].device
    hidden = torch.zeros(*layout.shape, chain.sizes.width, dtype=dtype, device=device)
    targets, positions = (torch.zeros(layout.shape, dtype=torch.long, device=device) for _ in range(2))
    upstream = torch.zeros(layout.shape, device=device)
    for number, span in zip(layout.sequences, layout.spans, strict=True):
        hidden[span], targets[span], upstream[span] = text.hidden[number], text.targets[number], text.upstream[number]
        positions[span] = torch.arange(text.lengths[number], device=device)
    hidden.requires_grad_()
    options = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in layout.options.items()}
    logprobs = chain.logprobs(hidden, targets, positions, options)
    (gradient,) = torch.autograd.grad(logprobs, hidden, upstream)
    pairs = list(zip(layout.sequences, layout.spans, strict=True))
    return Result(
        logprobs={number: logprobs.detach()[span] for number, span in pairs},
        gradients={number: gradient[span] for number, span in pairs},
        sums=chain.sums,
    )


def run_all(chain: Chain, text: Text, layouts: list[Layout]) -> Result:
    """Several batches one after the other, as micro-batches of one step."""
    chain = chain.fresh()
    parts = [run(chain, text, layout) for layout in layouts]
    return Result(
        logprobs={number: value for part in parts for number, value in part.logprobs.items()},
        gradients={number: value for part in parts for number, value in part.gradients.items()},
        sums=chain.sums,
    )


def groups(count: int, size: int) -> list[tuple[int, ...]]:
    return [tuple(range(start, min(start + size, count))) for start in range(0, count, size)]


def batch(chain: Chain, text: Text) -> Forms:
    """Batches of 1, 3 and 7 sequences; the whole text backwards and shuffled."""
    count = len(text.lengths)
    for size in (1, 3, 7):
        yield f"batches of {size}", run_all(chain, text, [packed(group, text.lengths) for group in groups(count, size)])
    shuffled = tuple(sorted(range(count), key=lambda number: (number * 2654435761) % 2**32))
    for words, order in (("reversed", tuple(reversed(range(count)))), ("shuffled", shuffled)):
        yield f"the text {words}", run_all(chain, text, [packed(order, text.lengths)])


def padding(chain: Chain, text: Text) -> Forms:
    """Rectangles of 5 sequences, padded on the left and on the right."""
    for side in ("left", "right"):
        layouts = [padded(group, text.lengths, side) for group in groups(len(text.lengths), 5)]
        yield f"padded on the {side}", run_all(chain, text, layouts)


def micro(chain: Chain, text: Text) -> Forms:
    """The text in micro-batches of 4, 8 and 20 sequences, and one early cut."""
    count = len(text.lengths)
    cuts = [groups(count, size) for size in (FOUR, 2 * FOUR, 5 * FOUR)]
    cuts.append([tuple(range(FOUR)), tuple(range(FOUR, count))])
    for cut in cuts:
        sizes = " ".join(str(len(group)) for group in cut[:4]) + (" ..." if len(cut) > 4 else "")
        yield (
            f"micro-batches of {sizes} sequences",
            run_all(chain, text, [packed(group, text.lengths) for group in cut]),
        )


def repeat(chain: Chain, text: Text) -> Forms:
    yield "a second run", run_all(chain, text, [packed(tuple(range(len(text.lengths))), text.lengths)])


def through_caches(chain: Chain, text: Text, number: int, steps: list[int], make_cache: Callable[[], Cache]) -> Result:
    """One sequence in steps of so many tokens, each after what the caches hold. Forward only."""
    caches, done, parts = [make_cache() for _ in range(chain.sizes.layers)], 0, []
    chain = chain.fresh()
    with torch.no_grad():
        for step in steps:
            now = slice(done, done + step)
            positions = torch.arange(done, done + step, device=text.targets[number].device)[None]
            hidden, targets = text.hidden[number][None, now], text.targets[number][None, now]
            parts.append(chain.logprobs(hidden, targets, positions, {}, caches)[0])
            done += step
    return Result(logprobs={number: torch.cat(parts)}, gradients={}, sums={})


def _caches(chain: Chain, text: Text) -> dict[str, Callable[[], Cache]]:
    sizes, hidden = chain.sizes, text.hidden[0]
    longest = max(text.lengths)

    def dense() -> Cache:
        return DenseCache.empty(1, longest, sizes.key_heads, sizes.head, dtype=hidden.dtype, device=hidden.device)

    def paged() -> Cache:
        pages = -(-longest // 16)
        # Pages lie in memory in another order than their tokens.
        table = list(reversed(range(pages)))
        return PagedCache.empty(
            [table], sizes.key_heads, sizes.head, pages=pages, page_size=16, dtype=hidden.dtype, device=hidden.device
        )

    return {"a dense cache": dense, "a paged cache": paged}


def chunk(chain: Chain, text: Text) -> Forms:
    """Prompts prefilled in chunks of 1 + 37, 64 and half."""
    dense = _caches(chain, text)["a dense cache"]
    for number in (1, 6):
        length = text.lengths[number]
        for steps in ([1, 37, length - 38], [64, length - 64], [length // 2, length - length // 2]):
            words = f"sequence {number} in chunks of {' '.join(map(str, steps))}"
            yield words, through_caches(chain, text, number, steps, dense)


def cache(chain: Chain, text: Text) -> Forms:
    """A prompt of some tokens, then token by token."""
    for words, make_cache in _caches(chain, text).items():
        for number, prompt in ((1, 5), (4, 1), (6, 100)):
            steps = [prompt] + [1] * (text.lengths[number] - prompt)
            said = f"sequence {number} decoded after {prompt} tokens with {words}"
            yield said, through_caches(chain, text, number, steps, make_cache)


PROMISES = {"repeat": repeat, "batch": batch, "padding": padding, "chunk": chunk, "cache": cache, "micro": micro}
# Weight gradients are sums over rows in order: where rows are reordered or dropped they may differ.
WITH_SUMS = ("repeat", "micro")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    rows: int = 0
    gradients: int = 0
    difference: str = ""


def compared(whole: Result, form: Result, *, sums: bool) -> Tally:
    """Every row and gradient that the form has, against the measure."""
    rows = gradients = 0
    for what, left, right in (
        ("logprobs", whole.logprobs, form.logprobs),
        ("gradient", whole.gradients, form.gradients),
    ):
        for number, found in right.items():
            differs = compare(left[number].cpu(), found.cpu())
            if differs:
                return Tally(rows=rows, gradients=gradients, difference=f"{what} of sequence {number}: {differs}")
            rows += len(found)
            gradients += found.numel() if what == "gradient" else 0
    for name, found in form.sums.items() if sums else ():
        differs = compare(whole.sums[name].cpu(), found.cpu())
        if differs:
            return Tally(rows=rows, gradients=gradients, difference=f"weight gradient of {name}: {differs}")
        gradients += found.numel()
    return Tally(rows=rows, gradients=gradients)


def judge(
    promise: str,
    *,
    backend: str,
    formats: tuple[str, ...],
    seeds: tuple[int, ...],
    sequences: int,
    operators: Operators | None = None,
) -> Finding:
    """One promise of the chain over formats and seeds."""
    started, rows, gradients, forms = time.perf_counter(), 0, 0, 0
    lack = unavailable(backend, component=True)
    if lack:
        return Finding(
            subject="chain", promise=promise, backend=backend, verdict=Verdict.COULD_NOT_BE_JUDGED, cases=0, detail=lack
        )
    lengths = [LENGTHS[i % len(LENGTHS)] for i in range(sequences)]
    for format in formats:
        for seed in seeds:
            sizes, device = Sizes(), DEVICES[backend]
            text = make_text(lengths, sizes, seed, format, device)
            chain = Chain(
                sizes=sizes, weights=make_weights(sizes, seed, format, device), operators=operators or Operators()
            )
            whole = run_all(chain, text, [packed(tuple(range(sequences)), lengths)])
            for words, form in PROMISES[promise](chain, text):
                tally = compared(whole, form, sums=promise in WITH_SUMS)
                rows, gradients, forms = rows + tally.rows, gradients + tally.gradients, forms + 1
                if tally.difference:
                    detail = f"{format} seed {seed}, {words} against one packed batch: {tally.difference}"
                    return Finding(
                        subject="chain",
                        promise=promise,
                        backend=backend,
                        verdict=Verdict.DOES_NOT_HOLD,
                        cases=rows,
                        detail=detail,
                        seconds=time.perf_counter() - started,
                    )
    detail = (
        f"{sum(lengths)} tokens, {len(seeds)} seeds, {' '.join(formats)}: {forms} forms, {rows} rows and"
        f" {gradients} gradients compared, 0 differ"
    )
    return Finding(
        subject="chain",
        promise=promise,
        backend=backend,
        verdict=Verdict.HOLDS,
        cases=rows,
        detail=detail,
        seconds=time.perf_counter() - started,
    )


def gate(
    *,
    promises: Sequence[str] | None = None,
    backend: str = "cpu",
    formats: tuple[str, ...] = ("float32", "bfloat16"),
    seeds: tuple[int, ...] = (1, 2, 3),
    sequences: int = 48,
    faults: dict[str, tuple[str, Operators]] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Finding]:
    """Every promise of the chain; then each planted fault, which the promise it breaks must notice."""
    unknown = [promise for promise in promises or () if promise not in PROMISES]
    if unknown:
        raise ValueError(f"the chain is not judged by {unknown[0]!r}; {nearest(unknown[0], list(PROMISES))}")
    findings = []
    for promise in promises or PROMISES:
        tell(f"chain {promise} {backend}")
        finding = judge(promise, backend=backend, formats=formats, seeds=seeds, sequences=sequences)
        planted = {name: broken for name, (breaks, broken) in (faults or {}).items() if breaks == promise}
        if finding.verdict is Verdict.HOLDS and planted:
            verdicts = {
                name: judge(
                    promise,
                    backend=backend,
                    formats=formats[:1],
                    seeds=seeds[:1],
                    sequences=sequences,
                    operators=broken,
                ).verdict
                for name, broken in planted.items()
            }
            survivors = [name for name, verdict in verdicts.items() if verdict is not Verdict.DOES_NOT_HOLD]
            finding = replace(finding, faults_planted=len(planted), faults_caught=len(planted) - len(survivors))
            if survivors:
                finding = replace(
                    finding, verdict=Verdict.DOES_NOT_HOLD, detail=f"planted faults survived: {', '.join(survivors)}"
                )
        findings.append(finding)
    return findings
