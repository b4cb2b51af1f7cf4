"""Bytes that ranks send, by what they are for: for a training step, a checkpoint, a generation.

Pure functions of whole numbers, under the names by which a world counts what it really sent: what one rank sends, and
what all ranks of a copy or of a grid send together, which is short enough for an estimate by hand. Knows no process;
a grid whose world was never joined will do: `Grid(world=World(rank=3, size=8), tensor=2)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from samebits.parallel.collectives import even_cuts, stepped_cuts, widths_of
from samebits.parallel.grid import Grid
from samebits.parallel.layout import Ownership, matrix, met
from samebits.parallel.linear import MATRIX_WIDTH
from samebits.parallel.shards import Holding
from samebits.parallel.vocabulary import vocabulary_cuts
from samebits.parallel.vocabulary_rows import blocks_of

Volume = Counter[str]
"""Bytes by what they are for."""
FLOAT32: Final = 4
INTEGER: Final = 8
# Products that read the residual stream in a layer, each with a chain of its own for its input's gradient: q, k, v,
# gate, up; what comes back is their sum in each half of the layer. Those that write into it: o, down.
READING, READERS, WRITING = 5, 2, 2
# Numbers of each weight that a checkpoint keeps: itself and two moments.
KEPT: Final = 3
# Counts of a step that are summed over all ranks for each weight: without a gradient, not finite in it, not finite.
WATCHED: Final = 3
# The norm of the gradient is taken before it is clipped, and after.
NORMS: Final = 2


class Decoder(Protocol):
    """The sizes of a decoder on which bytes depend; a model's config has them."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_hidden_layers(self) -> int: ...
    @property
    def num_attention_heads(self) -> int: ...
    @property
    def num_key_value_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def intermediate_size(self) -> int: ...
    @property
    def use_qk_norm(self) -> bool: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What the ranks of one copy compute in a step, or in some passes of generation."""

    tokens: int
    """Rows of all passes."""
    words: Sequence[int]
    """How many of them are words that each rank of the copy holds: only the data knows. All together: `tokens`."""
    element: int = FLOAT32
    """Bytes of a number in the passes: 2 of bfloat16."""


# What one rank sends.


def chain_bytes(place: int, ranks: int, rows: int, width: int, element: int, back: int | None = None) -> int:
    """A travelling chain: float32 sums towards the last rank, `back` finished columns towards the first, else all."""
    there, back = FLOAT32 * width * (place < ranks - 1), width if back is None else back
    return rows * (there + element * back * (place > 0))


def gather_bytes(ranks: int, numbers: int, element: int) -> int:
    """A rank's numbers to every other rank."""
    return (ranks - 1) * numbers * element


def training_passes(decoder: Decoder, place: int, ranks: int, work: Work) -> Volume:
    """Forward and backward passes of one copy that `ranks` ranks hold between them."""
    tokens, hidden, element = work.tokens, decoder.hidden_size, work.element
    blocks = [blocks_of(width) for width in widths_of(vocabulary_cuts(decoder.vocab_size, ranks))]
    hop = chain_bytes(place, ranks, tokens, hidden, element)
    found = Volume(
        {
            "embedding rows": gather_bytes(ranks, work.words[place] * hidden, element),
            "row-parallel output": decoder.num_hidden_layers * WRITING * hop,
            "column-parallel input gradient": decoder.num_hidden_layers
            * chain_bytes(place, ranks, tokens, READING * hidden, element, back=READERS * hidden),
            "vocabulary statistics": gather_bytes(ranks, tokens * (2 * blocks[place] + 1), FLOAT32),
            "vocabulary hidden gradient": hop,
        }
    )
    if decoder.use_qk_norm:
        # Of queries and keys: what was normed, and its gradient.
        normed = _query_widths(decoder, ranks)[place] + _key_widths(decoder, ranks)[place]
        found["gather heads"] = decoder.num_hidden_layers * 2 * gather_bytes(ranks, tokens * normed, element)
    return +found


