"""What could run past invariant mode in silence: threads, packages, scripts, hooks, casts, cuts: kept or refused."""

from __future__ import annotations

import queue
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from samebits.invariant import InvariantError, InvariantWarning, invariant_mode
from samebits.numerics.bits import same_bits
from samebits.numerics.recipes import make

F = torch.nn.functional
X = torch.from_numpy(make("normal", (24, 40), 1))
MM = "aten.addmm.default"


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(40, 48), nn.LayerNorm(48), nn.SiLU(), nn.Linear(48, 8))


def inside(model: nn.Module) -> Tensor:
    with invariant_mode(), torch.no_grad():
        return model(X)


def test_a_thread_of_the_block_runs_in_the_mode(model: nn.Module) -> None:
    found: list[Tensor] = []
    with invariant_mode() as mode:
        thread = threading.Thread(target=lambda: found.append(model(X).detach()))
        thread.start()
        thread.join()
    assert same_bits(found[0], inside(model)) and mode.routed[MM] == 2


def test_a_pools_task_runs_in_the_mode_and_its_thread_is_free_after_it(model: nn.Module) -> None:
    with ThreadPoolExecutor(1) as pool:
        stock = pool.submit(model, X).result().detach()
        with invariant_mode() as mode:
            kept = pool.submit(model, X).result().detach()
        after = pool.submit(model, X).result().detach()
    assert same_bits(kept, inside(model)) and mode.routed[MM] == 2 and same_bits(stock, after)


def test_a_pool_that_begins_in_the_block_does_not_stay_in_the_mode(model: nn.Module) -> None:
    with ThreadPoolExecutor(1) as pool:
        with invariant_mode():
            pool.submit(model, X).result()
        with pytest.raises(InvariantError), invariant_mode():
            pool.submit(F.mish, X).result()
        assert pool.submit(F.mish, X).result().shape == X.shape


def test_a_module_in_a_thread_that_was_there_before_is_named(model: nn.Module) -> None:
    """Torch has no hook for it: said once."""
    work: queue.Queue[Callable[[], Any] | None] = queue.Queue()
    done: queue.Queue[Any] = queue.Queue()

    def serve() -> None:
        while (task := work.get()) is not None:
            done.put(task())

    thread = threading.Thread(target=serve, name="old worker")
    thread.start()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with invariant_mode():
                for _ in range(2):
                    work.put(lambda: model(X))
                    done.get(timeout=60)
    finally:
        work.put(None)
        thread.join()
    texts = [str(each.message) for each in told if issubclass(each.category, InvariantWarning)]
    assert len(texts) == 1 and "Sequential is called in thread 'old worker'" in texts[0]


def test_packages_scripts_and_replays_are_refused() -> None:
    scripted = torch.jit.script(_scripted)
    loader = torch._C._aoti.AOTIModelPackageLoader
    calls: dict[str, Callable[[], Any]] = {
        "call the model that was compiled": lambda: loader.run(loader.__new__(loader), [X]),
        "AOTInductor": lambda: loader.boxed_run(loader.__new__(loader), [X]),
        "that was scripted": lambda: scripted(X),
        "replay it after the block": lambda: torch.cuda.CUDAGraph.replay(None),
    }
    for words, function in calls.items():
        with invariant_mode(), pytest.raises(InvariantError, match=words):
            function()
    assert scripted(X).shape == X.shape
    with invariant_mode(strict=False) as mode:
        scripted(X)
    assert mode.unverified["ScriptFunction.__call__"] == 1


