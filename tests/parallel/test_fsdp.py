"""FSDP2 with the tree: gradients are those of the tree over ranks on one process, however parameters are wrapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.parallel.ranks import RankFailedError, on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from samebits import ops
from samebits.numerics.recipes import make
from samebits.parallel import collectives, fsdp
from samebits.parallel.world import World

WIDTH, HIDDEN, ROWS, LAYERS = 24, 37, 10, 3
FLOAT32 = MixedPrecisionPolicy()
BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Layer(nn.Module):
    """Widths that no number of ranks here divides: FSDP2 pads them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.norm = nn.Parameter(drawn(seed, WIDTH))
        self.gate = nn.Parameter(drawn(seed + 1, HIDDEN, WIDTH) * 0.25)
        self.up = nn.Parameter(drawn(seed + 2, HIDDEN, WIDTH) * 0.25)
        self.down = nn.Parameter(drawn(seed + 3, WIDTH, HIDDEN) * 0.25)

    def forward(self, x: Tensor) -> Tensor:
        h = ops.rmsnorm(x, self.norm)
        assert isinstance(h, Tensor)
        return x + ops.linear(ops.swiglu(ops.linear(h, self.gate), ops.linear(h, self.up)), self.down)


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(make("normal", shape, seed))


def model() -> nn.Sequential:
    return nn.Sequential(*(Layer(10 * number) for number in range(LAYERS)))


def backward(module: nn.Module, lane: int, dtype: torch.dtype = torch.float32) -> None:
    """One lane's backward pass; its cotangent holds the mean's denominator already."""
    module(drawn(1000 + lane, ROWS, WIDTH).to(dtype)).backward(drawn(2000 + lane, ROWS, WIDTH).to(dtype))


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: whole(parameter.grad) for name, parameter in module.named_parameters()}


def whole(gradient: Any) -> Tensor:
    found: Tensor = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
    return found


def one_process(lanes: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The tree over every lane's own gradients."""
    each = []
    for lane in range(lanes):
        module = model().to(dtype)
        backward(module, lane, dtype)
        each.append({name: gradient.float() for name, gradient in gradients(module).items()})
    return {name: collectives.tree_sum([lane[name] for lane in each]) for name in each[0]}


def wrapped(world: World, by_layer: bool, policy: MixedPrecisionPolicy = FLOAT32) -> nn.Sequential:
    mesh, module = init_device_mesh("cpu", (world.size,)), model()
    for layer in module if by_layer else ():
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)
    return module


def settle(module: nn.Module, change: Callable[[FSDPModule], None]) -> None:
    for each in module.modules():
        if isinstance(each, FSDPModule):
            change(each)


class StartsAtSelf(fsdp.TreeReduceScatter):
    """Planted fault: each rank begins its piece's sum with its own part."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        members, pieces = self.world.group, input_tensor.chunk(self.world.size)
        every = [torch.empty_like(input_tensor) for _ in pieces]
        every[members.place].copy_(input_tensor)
        for place in range(members.size):
            collectives.broadcast(members, every[place], place)
        parts = [whole.chunk(members.size)[members.place] for whole in every]
        output_tensor.copy_(parts[members.place])
        for step in range(1, members.size):
            output_tensor.add_(parts[(members.place + step) % members.size])


def runs(world: World) -> dict[str, dict[str, Tensor]]:
    """Every way of running FSDP2 on this world, and the gradients it leaves."""
    found: dict[str, dict[str, Tensor]] = {}

    def record(name: str, module: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        backward(module, world.rank, dtype)
        found[name] = gradients(module)

    for name, by_layer in (("whole", False), ("by layer", True)):
        module = wrapped(world, by_layer)
        fsdp.add_by_tree(module, world)
        record(name, module)
    module = wrapped(world, True, BFLOAT16)
    fsdp.add_by_tree(module, world)
    record("bfloat16", module, torch.bfloat16)
    module = wrapped(world, True)
    settle(module, lambda each: each.set_gradient_divide_factor(1.0))
    settle(module, lambda each: each.set_force_sum_reduction_for_comms(True))
    record("stock", module)
    module = wrapped(world, True)
    fsdp.add_by_tree(module, world)
    settle(module, lambda each: each.set_custom_reduce_scatter(StartsAtSelf(world)))
    record("starts at self", module)
    for name, lanes in (("two lanes", 2), ("four lanes", 4)):
        module = wrapped(world, True)
        fsdp.add_by_tree(module, world)
        for lane in range(lanes):
            module.set_requires_gradient_sync(lane == lanes - 1)  # type: ignore[operator]
            backward(module, lanes * world.rank + lane)
        found[name] = gradients(module)
    return found


def same(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return all(torch.equal(got[name].view(torch.int32), wanted[name].view(torch.int32)) for name in wanted)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_gradients_are_the_tree_over_ranks(size: int) -> None:
    """FSDP2 on ranks == tree(gradients of every rank), whole or by layer, float32 or bfloat16, one lane or two; the
    stock reduction and a sum that begins with each rank's own part are not, where there are orders to differ in."""
    wanted, wanted16 = one_process(size), one_process(size, torch.bfloat16)
    of_two, of_four = one_process(2 * size), one_process(4 * size)
    for found in on_ranks(size, runs):
        assert same(found["whole"], wanted)
        assert same(found["by layer"], wanted)
        assert same(found["bfloat16"], wanted16)
        assert same(found["two lanes"], of_two)
        assert not same(found["four lanes"], of_four)  # not promised: FSDP2 adds these left to right
        # Two parts have one order; three and more do not.
        assert same(found["stock"], wanted) == (size == 2)
        assert same(found["starts at self"], wanted) == (size == 2)


def refused(world: World, case: str) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if case == "bfloat16" else FLOAT32
    if case == "replicas":
        module: nn.Module = model()
        fully_shard(module, mesh=init_device_mesh("cpu", (2, world.size // 2), mesh_dim_names=("replica", "shard")))
    else:
        module = model() if case == "not wrapped" else wrapped(world, False, policy)
    fsdp.add_by_tree(module, world)
    if case == "mean":
        settle(module, lambda each: each.set_force_sum_reduction_for_comms(False))
    backward(module, world.rank, torch.bfloat16 if case == "bfloat16" else torch.float32)


@pytest.mark.parametrize(
    ("case", "size", "words"),
    [
        ("replicas", 4, r"0.norm lies \(Replicate\(\), Shard\(dim=0\)\) on a mesh of \(2, 2\); allowed: sharded over"),
        ("mean", 2, "fsdp: the reduction is .*; allowed: SUM"),
        ("bfloat16", 2, "fsdp: gradients are reduced in torch.bfloat16; allowed: torch.float32"),
        ("not wrapped", 1, "fsdp: no module of Sequential is wrapped; allowed: after fully_shard"),
    ],
)
def test_what_no_order_is_promised_for_is_refused(case: str, size: int, words: str) -> None:
    with pytest.raises(RankFailedError, match=words):
        on_ranks(size, refused, case)
