"""Tensor parallel layers on launched kernels, on ranks of the virtual cluster: every element against one device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from samebits.ops.matmul import linear
from samebits.sim import ahbm, model_parallel
from samebits.sim.choices import policy_of
from samebits.sim.cluster import Settings, execute
from samebits.sim.errors import SpawnException
from samebits.sim.launching import Accelerator
from samebits.sim.parallel_layers import ColumnParallelLinear, RowParallelLinear

ROWS, INPUTS, INNER, OUTPUTS = 5, 24, 48, 12


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


X, W1, B1 = drawn(ROWS, INPUTS, seed=1), drawn(INNER, INPUTS, seed=2), drawn(INNER, seed=3)
W2, B2, DY = drawn(OUTPUTS, INNER, seed=4), drawn(OUTPUTS, seed=5), drawn(ROWS, OUTPUTS, seed=6)


def joined(rank: int, tensor: int) -> None:
    dist.init_process_group("sim")
    ahbm.set_device(rank)
    model_parallel.initialize_model_parallel(tensor)


def block(rank: int, accelerator: Accelerator, tensor: int) -> dict[str, Tensor]:
    """Column-parallel, GELU, row-parallel; outputs, and all gradients of this rank's parts."""
    joined(rank, tensor)
    first = ColumnParallelLinear(INPUTS, INNER, accelerator=accelerator)
    second = RowParallelLinear(INNER, OUTPUTS, accelerator=accelerator)
    first.load_whole(W1, B1)
    second.load_whole(W2, B2)
    x = X.clone().requires_grad_()
    inner = first(x)
    y = second(nn.functional.gelu(inner))
    (y * DY).sum().backward()
    assert x.grad is not None and first.bias is not None and second.bias is not None
    grads = {
        name: each.grad
        for name, each in (("w1", first.weight), ("b1", first.bias), ("w2", second.weight), ("b2", second.bias))
    }
    return {"inner": inner.detach(), "y": y.detach(), "x": x.grad, **{n: g for n, g in grads.items() if g is not None}}


def on_ranks(ranks: int, tensor: int | None = None, function: Any = block, seed: int | None = None) -> list[Any]:
    accelerator = Accelerator(sips=ranks)
    settings = Settings(policy=None if seed is None else policy_of("uniform", seed, ranks))
    return execute(function, ranks, (accelerator, tensor or ranks), settings=settings).results


def on_one_device() -> dict[str, Tensor]:
    """The same layers whole, in float64."""
    x, w1, b1, w2, b2 = (each.double().clone().requires_grad_() for each in (X, W1, B1, W2, B2))
    inner = x @ w1.T + b1
    y = nn.functional.gelu(inner) @ w2.T + b2
    (y * DY).sum().backward()
    found = {
        "inner": inner.detach(),
        "y": y.detach(),
        "x": x.grad,
        "w1": w1.grad,
        "b1": b1.grad,
        "w2": w2.grad,
        "b2": b2.grad,
    }
    return {name: each for name, each in found.items() if each is not None}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_R46_R49_the_block_equals_the_whole_layers_element_by_element(ranks: int) -> None:
    whole, parts = on_one_device(), on_ranks(ranks)
    for name, axis in (("inner", 1), ("w1", 0), ("b1", 0), ("w2", 1)):
        together = torch.cat([part[name] for part in parts], dim=axis)
        torch.testing.assert_close(together.double(), whole[name], rtol=1e-5, atol=1e-5, msg=name)
    for name in ("y", "x", "b2"):
        for part in parts:
            torch.testing.assert_close(part[name].double(), whole[name], rtol=1e-5, atol=1e-5, msg=name)
            assert torch.equal(part[name], parts[0][name]), f"{name} is the same on every rank"


@pytest.mark.parametrize("ranks", [2, 4])
def test_R46_column_parallel_outputs_have_the_bits_of_one_device(ranks: int) -> None:
    """Every element is one chain whoever computes it; no sum runs over ranks."""
    together = torch.cat([part["inner"] for part in on_ranks(ranks)], dim=1)
    assert torch.equal(together, linear(X, W1) + B1)


def test_R46_the_bias_of_a_row_parallel_layer_is_added_once() -> None:
    def zero_weight(rank: int, accelerator: Accelerator, tensor: int) -> Tensor:
        joined(rank, tensor)
        layer = RowParallelLinear(INNER, OUTPUTS, accelerator=accelerator, input_is_parallel=False)
        layer.load_whole(torch.zeros(OUTPUTS, INNER), B2)
        result: Tensor = layer(drawn(2, INNER, seed=9)).detach()
        return result

    assert all(torch.equal(found, B2.expand(2, -1)) for found in on_ranks(3, function=zero_weight))


def test_R46_gathered_outputs_are_whole_on_every_rank() -> None:
    def gathered(rank: int, accelerator: Accelerator, tensor: int) -> tuple[Tensor, Tensor]:
        joined(rank, tensor)
        layer = ColumnParallelLinear(INPUTS, INNER, accelerator=accelerator, gather_output=True)
        layer.load_whole(W1, B1)
        x = X.clone().requires_grad_()
        y = layer(x)
        y.square().sum().backward()
        assert x.grad is not None
        return y.detach(), x.grad

    found = on_ranks(2, function=gathered)
    assert all(torch.equal(y, linear(X, W1) + B1) for y, _ in found) and torch.equal(found[0][1], found[1][1])
    x = X.double().clone().requires_grad_()
    (x @ W1.double().T + B1.double()).square().sum().backward()
    torch.testing.assert_close(found[0][1].double(), x.grad, rtol=1e-5, atol=1e-4)