def _scripted(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * 2 + x


@pytest.mark.parametrize("way", ["save_on_cpu", "checkpoint", "hooks of one's own"])
def test_backward_outside_is_refused_whatever_keeps_the_tensors(model: nn.Module, way: str) -> None:
    def forward() -> Tensor:
        if way == "checkpoint":
            return checkpoint(model, X, use_reentrant=False).sum()
        hooks = (
            save_on_cpu()
            if way == "save_on_cpu"
            else torch.autograd.graph.saved_tensors_hooks(Tensor.clone, Tensor.clone)
        )
        with hooks:
            return model(X).sum()

    with invariant_mode():
        loss = forward()
    with pytest.raises(InvariantError, match="called outside of it"):
        loss.backward()
    with invariant_mode():
        forward().backward()
    found = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    with invariant_mode():
        model(X).sum().backward()
    assert all(same_bits(a, each.grad) for a, each in zip(found, model.parameters(), strict=True))


CUT_MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear and layer norm": lambda: nn.Sequential(nn.Linear(40, 48), nn.LayerNorm(48), nn.SiLU(), nn.Linear(48, 8)),
    "rms norm": lambda: nn.Sequential(nn.Linear(40, 48), nn.RMSNorm(48), nn.Linear(48, 8)),
}


def accumulated(model: nn.Module, cuts: tuple[int, ...], autocast: bool) -> dict[str, Tensor]:
    model.zero_grad()
    with invariant_mode():
        for part in X.split(list(cuts)):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y = model(part)
            (y.float() * torch.cos(torch.arange(8))).sum().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters()}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", CUT_MODELS)
def test_a_cut_changes_no_weight_gradient(name: str, autocast: bool) -> None:
    """LayerNorm's and RMSNorm's weights too, and weights that autocast converts: nothing is said, nothing differs."""
    torch.manual_seed(5)
    model = CUT_MODELS[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("error", InvariantWarning)
        whole = accumulated(model, (24,), autocast)
        for cuts in ((12, 12), (1, 23), (5, 9, 10)):
            part = accumulated(model, cuts, autocast)
            assert [key for key in whole if not same_bits(whole[key], part[key])] == []
    exact = CUT_MODELS[name]().double()
    exact.load_state_dict(model.state_dict())
    (exact(X.double()) * torch.cos(torch.arange(8).double())).sum().backward()
    for key, each in exact.named_parameters():
        bound = (2**-6 if autocast else 2**-16) * float(each.grad.abs().max())
        assert float((whole[key] - each.grad).abs().max()) <= bound


class Positions(nn.Module):
    """Rows of a table that every sequence of the batch gets: their gradient is a sum over the batch, then over ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 40)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x.reshape(-1, 6, 40) + self.table(torch.arange(6)[None]))


def test_a_sum_of_sums_that_a_cut_may_change_is_said() -> None:
    torch.manual_seed(6)
    model = Positions()
    with invariant_mode(), pytest.warns(InvariantWarning, match="cut into micro-batches can show in its last bits"):
        for part in X.split(12):
            model(part).sum().backward()


def test_ranks_that_add_are_refused_with_the_way(tmp_path: Any) -> None:
    """DDP and FSDP2 on one rank: what only moves values is kept, the backend's sum is refused."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        plain = nn.Linear(40, 3)
        wrapped, waiting = (nn.parallel.DistributedDataParallel(deepcopy(plain)) for _ in range(2))
        sharded = deepcopy(plain)
        fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
        with invariant_mode():
            plain(X).sum().backward()
            with pytest.raises(InvariantError, match=r"model\.no_sync\(\).*collectives\.all_reduce"):
                wrapped(X).sum().backward()
            with waiting.no_sync():
                waiting(X).sum().backward()
            sharded(X).sum().backward()
            with pytest.raises(InvariantError, match=r"fsdp\.add_by_tree\(model, world\)"):
                torch.distributed.reduce_scatter_tensor(torch.empty(5), torch.ones(5))
        assert same_bits(sharded.weight.grad.full_tensor(), plain.weight.grad)
        assert same_bits(waiting.module.weight.grad, plain.weight.grad)
    finally:
        torch.distributed.destroy_process_group()


def test_after_a_block_a_module_is_compiled_whole() -> None:
    """What a block leaves behind is nothing that a compiler stumbles over."""
    with invariant_mode():
        pass
    module = nn.Linear(4, 3)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    x = torch.randn(2, 4)
    assert torch.equal(compiled(x), module(x))
