"""Bytes of all ranks together == the sums over ranks, and the page on layouts shows them. No process is started."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from tests.parallel.unjoined import grid_of, holding_of

from samebits.model.config import ModelConfig
from samebits.model.presets import PRESETS
from samebits.model.weights import count, shapes
from samebits.parallel import volumes
from samebits.parallel.collectives import TILE_ROWS
from samebits.parallel.volumes import Share, Volume, Work

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parallel_layout.md"
# Norms of heads, and sizes that no number of ranks divides.
UNEVEN = ModelConfig(
    vocab_size=700,
    hidden_size=50,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    intermediate_size=72,
    max_position_embeddings=256,
    use_qk_norm=True,
)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("preset", ["tiny", "135m", "350m"])
def test_totals_are_the_sums_over_ranks(preset: str, ranks: int) -> None:
    for decoder in (PRESETS[preset], UNEVEN):
        work = Work(tokens=100 * ranks, words=[100] * ranks, element=2)
        passes = sum((volumes.training_passes(decoder, place, ranks, work) for place in range(ranks)), Counter())
        assert passes == volumes.training_passes_of_all(decoder, ranks, 100 * ranks, 2)
        drawn = sum((volumes.generation(decoder, place, ranks, work, drawn=9) for place in range(ranks)), Counter())
        assert drawn == volumes.generation_of_all(decoder, ranks, 100 * ranks, 9, 2)


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (1, 8), (2, 1), (2, 4), (4, 2), (8, 1)], ids=str)
def test_totals_of_gradients_and_weights_are_the_sums_over_ranks(shape: tuple[int, int]) -> None:
    (tensor, data), decoder = shape, PRESETS["tiny"]
    ranks, numbers = tensor * data, count(decoder)
    sent, cut, home = Volume(), 0, 0
    for rank in range(ranks):
        grid = grid_of(rank, shape)
        sent += volumes.exchanged_weights(grid, shapes(decoder), holding_of(decoder, grid), element=2)
        share = Share.of(grid, shapes(decoder), holding_of(decoder, grid))
        cut, home = cut + share.cut, home + share.at_home
    copied = numbers - cut
    gradients = volumes.gradients_of_all(data, cut, copied, home)
    weights = volumes.weights_of_all(ranks, data, cut, copied, home, element=2)
    assert (sent["tree of gradients"], sent["weights to all ranks"]) == (gradients, weights)
    # Whatever lies at home, the total is between these two; without a cut it is the first.
    assert 4 * (data - 1) * numbers <= gradients <= 4 * data * numbers
    if tensor == 1:
        assert (gradients, weights) == (4 * (data - 1) * numbers, 2 * (data - 1) * numbers)


# The page on layouts shows numbers of these formulas.


@cache
def rows_of_training() -> list[str]:
    decoder, tokens = PRESETS["350m"], 131072
    found = []
    for tensor, data in ((1, 8), (2, 4), (4, 2), (8, 1)):
        ranks, sent = tensor * data, Volume()
        for rank in range(ranks):
            grid = grid_of(rank, (tensor, data))
            sent += volumes.exchanged_weights(grid, shapes(decoder), holding_of(decoder, grid), element=2)
        passes = volumes.training_passes_of_all(decoder, tensor, tokens // data, 2).total()
        each = [
            sent["tree of gradients"] / ranks,
            sent["weights to all ranks"] / ranks,
            passes / tensor,
            12 * count(decoder) / ranks,
        ]
        found.append(f"| {tensor} × {data} | {' | '.join(f'{number / 1e6:,.0f} MB' for number in each)} |")
    return found


def rows_of_generation() -> list[str]:
    found = []
    for ranks in (2, 4, 8):
        tokens, prompts = (
            [volumes.generation_of_all(PRESETS["135m"], ranks, rows, 1, element) for element in (4, 2)]
            for rows in (1, 1000)
        )
        small_ones = [*(sent.total() for sent in tokens), tokens[0]["logits"]]
        cells = [f"{number / ranks / 1e3:.0f} kB" for number in small_ones]
        cells += [f"{sent.total() / ranks / 1e6:.0f} MB" for sent in prompts]
        found.append(f"| {ranks} | {' | '.join(cells)} |")
    return found


def rows_of_turns() -> list[str]:
    """n tiles take n + T - 1 turns."""
    tiles = {rows: -(-rows // TILE_ROWS) for rows in (128, 1024, 4096)}
    return [
        f"| {rows:,} | {' | '.join(f'{(n + ranks - 1) / n:.2f}' for ranks in (2, 4, 8))} |" for rows, n in tiles.items()
    ]


def missing_rows(page: str) -> list[str]:
    lines = page.splitlines()
    return [row for row in (*rows_of_training(), *rows_of_generation(), *rows_of_turns()) if row not in lines]


def test_the_page_on_layouts_shows_these_numbers() -> None:
    assert missing_rows(PAGE.read_text()) == []
    outdated = PAGE.read_text().replace("| 697 MB | 349 MB |", "| 698 MB | 349 MB |")
    assert [row.split(" | ")[0] for row in missing_rows(outdated)] == ["| 2 × 4"]
