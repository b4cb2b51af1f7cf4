"""AdamW on the CPU: its reference bit for bit, trajectories, the optimizer's states, torch's own AdamW, bad input."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from samebits import native
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.adamw import AdamW, adamw_
from samebits.ops.adamw.reference import power
from samebits.ops.rounding import FLOAT32_ROUNDOFF

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SHAPES = ((), (1,), (7, 33), (5, 257))
RECIPES = ("normal", "wide", "subnormal", "infinite", "zeros_signed")
NUMBERS: dict[str, Any] = {"lr": 1e-2, "beta2": 0.95, "weight_decay": 0.1}


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (
        torch.from_numpy(make(recipe, shape or (1,), seed, str(dtype).removeprefix("torch."))).reshape(shape).to(dtype)
    )


def step_of(
    recipe: str, shape: tuple[int, ...], dtype: torch.dtype, grad_dtype: torch.dtype, with_master: bool, **options: Any
) -> dict[str, Tensor]:
    """Everything that one step writes."""
    param, grad = tensor(recipe, shape, 1, dtype), tensor(recipe, shape, 2, dtype).to(grad_dtype)
    written = {"exp_avg": tensor(recipe, shape, 3), "exp_avg_sq": tensor(recipe, shape, 4).square()}
    if with_master:
        written["master"] = param.float() * 1.0009765625
    adamw_(param, grad, **written, **NUMBERS, **{"step": 3, **options})
    return {"param": param, **written}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_equals_its_reference(dtype: torch.dtype, recipe: str) -> None:
    """cpu == reference, bit for bit, for gradients of both widths, with and without a master weight."""
    for shape, grad_dtype, master in itertools.product(SHAPES, {dtype, torch.float32}, (False, True)):
        for step in (1, 3, 100_000):
            ours = step_of(recipe, shape, dtype, grad_dtype, master, step=step)
            reference = step_of(recipe, shape, dtype, grad_dtype, master, step=step, backend="reference")
            for name in reference:
                difference = compare(ours[name], reference[name])
                assert difference is None, f"{shape} {grad_dtype} master={master} step={step} {name}: {difference}"


def test_the_power_of_a_beta() -> None:
    """Within a rounding a squaring of the C library's pow, and exact where it can be."""
    assert power(0.5, 30) == 2.0**-30
    assert power(0.9, 1) == 0.9
    for exponent in (2, 3, 17, 1000, 123_456):
        assert power(0.999, exponent) == pytest.approx(0.999**exponent, rel=2 * exponent * 2.0**-53)


