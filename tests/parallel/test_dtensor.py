"""DTensor with our operators: any placement gives one device's bits, forward and backward, and no collective sums."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest
import torch
from tests.parallel.ranks import RankFailedError, on_ranks
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from samebits import ops
from samebits.numerics.recipes import make
from samebits.parallel import dtensor
from samebits.parallel.world import World

# Three ranks cut widths and vocabulary unevenly; rows that torch flattens must be even, so they are.
BATCH, TOKENS, WIDTH, HIDDEN, VOCABULARY = 6, 6, 32, 44, 40


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(make("normal", shape, seed))


class Linear(nn.Linear):
    """What replaces nn.Linear in a plan's model."""

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, self.bias)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(drawn(1, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        normed = dtensor.rmsnorm(x, self.weight) if isinstance(x, DTensor) else ops.rmsnorm(x, self.weight)  # type: ignore[arg-type]
        assert isinstance(normed, Tensor)
        return normed


class Block(nn.Module):
    """Norm, gate and up, down with a bias: a transformer's second half, as plans of the ecosystem cut it."""

    def __init__(self, linear: type[nn.Linear]) -> None:
        super().__init__()
        self.norm = Norm()
        self.gate, self.up = (linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down = linear(HIDDEN, WIDTH)
        with torch.no_grad():
            for seed, parameter in enumerate(self.parameters()):
                parameter.copy_(drawn(10 + seed, *parameter.shape))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return self.down(ops.swiglu(self.gate(h), self.up(h)))  # type: ignore[no-any-return]


def tensor_parallel() -> dict[str, Any]:
    """Pieces stay DTensors, so that they may be uneven: what becomes local in between must be even for torch."""
    pieces = ColwiseParallel(use_local_output=False)
    return {"gate": pieces, "up": pieces, "down": RowwiseParallel()}


def sequence_parallel() -> dict[str, Any]:
    return {
        "norm": SequenceParallel(sequence_dim=0),
        "gate": ColwiseParallel(input_layouts=Shard(0)),
        "up": ColwiseParallel(input_layouts=Shard(0)),
        "down": RowwiseParallel(output_layouts=Shard(0)),
    }


Result = dict[str, Tensor]


def one_device(linear: type[nn.Linear]) -> Result:
    block, x = Block(linear), drawn(2, BATCH * TOKENS, WIDTH).requires_grad_()
    return backward(block, x, block(x))


def backward(block: Block, x: Tensor, y: Tensor) -> Result:
    y.backward(drawn(3, BATCH * TOKENS, WIDTH))
    return {"y": y, "x": x.grad, **{name: each.grad for name, each in block.named_parameters()}}  # type: ignore[dict-item]


def whole_of(found: Iterable[Any]) -> list[Tensor]:
    return [(each.full_tensor() if isinstance(each, DTensor) else each).detach() for each in found]


def whole(found: Result) -> Result:
    return dict(zip(found, whole_of(found.values()), strict=True))


def planned(world: World, linear: type[nn.Linear], plan: Callable[[], dict[str, Any]]) -> tuple[Result, dict[str, int]]:
    """A plan's results, and how often which collective ran."""
    dtensor.enable()
    mesh = init_device_mesh("cpu", (world.size,))
    block = parallelize_module(Block(linear), mesh, plan())
    rows, dy = drawn(2, BATCH * TOKENS, WIDTH), drawn(3, BATCH * TOKENS, WIDTH)
    cut = plan is sequence_parallel
    if cut:
        rows, dy = (each.chunk(world.size)[world.rank] for each in (rows, dy))
    x = rows.clone().requires_grad_()
    with CommDebugMode() as counted:
        y = block(x)
        y.backward(dy)
    found = {"y": y, "x": x.grad, **{name: each.grad for name, each in block.named_parameters()}}
    if cut:
        found |= {name: DTensor.from_local(found[name], mesh, [Shard(0)]) for name in ("y", "x")}
    return whole(found), {str(name): count for name, count in counted.get_comm_counts().items()}


def same(got: Tensor, wanted: Tensor) -> bool:
    return got.dtype == wanted.dtype and torch.equal(got.view(torch.int32), wanted.view(torch.int32))


def summing(counts: dict[str, int]) -> list[str]:
    """Collectives that add."""
    return [name for name in counts if "reduce" in name]


def plans(world: World) -> dict[str, tuple[Result, dict[str, int]]]:
    found = {"tensor": planned(world, Linear, tensor_parallel), "stock": planned(world, nn.Linear, tensor_parallel)}
    if HIDDEN % world.size == 0:
        found["sequence"] = planned(world, Linear, sequence_parallel)
    return found


@pytest.mark.parametrize("size", [2, 3, pytest.param(4, marks=pytest.mark.long)])
def test_plans_keep_the_bits_of_one_device(size: int) -> None:
    """parallelize_module(block, plan) == block, outputs and all gradients; the same plan on nn.Linear is not."""
    wanted, stock = whole(one_device(Linear)), whole(one_device(nn.Linear))
    for found in on_ranks(size, plans):
        assert len(found) == (2 if size == 3 else 3)
        for plan in sorted(found.keys() - {"stock"}):
            results, counts = found[plan]
            assert {name for name in wanted if not same(results[name], wanted[name])} == set(), plan
            assert counts and not summing(counts), plan
        results, counts = found["stock"]
        differ = {name for name in stock if not same(results[name], stock[name])}
        assert {"y", "x"} <= differ  # the sums that were cut: over HIDDEN forward, over its columns backward
        assert summing(counts)


# Operators on every placement of their tensors: arguments, then what takes no gradient.
TokenIds = torch.arange(BATCH * TOKENS) * 7 % VOCABULARY
OPERATORS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "linear": (lambda x, w, b: ops.linear(x, w, b), [(BATCH, TOKENS, WIDTH), (HIDDEN, WIDTH), (HIDDEN,)]),
    "matmul": (lambda a, b: ops.matmul(a, b), [(7, WIDTH), (WIDTH, HIDDEN)]),
    "lm_head": (lambda x, w: ops.lm_head(x, w), [(TOKENS, WIDTH), (VOCABULARY, WIDTH)]),
    "rmsnorm": (
        lambda x, w: (dtensor if isinstance(x, DTensor) else ops).rmsnorm(x, w),
        [(BATCH, TOKENS, WIDTH), (WIDTH,)],
    ),
    "swiglu": (lambda gate, up: ops.swiglu(gate, up), [(BATCH, TOKENS, WIDTH)] * 2),
    "gelu": (lambda x: ops.gelu(x, "tanh"), [(BATCH, TOKENS, WIDTH)]),
    "softmax": (lambda x: ops.softmax(x), [(TOKENS, WIDTH)]),
    "rope": (lambda x: ops.rope(x, beside(torch.arange(TOKENS), x)), [(TOKENS, 4, 8)]),
    "attention": (
        lambda q, k, v: (dtensor if isinstance(q, DTensor) else ops).attention(q, k, v, window=5),
        [(BATCH, TOKENS, 12, 16), (BATCH, TOKENS, 6, 16), (BATCH, TOKENS, 6, 16)],
    ),
    "packed attention": (
        lambda q, k, v: (dtensor if isinstance(q, DTensor) else ops).attention(q, k, v, cu_seqlens=[0, 5, 6]),
        [(TOKENS, 4, 16), (TOKENS, 2, 16), (TOKENS, 2, 16)],
    ),
    "embedding": (lambda w: ops.embedding(beside(TokenIds, w), w), [(VOCABULARY, WIDTH)]),
    "selected_logprob": (
        lambda x, w: ops.selected_logprob(x, w, beside(TokenIds, x)),
        [(BATCH * TOKENS, WIDTH), (VOCABULARY, WIDTH)],
    ),
    "cross_entropy": (
        lambda x, w: ops.linear_cross_entropy(x, w, beside(TokenIds, x), reduction="none"),
        [(BATCH * TOKENS, WIDTH), (VOCABULARY, WIDTH)],
    ),
}


def beside(integers: Tensor, like: Tensor) -> Tensor:
    """Integers that lie whole wherever `like` is a DTensor."""
    return distribute_tensor(integers, like.device_mesh, [Replicate()]) if isinstance(like, DTensor) else integers


def evaluated(name: str, mesh: DeviceMesh | None, placements: tuple[Placement, ...]) -> list[Tensor]:
    """The operator's output and gradients, of plain tensors or of DTensors that lie so."""
    operator, shapes = OPERATORS[name]
    leaves = [drawn(20 + number, *shape) for number, shape in enumerate(shapes)]
    if mesh is not None:
        leaves = [distribute_tensor(leaf, mesh, [each]) for leaf, each in zip(leaves, placements, strict=True)]
    for leaf in leaves:
        leaf.requires_grad_()
    y = operator(*leaves)
    dy = drawn(30, *y.shape)
    y.backward(dy if mesh is None else distribute_tensor(dy, mesh, [Replicate()]))
    return whole_of([y, *(leaf.grad for leaf in leaves)])


def every_placement(world: World) -> tuple[int, list[str]]:
    """How many placements were tried, and which moved a bit or ran a collective that adds."""
    dtensor.enable()
    dtensor.enable()
    mesh, tried, wrong = init_device_mesh("cpu", (world.size,)), 0, []
    for name, (_, shapes) in OPERATORS.items():
        wanted = evaluated(name, None, ())
        choices = [[Replicate(), *(Shard(axis) for axis in range(len(shape)))] for shape in shapes]
        for placements in product(*choices):
            with CommDebugMode() as counted:
                found = evaluated(name, mesh, placements)
            tried += 1
            counts = {str(each): count for each, count in counted.get_comm_counts().items()}
            if not all(map(same, found, wanted)) or summing(counts):
                wrong.append(f"{name} {placements}")
    return tried, wrong


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.long), 3])
def test_every_placement_keeps_the_bits(size: int) -> None:
    """op(DTensors cut anyhow) == op(plain), outputs and gradients, for every operator with a rule."""
    for tried, wrong in on_ranks(size, every_placement):
        assert tried > 80
        assert wrong == []