def exchanged_weights(
    grid: Grid, shapes: Mapping[str, tuple[int, ...]], holding: Holding, element: int = FLOAT32
) -> Volume:
    """Gradients to the ranks that update them, sums of their squares, and weights back to all ranks that compute."""
    share = Share.of(grid, shapes, holding)
    ranks, numbers = grid.world.size, share.held_cut - share.at_home + share.others_copied
    return +Volume(
        {
            "tree of gradients": FLOAT32 * numbers,
            "sums of squares": NORMS * gather_bytes(ranks, share.pieces, FLOAT32),
            "weights to all ranks": element * (grid.data * share.cut - share.at_home + (ranks - 1) * share.copied),
        }
    )


def step(
    decoder: Decoder,
    grid: Grid,
    shapes: Mapping[str, tuple[int, ...]],
    holding: Holding,
    work: Work,
    *,
    logprobs: int | None = None,
    compared: bool = False,
) -> Volume:
    """A whole training step. `logprobs`: numbers for the loss, padding included, `tokens` unless said; `compared`:
    whether the digests of all copies meet in this step."""
    found = exchanged_weights(grid, shapes, holding, work.element)
    if grid.tensor > 1:
        found += training_passes(decoder, grid.place, grid.tensor, work)
    found["logprobs"] += gather_bytes(grid.data, work.tokens if logprobs is None else logprobs, FLOAT32)
    found["counts"] += gather_bytes(grid.world.size, WATCHED * len(shapes), INTEGER)
    # Digests of what this rank has in common with the same part of every copy, and with all ranks.
    found["counts"] += gather_bytes(grid.data, compared, INTEGER) + gather_bytes(grid.world.size, compared, INTEGER)
    return +found


def checkpoint(grid: Grid, shapes: Mapping[str, tuple[int, ...]]) -> Volume:
    """Weights and moments to rank 0, which writes them."""
    owned = Ownership(sizes=_sizes(shapes), ranks=grid.world.size).owned(grid.world.rank)
    return +Volume({"weights to rank 0": KEPT * FLOAT32 * sum(map(_length, owned.values())) * (grid.world.rank > 0)})


def agreement(grid: Grid) -> Volume:
    """At the end of a run: that all ranks are at the same step. Facts compared before the first go by the store."""
    return +Volume({"counts": gather_bytes(grid.world.size, 1, INTEGER)})


def generation(decoder: Decoder, place: int, ranks: int, work: Work, *, drawn: int, scored: int = 0) -> Volume:
    """Passes of the engine, in which `drawn` rows draw a token and `scored` rows of prompts get a logprob: outputs are
    gathered, nothing travels."""
    tokens, element = work.tokens, work.element
    inputs = _query_widths(decoder, ranks)[place] + widths_of(_intermediate_cuts(decoder, ranks))[place]
    outputs = WRITING * widths_of(even_cuts(decoder.hidden_size, ranks))[place]
    vocabulary = widths_of(vocabulary_cuts(decoder.vocab_size, ranks))[place]
    return +Volume(
        {
            "embedding rows": gather_bytes(ranks, work.words[place] * decoder.hidden_size, element),
            "gather activations": decoder.num_hidden_layers * gather_bytes(ranks, tokens * inputs, element),
            "gathered linear": decoder.num_hidden_layers * gather_bytes(ranks, tokens * outputs, element),
            "logits": gather_bytes(ranks, drawn * vocabulary, FLOAT32),
            "vocabulary statistics": gather_bytes(ranks, scored * (2 * blocks_of(vocabulary) + 1), FLOAT32),
        }
    )


# What all ranks send together: the forms in which to estimate. A mean over ranks is the total divided by them.


def training_passes_of_all(decoder: Decoder, ranks: int, tokens: int, element: int) -> Volume:
    """All ranks of one copy: every hop is (ranks - 1) times there in float32, and as often back."""
    hidden, others = decoder.hidden_size, ranks - 1
    hop = others * tokens * hidden * (FLOAT32 + element)
    heads = (decoder.num_attention_heads + decoder.num_key_value_heads) * decoder.head_dim if decoder.use_qk_norm else 0
    return +Volume(
        {
            "embedding rows": others * tokens * hidden * element,
            "row-parallel output": decoder.num_hidden_layers * WRITING * hop,
            "column-parallel input gradient": decoder.num_hidden_layers
            * others
            * tokens
            * hidden
            * (READING * FLOAT32 + READERS * element),
            "vocabulary statistics": others * tokens * (2 * blocks_of(decoder.vocab_size) + ranks) * FLOAT32,
            "vocabulary hidden gradient": hop,
            "gather heads": decoder.num_hidden_layers * 2 * others * tokens * heads * element,
        }
    )