@pytest.fixture
def no_host_products(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a product on the host")

    for place, name in (
        (torch, "matmul"),
        (torch, "mm"),
        (torch, "bmm"),
        (torch, "addmm"),
        (torch.Tensor, "matmul"),
        (torch.Tensor, "__matmul__"),
        (torch.Tensor, "mm"),
        (nn.functional, "linear"),
    ):
        monkeypatch.setattr(place, name, refuse)
    yield


def test_R47_layers_work_where_the_hosts_products_raise(no_host_products: None) -> None:
    with pytest.raises(AssertionError, match="a product on the host"):
        _ = X @ W1.T
    accelerator = Accelerator(sips=2)
    execute(block, 2, (accelerator, 2))
    assert accelerator.launches == 2 * 2 * 3, "two layers on two ranks: forward, input gradient, weight gradient"


@pytest.mark.parametrize("seed", range(5))
def test_R48_any_yield_at_a_launch_leaves_the_bits(seed: int) -> None:
    """Every launch gives the baton away; who has it next is drawn."""
    first, again = on_ranks(3), on_ranks(3, seed=seed)
    for one, other in zip(first, again, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_R48_kernels_are_resumed_in_the_main_context_only() -> None:
    seen: set[int] = set()
    accelerator = Accelerator(sips=2)
    resume = accelerator.machine._resume

    def watched(program: Any, value: Any) -> None:
        seen.add(threading.get_ident())
        resume(program, value)

    accelerator.machine._resume = watched  # type: ignore[method-assign]
    execute(block, 2, (accelerator, 2))
    assert seen == {threading.get_ident()}


def test_launches_take_simulated_time_and_a_failing_kernel_is_the_ranks_error() -> None:
    clocks = execute(block, 2, (Accelerator(sips=2), 2)).clocks
    assert min(clocks) > 1e-8 and len(clocks) == 2

    def wrong(rank: int, accelerator: Accelerator, tensor: int) -> None:
        joined(rank, tensor)
        accelerator.gemm(torch.zeros(2, 3), torch.zeros(4, 2), rank)

    with pytest.raises(SpawnException, match=r"gemm: a is \(2, 3\), b is \(4, 2\)"):
        on_ranks(2, function=wrong)


def conjugates(rank: int, accelerator: Accelerator, tensor: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Each function's output, and the gradient of its input for a known gradient of its output."""
    joined(rank, tensor)
    found = {}
    for name, width, back in (("copy_to", 4, 4), ("reduce_from", 4, 4), ("scatter_to", 4, 2), ("gather_from", 2, 4)):
        x = (torch.arange(2 * width, dtype=torch.float32).view(2, width) + 100 * rank).requires_grad_()
        y = getattr(model_parallel, f"{name}_tensor_region")(x)
        y.backward(torch.arange(2 * back, dtype=torch.float32).view(2, back) + 10 * (rank + 1))
        assert x.grad is not None
        found[name] = (y.detach(), x.grad)
    return found


def test_R50_conjugate_pairs_forward_and_backward() -> None:
    found = on_ranks(2, function=conjugates)
    base, grad = torch.arange(8.0).view(2, 4), torch.arange(8.0).view(2, 4)
    narrow = torch.arange(4.0).view(2, 2)
    for rank, each in enumerate(found):
        own = slice(2 * rank, 2 * rank + 2)
        assert torch.equal(each["copy_to"][0], base + 100 * rank) and torch.equal(each["copy_to"][1], 2 * grad + 30)
        assert torch.equal(each["reduce_from"][0], 2 * base + 100)
        assert torch.equal(each["reduce_from"][1], grad + 10 * (rank + 1))
        assert torch.equal(each["scatter_to"][0], (base + 100 * rank)[:, own])
        assert torch.equal(each["scatter_to"][1], torch.cat([narrow + 10, narrow + 20], dim=1))
        assert torch.equal(each["gather_from"][0], torch.cat([narrow, narrow + 100], dim=1))
        assert torch.equal(each["gather_from"][1], (grad + 10 * (rank + 1))[:, own])


def test_R50_groups_of_a_two_dimensional_grid() -> None:
    def groups(rank: int, accelerator: Accelerator, tensor: int) -> tuple[int, ...]:
        assert not model_parallel.model_parallel_is_initialized()
        joined(rank, tensor)
        found = (
            model_parallel.get_tensor_model_parallel_rank(),
            model_parallel.get_tensor_model_parallel_world_size(),
            model_parallel.get_data_parallel_rank(),
            model_parallel.get_data_parallel_world_size(),
        )
        model_parallel.destroy_model_parallel()
        return found

    assert on_ranks(4, 2, groups) == [(0, 2, 0, 2), (1, 2, 0, 2), (0, 2, 1, 2), (1, 2, 1, 2)]
    with pytest.raises(SpawnException, match="tensor is 3 for 4 ranks; allowed: a divisor"):
        on_ranks(4, 3, groups)
    with pytest.raises(RuntimeError, match="call initialize_model_parallel first"):
        model_parallel.get_tensor_model_parallel_rank()