def heads_elsewhere(world: World) -> list[bool]:
    """Planted fault: a rank attends with its own query heads to the key heads of the next rank."""
    mesh = init_device_mesh("cpu", (world.size,))
    q, k, v = (drawn(seed, TOKENS, heads, 16) for seed, heads in ((1, 4), (2, 2), (3, 2)))
    wanted = ops.attention(q, k, v, cu_seqlens=[0, TOKENS])
    assert isinstance(wanted, Tensor)
    found = []
    for keys in (k, k.roll(1, 1)):
        cut = [distribute_tensor(each, mesh, [Shard(1)]) for each in (q, keys, v)]
        with CommDebugMode() as counted:
            out = dtensor.attention(*cut, cu_seqlens=[0, TOKENS])
        # Heads that lie with their keys need nothing from others.
        assert not counted.get_comm_counts() and out.placements == (Shard(1),)
        found.append(same(out.full_tensor(), wanted))
    return found


def test_heads_are_cut_with_their_keys() -> None:
    assert on_ranks(2, heads_elsewhere) == [[True, False]] * 2


def test_attention_refuses_what_it_cannot_cut() -> None:
    with pytest.raises(ValueError, match="a cache with DTensors is not supported"):
        dtensor.attention(*[drawn(1, 2, 2, 2)] * 3, cache=ops.DenseCache.empty(1, 2, 2, 8))  # type: ignore[list-item]


