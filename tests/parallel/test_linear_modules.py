"""Layers with Megatron's signatures over real ranks == the layers of one device; what is not kept is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.parallel.comparing import differing, drawn, own, wanted
from tests.parallel.ranks import on_ranks
from torch import Tensor, nn

from samebits import ops
from samebits.parallel.linear_modules import ColumnParallelLinear, RowParallelLinear
from samebits.parallel.vocabulary_modules import VocabParallelEmbedding
from samebits.parallel.world import World

HIDDEN, INNER, TOKENS = 24, 37, (2, 70)
DTYPES = (torch.float32, torch.bfloat16)


def mlp_differences(world: World, dtype: torch.dtype) -> list[str]:
    """Column-parallel, gelu, row-parallel, with biases, forward and backward."""
    group = world.group
    shapes = ((INNER, HIDDEN), (INNER,), (HIDDEN, INNER), (HIDDEN,))
    w1, b1, w2, b2 = (wanted(drawn(shape, 1 + i, dtype)) for i, shape in enumerate(shapes))
    up = ColumnParallelLinear.from_whole(w1, b1, group)
    down = RowParallelLinear.from_whole(w2, b2, group, input_is_parallel=True)
    x, own_x = (wanted(drawn((*TOKENS, HIDDEN), 9, dtype)) for _ in range(2))
    y = ops.linear(ops.gelu(ops.linear(x, w1, b1)), w2, b2)
    inner, none = up(own_x)
    own_y, nothing = down(ops.gelu(inner))
    dy = drawn((*TOKENS, HIDDEN), 10, dtype)
    y.backward(dy)
    own_y.backward(dy)
    assert none is None and nothing is None and w1.grad is not None and b1.grad is not None and w2.grad is not None
    return differing(
        {
            "y": (y, own_y),
            "dx": (x.grad, own_x.grad),
            "db2": (b2.grad, down.bias.grad),
            "dw1": (own(w1.grad, up.cuts, group), up.weight.grad),
            "db1": (own(b1.grad, up.cuts, group), up.bias.grad),
            "dw2": (own(w2.grad, down.cuts, group, 1), down.weight.grad),
        }
    )


def all_of_mlp(world: World) -> list[str]:
    return [f"{dtype} {each}" for dtype in DTYPES for each in mlp_differences(world, dtype)]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_two_layers_are_those_of_one_device(size: int) -> None:
    assert on_ranks(size, all_of_mlp) == [[]] * size


def options_differences(world: World) -> list[str]:
    """Gathered outputs, inputs that are not cut yet, biases that are handed on, gradients in main_grad, given cuts."""
    group, dtype = world.group, torch.float32
    weight, bias = wanted(drawn((INNER, HIDDEN), 1, dtype)), wanted(drawn((INNER,), 2, dtype))
    config = SimpleNamespace(params_dtype=dtype, perform_initialization=True, gradient_accumulation_fusion=True)
    cuts = [0, 5, *[INNER] * (group.size - 1)]
    column = ColumnParallelLinear.from_whole(
        weight, bias, group, gather_output=True, skip_bias_add=True, config=config, cuts=cuts
    )
    row = RowParallelLinear.from_whole(weight, bias, group, input_is_parallel=False)
    column.weight.main_grad = torch.zeros_like(column.weight, dtype=torch.float32)
    x, x_column, x_row = (wanted(drawn((*TOKENS, HIDDEN), 3, dtype)) for _ in range(3))
    dy, plain = drawn((*TOKENS, INNER), 4, dtype), ops.linear(x, weight)
    y_column, handed = column(x_column)
    y_row, _ = row(x_row)
    for each in (plain, y_column, y_row):
        each.backward(dy)
    assert weight.grad is not None and column.weight.grad is None
    return differing(
        {
            "gathered": (plain, y_column),
            "scattered": (ops.linear(x, weight, bias), y_row),
            "handed bias": (own(bias, cuts, group), handed),
            "dx of gathered": (x.grad, x_column.grad),
            "dx of scattered": (x.grad, x_row.grad),
            "main_grad": (own(weight.grad, cuts, group), column.weight.main_grad),
        }
    )


@pytest.mark.parametrize("size", [2, 3])
def test_options_keep_the_bits(size: int) -> None:
    assert on_ranks(size, options_differences) == [[]] * size


def initial(world: World) -> dict[str, Tensor]:
    """Initial weights gathered by cuts; every rank's random numbers are its own, and only the first rank's count."""
    torch.manual_seed(5 if world.rank == 0 else 100 + world.rank)
    layers: dict[str, Any] = {
        "column": ColumnParallelLinear(HIDDEN, INNER, group=world.group),
        "row": RowParallelLinear(HIDDEN, INNER, group=world.group, init_method=nn.init.normal_),
        "table": VocabParallelEmbedding(700, 8, group=world.group, dtype=torch.bfloat16),
    }
    return {name: layer.weight.detach() for name, layer in layers.items()}


def test_initial_weights_do_not_know_the_number_of_ranks() -> None:
    (one,) = on_ranks(1, initial)
    for size in (2, 3):
        pieces = on_ranks(size, initial)
        axes = {"column": 0, "row": 1, "table": 0}
        together = {name: torch.cat([piece[name] for piece in pieces], axis) for name, axis in axes.items()}
        assert not differing({name: (one[name], together[name]) for name in axes})


@pytest.mark.parametrize(
    ("layer", "option", "value"),
    [
        (ColumnParallelLinear, "stride", 2),
        (ColumnParallelLinear, "is_expert", True),
        (ColumnParallelLinear, "skip_weight_param_allocation", True),
        (ColumnParallelLinear, "disable_grad_reduce", True),
        (ColumnParallelLinear, "grad_output_buffer", []),
        (RowParallelLinear, "stride", 2),
        (RowParallelLinear, "keep_master_weight_for_test", True),
        (VocabParallelEmbedding, "reduce_scatter_embeddings", True),
    ],
)
def test_what_is_not_kept_is_refused(layer: Any, option: str, value: Any) -> None:
    with pytest.raises(ValueError) as caught:
        layer(8, 8, group=World().group, **{option: value})
    assert str(caught.value).startswith(f"{layer.__name__}: {option} is {value!r}; allowed: ")


def test_wrong_settings_are_one_line() -> None:
    group = World().group
    config = SimpleNamespace(params_dtype=torch.float32, sequence_parallel=True)
    with pytest.raises(ValueError, match=r"^RowParallelLinear: config.sequence_parallel is True; allowed: False$"):
        RowParallelLinear(8, 8, group=group, config=config)
    with pytest.raises(
        ValueError, match=r"^ColumnParallelLinear: the cuts are \[0, 9\]; allowed: 2 ascending .* to 8$"
    ):
        ColumnParallelLinear(8, 8, group=group, cuts=[0, 9])
    fused = SimpleNamespace(params_dtype=torch.float32, gradient_accumulation_fusion=True)
    with pytest.raises(ValueError, match=r"main_grad is None; allowed: a float32 tensor like the weight$"):
        ColumnParallelLinear(8, 8, group=group, config=fused)(torch.zeros(1, 8))
    with pytest.raises(ValueError, match=r"weight has shape \(3, 8\); allowed: \(8, 8\)$"):
        ColumnParallelLinear(8, 8, group=group)(torch.zeros(1, 8), weight=torch.zeros(3, 8))
