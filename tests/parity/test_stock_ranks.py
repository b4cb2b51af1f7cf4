"""Negative controls: stock torch trained on 1, 2 and 4 ranks gives other weights on each; samebits gives the same ones.

The same decoder, first weights, sequences and global batches on both sides: stock's under DistributedDataParallel, and
cut by parallelize_module; samebits over lanes, and over its travelling chains."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from tests.parallel.ranks import on_ranks
from tests.train.small_run import small
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from samebits.model import Batch, Model
from samebits.model.weights import EMBEDDING, FINAL_NORM, prefix
from samebits.numerics.bits import compare
from samebits.parallel.world import World
from samebits.parity.distributed import Record, digest, losses_agree, recorded
from samebits.parity.stock import STOCK
from samebits.train.assessment import data_of, model_of
from samebits.train.data import Data
from samebits.train.data_order import sequences_of
from samebits.train.lanes import mean_loss

STEPS = 5
# Heads and keys that four ranks can share; sequences of one length, so that a mean of means is the mean.
CONFIG = small(
    "model.overrides.num_key_value_heads=4",
    "data={source: stdlib, max_length: 32, max_train_samples: 30}",
    "training.micro_batch_size=2",
    "training.gradient_accumulation_steps=4",
    "training.lanes=4",
    "optimizer.warmup_steps=1",
)
SIZES = (1, 2, 4)
OUTWARD = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
INWARD = ("self_attn.o_proj", "mlp.down_proj")


class Layer(nn.Module):
    """A decoder's layer of nn.Linear and torch's functions."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear
    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    def __init__(self, model: Model, at: str) -> None:
        super().__init__()
        self.config = model.config
        self.norms = nn.ParameterList(
            [model.weights[f"{at}{name}_layernorm.weight"].clone() for name in ("input", "post_attention")]
        )
        for name in (*OUTWARD, *INWARD):
            self.add_module(name.split(".")[1], _linear(model.weights[f"{at}{name}.weight"]))

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        config, normed = self.config, STOCK.rmsnorm(x, self.norms[0], None, self.config.rms_norm_eps)
        q, k, v = (each(normed).view(len(x), -1, config.head_dim) for each in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (STOCK.rope(each, batch.positions, config.rope_theta) for each in (q, k))
        x = x + self.o_proj(STOCK.attention(q, k, v, cu_seqlens=batch.spread_on(x.device)).reshape(len(x), -1))
        normed = STOCK.rmsnorm(x, self.norms[1], None, config.rms_norm_eps)
        down: Tensor = self.down_proj(STOCK.swiglu(self.gate_proj(normed), self.up_proj(normed)))
        return x + down


def _linear(weight: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight.clone())
    return made


class Decoder(nn.Module):
    """The logprobs of some sequences' targets."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.eps = model.config.rms_norm_eps
        # The embedding is the head as well.
        self.ends = nn.ParameterList([model.weights[name].clone() for name in (EMBEDDING, FINAL_NORM)])
        self.layers = nn.ModuleList([Layer(model, prefix(layer)) for layer in range(model.config.num_hidden_layers)])

    def forward(self, inputs: list[Tensor], targets: Tensor) -> Tensor:
        embedding, norm = self.ends
        batch = Batch.of(inputs)
        x = STOCK.embedding(batch.ids, embedding, None)
        for layer in self.layers:
            x = layer(x, batch)
        return STOCK.logprob(STOCK.rmsnorm(x, norm, None, self.eps), embedding, targets, None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What a run came to."""

    losses: tuple[float, ...]
    """Exact means of what was computed: they differ by the logprobs alone."""
    weights: dict[str, Tensor]


def everyones(logprobs: Tensor) -> list[Tensor]:
    found = [torch.empty_like(logprobs) for _ in range(dist.get_world_size())]
    dist.all_gather(found, logprobs)
    return found


def trained(module: nn.Module, data: Data, share: int, shares: int) -> Trained:
    """Stock training on one of equal shares of every global batch."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=CONFIG.optimizer.lr, foreach=False)
    losses, batch = [], CONFIG.training.global_batch_size
    for step in range(1, STEPS + 1):
        places = sequences_of(step, seed=CONFIG.training.seed, sequences=len(data), batch=batch)
        own = places[share * batch // shares : (share + 1) * batch // shares].tolist()
        inputs, targets = (
            [torch.from_numpy(each) for each in some]
            for some in zip(*(data.sequence(place) for place in own), strict=True)
        )
        logprobs = module(inputs, torch.cat(targets))
        (-logprobs.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        seen = [logprobs.detach()] if shares == 1 else everyones(logprobs.detach())
        losses.append(mean_loss([-each for each in seen], shares * len(logprobs)))
    weights = {
        name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in module.named_parameters()
    }
    return Trained(losses=tuple(losses), weights={name: each.detach().clone() for name, each in weights.items()})


def data_parallel(world: World) -> Trained:
    module = DistributedDataParallel(Decoder(model_of(CONFIG)))
    return trained(module, data_of(CONFIG), world.rank, world.size)


def tensor_parallel(world: World) -> Trained:
    module = Decoder(model_of(CONFIG))
    plan: dict[str, ParallelStyle] = {
        f"layers.{number}.{name.split('.')[1]}": style()
        for number in range(len(module.layers))
        for style, names in ((ColwiseParallel, OUTWARD), (RowwiseParallel, INWARD))
        for name in names
    }
    parallelize_module(module, init_device_mesh("cpu", (world.size,)), plan)
    return trained(module, data_of(CONFIG), 0, 1)


STYLES = {"DistributedDataParallel": data_parallel, "parallelize_module": tensor_parallel}


def beside_ours(world: World, style: str) -> tuple[Trained, str, Record]:
    """Stock, the weights of a second stock run, and ours."""
    stock, again = (STYLES[style](world) for _ in range(2))
    tensor = world.size if style == "parallelize_module" else 1
    return stock, digest(again.weights), recorded(world, CONFIG, tensor, STEPS)


def differing(left: Trained, right: Trained) -> int:
    """How many weights are not the same."""
    assert left.weights.keys() == right.weights.keys()
    found = (compare(weight, right.weights[name]) for name, weight in left.weights.items())
    return sum(each.count for each in found if each is not None)


# One of them shows it; each takes half a minute on two cores.
@pytest.mark.parametrize(
    "style", [pytest.param(style, marks=pytest.mark.long if number else ()) for number, style in enumerate(STYLES)]
)
def test_stock_weights_depend_on_the_number_of_ranks_and_ours_do_not(style: str) -> None:
    runs = {size: on_ranks(size, beside_ours, style) for size in SIZES}
    for found in runs.values():
        # No noise: on as many ranks stock gives what it gave, and the same on every rank.
        assert len({digest(stock.weights) for stock, _, _ in found} | {again for _, again, _ in found}) == 1
    alone, _, ours_alone = runs[1][0]
    for size in SIZES[1:]:
        stock, _, ours = runs[size][0]
        assert differing(stock, alone) > 0
        assert not losses_agree(stock.losses, alone.losses).holds
        assert losses_agree(ours.losses, ours_alone.losses).holds
        assert ours.state == ours_alone.state is not None
    assert differing(runs[2][0][0], runs[4][0][0]) > 0