def on_a_grid(world: World) -> tuple[list[bool], list[str]]:
    """Rows cut over one axis of a mesh, columns or the contraction over the other."""
    dtensor.enable()
    mesh = init_device_mesh("cpu", (2, world.size // 2))
    x_MK, weight_NK, dy_MN = drawn(1, 12, WIDTH), drawn(2, HIDDEN, WIDTH), drawn(3, 12, HIDDEN)
    plain = [x_MK.clone().requires_grad_(), weight_NK.clone().requires_grad_()]
    wanted = ops.linear(*plain)
    wanted.backward(dy_MN)
    good, counts = [], dict[str, int]()
    for inner in (0, 1):
        x = distribute_tensor(x_MK, mesh, [Shard(0), Shard(1) if inner else Replicate()]).requires_grad_()
        weight = distribute_tensor(weight_NK, mesh, [Replicate(), Shard(inner)]).requires_grad_()
        with CommDebugMode() as counted:
            y = ops.linear(x, weight)
            y.backward(distribute_tensor(dy_MN, mesh, [Shard(0), Replicate()]))
        counts |= {str(each): count for each, count in counted.get_comm_counts().items()}
        found = [y, x.grad, weight.grad]
        good += map(same, whole_of(found), [wanted.detach(), *(each.grad for each in plain)])  # type: ignore[arg-type]
    return good, summing(counts)


def test_a_grid_keeps_the_bits() -> None:
    assert on_ranks(4, on_a_grid) == [([True] * 6, [])] * 4


def with_a_cut_contraction(world: World) -> list[bool]:
    """Planted fault: a rule that lets the contracted axis be cut and leaves the sum to the backend."""
    dtensor.enable()
    mesh = init_device_mesh("cpu", (world.size,))
    rule = lambda a, b, bias, backend: [([Partial()], [Shard(1), Shard(0), None, None])]  # noqa: E731
    dtensor.register_sharding(torch.ops.samebits.gemm.default)(rule)
    a, b = drawn(1, 64, WIDTH), drawn(2, WIDTH, HIDDEN)
    with CommDebugMode() as counted:
        y = ops.matmul(distribute_tensor(a, mesh, [Shard(1)]), distribute_tensor(b, mesh, [Shard(0)])).full_tensor()
    counts = {str(each): count for each, count in counted.get_comm_counts().items()}
    return [same(y, ops.matmul(a, b)), bool(summing(counts))]


def test_a_rule_that_cuts_the_contraction_is_noticed() -> None:
    assert on_ranks(2, with_a_cut_contraction) == [[False, True]] * 2


def of_parts(world: World) -> None:
    dtensor.enable()
    mesh = init_device_mesh("cpu", (world.size,))
    ops.gelu(DTensor.from_local(drawn(1, 4, 4), mesh, [Partial()]))


def test_a_tensor_whose_sum_is_still_to_come_is_refused() -> None:
    with pytest.raises(
        RankFailedError, match=r"gelu: argument 0 lies \(Partial\(sum\),\).*; allowed: Replicate, Shard"
    ):
        on_ranks(2, of_parts)


def without_a_rule(world: World, case: str) -> None:
    dtensor.enable()
    mesh = init_device_mesh("cpu", (world.size,))
    rows, weight = (distribute_tensor(drawn(1, *shape), mesh, [Replicate()]) for shape in ((36, WIDTH), (40, WIDTH)))
    if case == "cross_entropy":
        ops.linear_cross_entropy(rows, weight, beside(TokenIds, rows))
    elif case == "attention":
        heads = distribute_tensor(drawn(1, 1, 4, 2, 16), mesh, [Replicate()])
        ops.attention(heads, heads, heads)
    else:
        torch.ops.samebits.gemm_accumulate_(distribute_tensor(torch.zeros(36, 40), mesh), rows, weight.T, "cpu")


@pytest.mark.parametrize("case", ["cross_entropy", "attention", "gemm_accumulate_"])
def test_an_operator_without_a_rule_raises(case: str) -> None:
    with pytest.raises(RankFailedError, match=rf"samebits.{case}.*sharding strategy"):
        on_ranks(2, without_a_rule, case)
