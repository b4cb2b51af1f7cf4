"""Anyone's function: stock torch, a good kernel, a compensated one, one that splits by batch, and broken ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import samebits as sb
from samebits.checker import plan
from samebits.records.report import Finding, Verdict

Function = Callable[..., Tensor]


def only(function: str | Function, promise: str, like: str | None = None, **narrowed: object) -> Finding:
    """The one finding about one promise, on a small input."""
    small: dict[str, object] = {"formats": ["float32"], "recipe": "normal"} | narrowed
    (finding,) = sb.check(function, like, promises=[promise], **small).findings  # type: ignore[arg-type]
    return finding


def test_stock_linear_changes_a_row_with_its_batch() -> None:
    finding = only("torch.nn.functional.linear", "batch", shape=(8, 64, 64), seed=1)
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert finding.detail.startswith("8x64x64 normal float32 seed 1: row 0 alone against the whole batch: output: ")
    assert " differ; first [0, " in finding.detail and " ulp)" in finding.detail
    assert finding.reproduce == (
        "samebits check torch.nn.functional.linear --like linear --promise batch --backend cpu "
        "--shape 8x64x64 --recipe normal --format float32 --seed 1"
    )


def test_the_same_function_is_accurate_and_repeats() -> None:
    """One broken promise says nothing about another."""
    assert only(torch.nn.functional.linear, "accuracy", shape=(8, 64, 64)).verdict is Verdict.HOLDS
    assert only(torch.nn.functional.linear, "repeat", shape=(8, 64, 64)).verdict is Verdict.HOLDS


def test_stock_linear_has_several_orders() -> None:
    finding = only("torch.nn.functional.linear", "order")
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert "orders for 64 terms: rows 1" in finding.detail
    assert finding.reproduce.endswith("--promise order --backend cpu --format float32")


@pytest.mark.parametrize("promise", ["batch", "accuracy"])
def test_a_good_kernel_holds(promise: str) -> None:
    finding = only("examples.my_kernel:good", promise, "matmul", shape=(9, 40, 12))
    assert finding.verdict is Verdict.HOLDS, finding.detail


def test_a_good_kernel_has_one_order() -> None:
    finding = only("examples.my_kernel:good", "order", "matmul", shape=(9, 40, 12))
    assert finding.verdict is Verdict.HOLDS, finding.detail
    assert "300 of 300 vectors replayed" in finding.detail


def test_kahan_has_no_order_of_plain_additions() -> None:
    finding = only("examples.my_kernel:kahan", "order", "matmul", shape=(3, 40, 12))
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert "the order found does not replay" in finding.detail
    assert "compensated or wider accumulator?" in finding.detail


def test_a_split_by_batch_is_found_by_bits_and_by_order() -> None:
    bits = only("examples.my_kernel:split_by_batch", "batch", "matmul", shape=(9, 40, 12))
    assert bits.verdict is Verdict.DOES_NOT_HOLD and "row 0 alone against the whole batch" in bits.detail
    order = only("examples.my_kernel:split_by_batch", "order", "matmul")
    assert order.verdict is Verdict.DOES_NOT_HOLD
    assert "2 orders for 64 terms: rows 1, 2, 3 use 2 blocks of 32" in order.detail
    assert "rows 8, 64, 129 use chain of 64, one at a time" in order.detail


def test_float64_accumulation_is_no_float32_order() -> None:
    def wide(a: Tensor, b: Tensor) -> Tensor:
        return (a.double() @ b.double()).to(a.dtype)

    finding = only(wide, "order", "matmul", shape=(3, 40, 12))
    assert finding.verdict is Verdict.DOES_NOT_HOLD and "wider accumulator?" in finding.detail


def test_what_a_function_raises_is_the_finding() -> None:
    def refuses(a: Tensor, b: Tensor) -> Tensor:
        if a.shape[0] == 1:
            raise RuntimeError("one row\nis too few")
        return a @ b

    finding = only(refuses, "batch", "matmul", shape=(8, 16, 4))
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert finding.detail.endswith("8x16x4 normal float32 seed 3: raised RuntimeError: one row is too few")
    assert finding.reproduce == "samebits.check(refuses, like='matmul', promises=['batch'], backend='cpu')"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda a, b: (a @ b).T, "returned shape [5, 8] for 8 rows; the first axis must be the rows"),
        (lambda a, b: [a @ b], "returned list; one Tensor is needed"),
        (lambda a, b: a @ b.detach(), "backward raised RuntimeError: The differentiated Tensor at index 1"),
    ],
)
def test_what_is_no_output_is_the_finding(function: Function, words: str) -> None:
    finding = only(function, "accuracy", "matmul", shape=(8, 16, 5))
    assert finding.verdict is Verdict.DOES_NOT_HOLD and words in finding.detail


def test_a_function_without_gradients_is_judged_forward() -> None:
    def forward_only(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, :, None].detach() * b[None].detach()).sum(1)

    work = plan(forward_only, "matmul", promises=["accuracy"])
    assert any("gradients, for its output has none" in line for line in work.not_asked)
    assert only(forward_only, "accuracy", "matmul", shape=(8, 16, 4)).verdict is Verdict.HOLDS


def test_another_process_is_asked_where_it_can_import_the_function() -> None:
    here = only(
        lambda x, weight, bias: torch.nn.functional.linear(x, weight, bias), "repeat", "linear", shape=(8, 16, 4)
    )
    assert here.verdict is Verdict.HOLDS and "this process only" in here.detail
    both = only("torch.nn.functional.linear", "repeat", shape=(8, 16, 4))
    assert both.verdict is Verdict.HOLDS and "this process only" not in both.detail


def test_a_function_that_remembers_the_process_is_caught() -> None:
    """Planted: bits that depend on the process, equal within one."""
    finding = only("depends_on_process:by_process", "repeat", "matmul", shape=(8, 16, 4))
    assert finding.verdict is Verdict.DOES_NOT_HOLD and " in a fresh process, " in finding.detail


@pytest.fixture(autouse=True)
def module_of_a_function_that_depends_on_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "depends_on_process.py").write_text(
        "import os\n\ndef by_process(a, b):\n    return (a @ b) * (1.0 + 2.0**-20 * os.getpid())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_the_door_is_found_by_name_or_asked_for() -> None:
    assert plan(torch.mm).judgements[0].setting.door.name == "matmul"
    assert plan(torch.nn.functional.rms_norm).judgements[0].setting.door.name == "rmsnorm"
    with pytest.raises(ValueError, match="'atan2' is no door's name; say which it is like: adamw, attention"):
        plan(torch.atan2)
    with pytest.raises(ValueError, match="no door is called 'lineer'; did you mean 'linear'"):
        plan(torch.atan2, "lineer")


def test_a_function_that_cannot_take_the_arguments_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"takes \(a, b\); the door 'linear' hands over \(x, weight, bias\)"):
        plan("examples.my_kernel:good", "linear")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("matmull", "no room is called 'matmull'; did you mean 'matmul'"),
        ("no.such.module:f", "'no.such.module:f' cannot be imported: no module named 'no.such.module'"),
        ("examples.my_kernel:nix", "'examples.my_kernel:nix' cannot be imported: examples.my_kernel has no 'nix'"),
        ("math.pi", "'math.pi' is float; a function is needed"),
        (3, "a room, its name or a function can be judged; got int"),
    ],
)
def test_a_target_that_is_none_is_named(target: str, words: str) -> None:
    with pytest.raises(ValueError) as raised:
        plan(target)
    assert words in str(raised.value)