def model(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    """Tensors of several sizes, one longer than a task of a thread, one empty."""
    return [
        torch.nn.Parameter(tensor("normal", shape, seed, dtype))
        for seed, shape in enumerate(((70_001,), (33, 70), (1,), (0, 4)))
    ]


def train(optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Gradients depend on the step's number and on the parameters themselves."""
    for step in steps:
        for seed, param in enumerate(optimizer.param_groups[0]["params"]):
            noise = tensor("normal", tuple(param.shape), 100 * step + seed, param.dtype)
            param.grad = (noise + param.detach() * 0.5).to(param.dtype)
        optimizer.step()


def test_trajectories_do_not_depend_on_threads() -> None:
    """4 steps: baseline == avx2 == avx512, for 1 to 9 threads, parameters and states."""
    trajectories = []
    for instruction_set, threads in itertools.product(native.instruction_sets(), (1, 2, 9)):
        params = model()
        optimizer = AdamW(params, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
        with launching(threads=threads, instruction_set=instruction_set):
            train(optimizer, range(4))
        trajectories.append([*params, *(optimizer.state[param]["exp_avg_sq"] for param in params)])
    for found in trajectories[1:]:
        for left, right in zip(found, trajectories[0], strict=True):
            assert compare(left.detach(), right.detach()) is None


def test_the_optimizer_is_the_function() -> None:
    params, lonely = model(), model()
    train(AdamW(params, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1), range(3))
    states = [(torch.zeros(param.shape), torch.zeros(param.shape)) for param in lonely]
    for step in range(3):
        for seed, param in enumerate(lonely):
            grad = tensor("normal", tuple(param.shape), 100 * step + seed) + param.detach() * 0.5
            adamw_(param, grad, *states[seed], step=step + 1, **NUMBERS)
    for left, right in zip(params, lonely, strict=True):
        assert compare(left.detach(), right.detach()) is None


@pytest.mark.parametrize("foreach", [False, True])
def test_near_torch(foreach: bool) -> None:
    """8 steps beside torch.optim.AdamW: a few roundings a step, of the weight and of the step taken."""
    ours, theirs = model(), model()
    options: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}
    steps = 8
    train(AdamW(ours, **options), range(steps))
    train(torch.optim.AdamW(theirs, foreach=foreach, **options), range(steps))
    for left, right in zip(ours, theirs, strict=True):
        if not left.numel():
            continue
        left, right = left.detach(), right.detach()
        # |m^| / sqrt(v^) is at most 1 / sqrt(1 - 0.95) = 4.5; its roundings pass on through both moments, and each
        # side's differences come back through the gradient, half of the weight.
        each = 4 * FLOAT32_ROUNDOFF * float(right.abs().max()) + 1e-2 * 16 * steps * FLOAT32_ROUNDOFF * 4.5
        assert float((left - right).abs().max()) <= 2 * steps * each


def test_moments_ignore_weight_and_decay() -> None:
    """m and v depend on gradients alone; g = m = v = 0 leaves param * (1 - lr decay), bit for bit; v >= 0."""
    grad = tensor("normal", (300,), 1)
    found = []
    for weight_decay, scale in ((0.0, 1.0), (0.5, 7.0)):
        first, second = torch.zeros(300), torch.zeros(300)
        adamw_(tensor("normal", (300,), 2) * scale, grad, first, second, step=1, lr=0.1, weight_decay=weight_decay)
        found.append((first, second))
    assert compare(found[0][0], found[1][0]) is None and compare(found[0][1], found[1][1]) is None
    assert bool((found[0][1] >= 0).all())
    param = tensor("normal", (300,), 2)
    still = adamw_(
        param.clone(), torch.zeros(300), torch.zeros(300), torch.zeros(300), step=1, lr=0.1, weight_decay=0.5
    )
    assert compare(still, param * torch.tensor(1 - 0.1 * 0.5)) is None


@pytest.mark.parametrize("master_weights", [False, True])
def test_states_survive_a_state_dict(master_weights: bool) -> None:
    """10 steps == 5 steps, a state dict, 5 steps: float32 states of bfloat16 parameters keep every bit."""
    options: dict[str, Any] = {"lr": 1e-3, "master_weights": master_weights}
    straight, resumed = model(torch.bfloat16), model(torch.bfloat16)
    train(AdamW(straight, **options), range(10))
    first = AdamW(resumed, **options)
    train(first, range(5))
    second = AdamW(resumed, **options)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.state[resumed[0]]["exp_avg"].dtype == torch.float32
    train(second, range(5, 10))
    for left, right in zip(straight, resumed, strict=True):
        assert compare(left.detach(), right.detach()) is None


def test_master_weights_keep_small_steps() -> None:
    """Steps below half an ulp of bfloat16 vanish without a master weight and add up with one."""
    for master_weights, moves in ((False, False), (True, True)):
        param = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
        optimizer = AdamW([param], lr=1e-4, weight_decay=0.0, master_weights=master_weights)
        for _ in range(100):
            param.grad = torch.ones_like(param)
            optimizer.step()
        assert bool((param < 1).all()) is moves
        if master_weights:
            assert compare(optimizer.state[param]["master"].bfloat16(), param.detach()) is None


def test_groups_closures_and_missing_gradients() -> None:
    """A group's own numbers; a late parameter counts its own steps; None is no gradient; a closure's loss returns."""
    early, late, alone = (torch.nn.Parameter(torch.ones(3)) for _ in range(3))
    optimizer = AdamW([{"params": [early, late]}, {"params": [alone], "lr": 0.5}], lr=0.1)
    early.grad = alone.grad = torch.ones(3)
    assert optimizer.step(lambda: 2.5) == 2.5
    assert late not in optimizer.state and bool((late == 1).all())
    late.grad = torch.ones(3)
    optimizer.step()
    assert [optimizer.state[param]["step"] for param in (early, late, alone)] == [2, 1, 2]
    once = adamw_(torch.ones(3), torch.ones(3), torch.zeros(3), torch.zeros(3), step=1, lr=0.1)
    assert compare(late.detach(), once) is None
    assert bool((alone < early).all())


def test_layouts_do_not_matter() -> None:
    param, grad, first, second = (tensor("normal", (6, 40), seed) for seed in range(4))
    second = second.square()
    given = [part.T.contiguous().T for part in (param, grad, first, second)]
    for written in (param, first, second):
        assert written.is_contiguous()
    adamw_(param, grad, first, second, step=2, lr=0.1)
    adamw_(*given, step=2, lr=0.1)
    for left, right in zip((param, first, second), (given[0], given[2], given[3]), strict=True):
        assert compare(left, right) is None


def test_a_poisoned_element_stays_alone() -> None:
    grad = torch.ones(40)
    grad[7] = torch.nan
    param = adamw_(torch.ones(40), grad, torch.zeros(40), torch.zeros(40), step=1, lr=0.1)
    assert int(param.isnan().sum()) == 1 and bool(param[7].isnan())


def test_backward_notices_the_change() -> None:
    """A weight that was changed between forward and backward is an error, as with torch's own optimizers."""
    param = torch.nn.Parameter(torch.ones(3))
    loss = (param * param).sum()
    adamw_(param, torch.ones(3), torch.zeros(3), torch.zeros(3), step=1, lr=0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_torch_accepts_the_operator() -> None:
    numbers = (3, 1e-2, 0.9, 0.95, 1e-8, 0.1, "cpu")
    for masters in ([], [torch.randn(6, 5), torch.randn(3)]):
        lists = [[torch.rand(6, 5), torch.rand(3)] for _ in range(4)]
        torch.library.opcheck(torch.ops.samebits.adamw_.default, (*lists, masters, *numbers))


@torch.no_grad()
@pytest.mark.long
def test_compiled_equals_eager() -> None:
    def step(param: Tensor, grad: Tensor, first: Tensor, second: Tensor) -> Tensor:
        return adamw_(param, grad * 2, first, second, step=4, lr=0.1) + 1

    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for size in (3, 64):
        given = [torch.rand(size, 5) for _ in range(4)]
        copies = [part.clone() for part in given]
        assert compare(compiled(*copies), step(*given)) is None
        for left, right in zip(copies, given, strict=True):
            assert compare(left, right) is None


ONES = torch.ones(3)


def call(*tensors: Tensor, **changed: Any) -> Tensor:
    given = [tensors[place] if place < len(tensors) else torch.ones(3) for place in range(4)]
    return adamw_(*given, **{"step": 1, "lr": 0.1, **changed})


BAD = {
    "step": (lambda: call(step=0), r"adamw_: step is 0; allowed: a whole number, 1 to 2\^63 - 1"),
    "step not whole": (lambda: call(step=1.5), "step is 1.5; allowed: a whole number"),
    "lr": (lambda: call(lr=-1.0), "lr is -1.0; allowed: finite, at least 0"),
    "lr tensor": (lambda: call(lr=torch.tensor(0.1)), "lr is a Tensor; allowed: a number"),
    "beta1": (lambda: call(beta1=1.0), "beta1 is 1.0; allowed: 0 to 1, 1 left out"),
    "beta2": (lambda: call(beta2=math.nan), "beta2 is nan; allowed: 0 to 1, 1 left out"),
    "eps": (lambda: call(eps=0.0), r"eps is 0.0; allowed: finite, at least 2\^-126"),
    "weight_decay": (lambda: call(weight_decay=math.inf), "weight_decay is inf; allowed: finite, at least 0"),
    "param dtype": (lambda: call(torch.ones(3).double()), "param has dtype float64; allowed with backend='cpu'"),
    "grad dtype": (lambda: call(ONES, ONES.half()), "grad has dtype float16; allowed: float32"),
    "state dtype": (lambda: call(ONES.half(), ONES.half(), ONES.half()), "exp_avg has dtype float16; allowed: float32"),
    "shape": (lambda: call(ONES, torch.ones(4)), r"grad has shape \(4,\), param has \(3,\); they must agree"),
    "sparse": (lambda: call(ONES, ONES.to_sparse()), "grad has layout torch.sparse_coo; allowed: strided"),
    "memory": (lambda: call(ONES, ONES), "grad shares its memory with param; give each memory of its own"),
    "wrong device": (lambda: call(backend="triton"), "backend='triton' takes tensors on 'cuda', got one on 'cpu'"),
    "optimizer lr": (lambda: AdamW([torch.nn.Parameter(ONES)], lr=-0.1), "AdamW: lr is -0.1; allowed: finite"),
    "optimizer betas": (lambda: AdamW([torch.nn.Parameter(ONES)], betas=(0.9,)), r"betas is \(0.9,\); allowed: two"),  # type: ignore[arg-type]
    "group eps": (
        lambda: AdamW([{"params": [torch.nn.Parameter(ONES)], "eps": -1.0}]),
        "AdamW: eps is -1.0; allowed: finite",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str) -> None:
    make_it, text = BAD[case]
    with pytest.raises(TypeError if case == "lr tensor" else ValueError, match=text) as caught:
        make_it()  # type: ignore[no-untyped-call]
    assert "\n" not in str(caught.value)