def generation_of_all(decoder: Decoder, ranks: int, tokens: int, drawn: int, element: int) -> Volume:
    """All ranks: each of them gets what the (ranks - 1) others have."""
    others, query = ranks - 1, decoder.num_attention_heads * decoder.head_dim
    return +Volume(
        {
            "embedding rows": others * tokens * decoder.hidden_size * element,
            "gather activations": decoder.num_hidden_layers
            * others
            * tokens
            * (query + decoder.intermediate_size)
            * element,
            "gathered linear": decoder.num_hidden_layers * others * tokens * WRITING * decoder.hidden_size * element,
            "logits": others * drawn * decoder.vocab_size * FLOAT32,
        }
    )


def gradients_of_all(data: int, cut: int, copied: int, at_home: int) -> int:
    """All ranks of a grid of `data` copies: numbers of weights that are cut within a copy, and of those that all of
    its ranks have. `at_home` of the cut ones are updated by a rank that computes with them. Without a cut, all weights
    count as copied, and this is (data - 1) times their number: what a reduce-scatter sends."""
    return FLOAT32 * (data * cut - at_home + (data - 1) * copied)


def weights_of_all(ranks: int, data: int, cut: int, copied: int, at_home: int, element: int) -> int:
    """The same for weights on their way back: what an all-gather sends."""
    return element * (data * cut - at_home + (ranks - 1) * copied)


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """How many numbers are a rank's, in its passes and in its updates."""

    held_cut: int
    """It computes with them, of weights that are cut within a copy."""
    cut: int
    """It updates them, of weights that are cut."""
    copied: int
    """It updates them, of weights that every rank of a copy has."""
    others_copied: int
    """Others that hold the same part of a copy update them, of weights that every rank of a copy has."""
    at_home: int
    """It updates them and computes with them, of weights that are cut."""
    pieces: int
    """Pieces of the norm's sum."""

    @classmethod
    def of(cls, grid: Grid, shapes: Mapping[str, tuple[int, ...]], holding: Holding) -> Share:
        sizes, rank = _sizes(shapes), grid.world.rank
        ownership = Ownership(sizes=sizes, ranks=grid.world.size)
        own, cuts = ownership.owned(rank), ownership.cuts()
        places = range(grid.tensor)
        copied = {name for name in sizes if all(holding(name, place).size == sizes[name] for place in places)}
        held = {name: holding(name, grid.place) for name in sizes if name not in copied}
        beside = [ownership.owned(other) for other in grid.data_group.members if other != rank]
        return cls(
            held_cut=sum(block.size for block in held.values()),
            cut=sum(_length(own[name]) for name in held),
            copied=sum(_length(own[name]) for name in copied),
            others_copied=sum(_length(ranges[name]) for ranges in beside for name in copied),
            at_home=sum(
                part.size for name, block in held.items() for part in met(own[name], block, matrix(shapes[name])[1])
            ),
            pieces=cuts[rank + 1] - cuts[rank],
        )


def _sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    return {name: rows * columns for name, (rows, columns) in zip(shapes, map(matrix, shapes.values()), strict=True)}


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def _key_widths(decoder: Decoder, ranks: int) -> list[int]:
    return [decoder.head_dim * heads for heads in widths_of(even_cuts(decoder.num_key_value_heads, ranks))]


def _query_widths(decoder: Decoder, ranks: int) -> list[int]:
    """A rank has all heads that share keys, or none of them."""
    return [decoder.num_attention_heads // decoder.num_key_value_heads * width for width in _key_widths(decoder, ranks)]


def _intermediate_cuts(decoder: Decoder, ranks: int) -> list[int]:
    """Between steps of matrix units."""
    return stepped_cuts(decoder.intermediate_size, ranks, MATRIX_WIDTH)
