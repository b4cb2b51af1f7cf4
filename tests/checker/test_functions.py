"""Anyone's function: stock torch, a good kernel, a compensated one, one that splits by batch, and broken ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import samebits as sb
from samebits.checker import plan
from samebits.checker.adversary.likeness import candidates
from samebits.checker.adversary.serving import described
from samebits.checker.targets import OPERATORS
from samebits.records.report import Finding, Verdict

Function = Callable[..., Tensor]


def only(function: str | Function, promise: str, like: str | None = None, **narrowed: object) -> Finding:
    """The one finding about one promise, in float32, after a short search."""
    small: dict[str, object] = {"formats": ["float32"], "seconds": 1.0} | narrowed
    (finding,) = sb.check(function, like, promises=[promise], **small).findings  # type: ignore[arg-type]
    return finding


def test_stock_linear_changes_a_row_with_its_batch() -> None:
    finding = only("torch.nn.functional.linear", "batch")
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert " differ; first [" in finding.detail and " ulp)" in finding.detail
    assert finding.reproduce.startswith("samebits check torch.nn.functional.linear --like linear --case '")


def test_the_same_function_is_accurate_and_repeats() -> None:
    """One broken promise says nothing about another."""
    assert only(torch.nn.functional.linear, "accuracy", shape=(8, 64, 64)).verdict is Verdict.HOLDS


def test_a_function_too_slow_for_its_time_is_called_once_in_every_way() -> None:
    """Slow is not broken, and a busy machine is not the function's fault: each promise is tried before time ends it."""

    def slow(a: Tensor, b: Tensor) -> Tensor:
        time.sleep(0.05)
        return sb.ops.matmul(a, b)

    promises = ["repeat", "batch", "padding", "chunk", "accuracy"]
    report = sb.check(slow, "matmul", promises=promises, formats=["float32"], seconds=0.1)
    found = {finding.promise: (finding.verdict, finding.cases > 0) for finding in report.findings}
    assert found == dict.fromkeys(promises, (Verdict.HOLDS, True))


def test_stock_linear_has_several_orders() -> None:
    finding = only("torch.nn.functional.linear", "order")
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert "orders for 16 terms: rows 1" in finding.detail


@pytest.mark.parametrize("promise", ["batch", "accuracy", "order"])
@pytest.mark.parametrize("kernel", ["good", "kahan"])
def test_a_good_kernel_holds_whatever_its_order(kernel: str, promise: str) -> None:
    # A kernel that walks over k in Python is slow: a busy machine must still come to one call of each kind.
    finding = only(f"examples.my_kernel:{kernel}", promise, "matmul", seconds=2.0)
    assert finding.verdict is Verdict.HOLDS, finding.detail


def test_a_split_by_batch_is_found_by_bits_and_by_order() -> None:
    bits = only("examples.my_kernel:split_by_batch", "batch", "matmul")
    assert bits.verdict is Verdict.DOES_NOT_HOLD and "rows, places and neighbours" in bits.detail
    order = only("examples.my_kernel:split_by_batch", "order", "matmul")
    assert order.verdict is Verdict.DOES_NOT_HOLD
    assert "2 orders for 16 terms: rows 1, 2, 3 use 2 blocks of 8" in order.detail


def test_what_a_function_raises_for_some_rows_is_the_finding() -> None:
    def refuses(a: Tensor, b: Tensor) -> Tensor:
        if a.shape[0] == 1:
            raise RuntimeError("one row\nis too few")
        return a.double() @ b.double()

    finding = only(refuses, "batch", "matmul")
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert "raised RuntimeError: one row is too few" in finding.detail
    assert finding.reproduce.startswith("samebits.check(refuses, like='matmul', case='1x")


def test_what_a_function_always_raises_could_not_be_judged() -> None:
    def without_driver(a: Tensor, b: Tensor) -> Tensor:
        raise RuntimeError("Found no NVIDIA driver on your system")

    finding = only(without_driver, "batch", "matmul")
    assert finding.verdict is Verdict.COULD_NOT_BE_JUDGED
    assert finding.detail == "raised RuntimeError: Found no NVIDIA driver on your system"


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("(a @ b).T", "rows; the first axis must be the rows"),
        ("a @ b if len(a) > 1 else [a @ b]", "returned list; one Tensor is needed"),
        ("a @ b.detach()", "without a gradient"),
        ("(a @ b).int()", "dtype int32; allowed: float16, bfloat16, float32, float64"),
        ("(a @ b).to_sparse()", "layout torch.sparse_coo; allowed: torch.strided"),
    ],
)
def test_what_is_no_output_is_the_finding(returned: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(f"def odd(a, b):\n    return {returned}\n")
    finding = only(f"{tmp_path / 'odd.py'}:odd", "accuracy", "matmul")
    assert finding.verdict is Verdict.DOES_NOT_HOLD and words in finding.detail


@pytest.mark.parametrize(
    ("returned", "words"),
    [("(a @ b,)", "returned tuple"), ("[a @ b, None]", "returned list"), ("None", "returned NoneType")],
)
def test_what_never_returns_one_tensor_could_not_be_judged(returned: str, words: str, tmp_path: Path) -> None:
    """A sum with its log beside it, a residual: none of its bits were looked at, so none were found wrong."""
    (tmp_path / "pair.py").write_text(f"def pair(a, b):\n    return {returned}\n")
    finding = only(f"{tmp_path / 'pair.py'}:pair", "batch", "matmul")
    assert finding.verdict is Verdict.COULD_NOT_BE_JUDGED and finding.detail == f"{words}; one Tensor is needed"


@pytest.mark.parametrize("wrapped", ["{}", "torch.compile({}, backend='eager')"])
def test_a_module_is_called_as_its_forward_is_written(wrapped: str, tmp_path: Path) -> None:
    """Without a bias: a module's own call would take one, and anything else."""
    (tmp_path / "parts.py").write_text(
        "import torch\nfrom samebits import ops\n\n"
        "class Product(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('calls', torch.zeros((), dtype=torch.int64))\n\n"
        "    def forward(self, x, weight):\n"
        "        self.calls += 1\n"
        "        return ops.linear(x, weight)\n\n"
        f"linear = {wrapped.format('Product()')}\n"
    )
    finding = only(f"{tmp_path / 'parts.py'}:linear", "batch", "linear")
    assert finding.verdict is Verdict.HOLDS, finding.detail


@pytest.mark.parametrize(
    ("refuses", "words", "listed"),
    [
        (
            "a.shape[1] % 16 or b.shape[1] % 16",
            "status 3 was returned: K, N must be multiples of 16",
            "sizes it does not take, whatever the rows",
        ),
        (
            "not (a.is_contiguous() and b.is_contiguous())",
            "a and b must be contiguous",
            "layouts it does not take, whatever the rows",
        ),
    ],
)
def test_what_is_refused_whatever_the_rows_is_a_limit(refuses: str, words: str, listed: str, tmp_path: Path) -> None:
    text = f"from samebits import ops\n\ndef product(a, b):\n    if {refuses}:\n        raise ValueError({words!r})\n"
    (tmp_path / "picky.py").write_text(f"{text}    return ops.matmul(a, b)\n")
    report = sb.check(f"{tmp_path / 'picky.py'}:product", "matmul", formats=["float32"], seconds=1.0)
    assert report.verdict is Verdict.HOLDS, report.findings
    assert any(listed in note and words in note for note in report.notes), report.notes


def test_rows_that_are_refused_are_told_from_their_number(tmp_path: Path) -> None:
    (tmp_path / "strict.py").write_text(
        "def product(a, b):\n    if a.isnan().any():\n        raise ValueError('NaN')\n    return a @ b\n"
    )
    finding = only(f"{tmp_path / 'strict.py'}:product", "repeat", "matmul")
    assert finding.verdict is Verdict.DOES_NOT_HOLD and "raised ValueError: NaN" in finding.detail


def test_a_function_without_gradients_is_judged_forward() -> None:
    def forward_only(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, :, None].detach() * b[None].detach()).sum(1)

    report = sb.check(forward_only, "matmul", promises=["accuracy"], formats=["float32"], seconds=0.5)
    assert report.verdict is Verdict.HOLDS
    assert any("gradients, for its output has none" in note for note in report.notes)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_takes_a_bias_or_none(bias: bool) -> None:
    def with_bias(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
        return sb.ops.linear(x, w, bias)

    def without(x: Tensor, w: Tensor) -> Tensor:
        return sb.ops.linear(x, w)

    report = sb.check(
        with_bias if bias else without, like="linear", formats=["float32"], seconds=0.5, promises=["batch", "accuracy"]
    )
    assert report.verdict is Verdict.HOLDS, report.findings


def test_a_function_that_remembers_the_process_is_caught() -> None:
    """Planted: bits that depend on the process, equal within one. Which comparison of two processes meets them first is
    a matter of time: on a busy machine any of them may follow a fresh start."""
    finding = only("depends_on_process:by_process", "repeat", "matmul")
    assert finding.verdict is Verdict.DOES_NOT_HOLD and " differ; first " in finding.detail


@pytest.fixture(autouse=True)
def module_of_a_function_that_depends_on_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "depends_on_process.py").write_text(
        "import os\n\ndef by_process(a, b):\n    return (a @ b) * (1.0 + 2.0**-20 * os.getpid())\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_what_a_function_is_like_is_found_by_name_by_parameters_or_by_trying() -> None:
    def fast_rms_norm(x: Tensor, w: Tensor) -> Tensor:
        return sb.ops.rmsnorm(x, w)

    def spelled(gate: Tensor, up: Tensor) -> Tensor:
        return sb.ops.swiglu(gate, up)

    def tried(x: Tensor, y: Tensor) -> Tensor:
        return sb.ops.matmul(x, y)

    for function, like in ((fast_rms_norm, "rmsnorm"), (spelled, "swiglu"), (tried, "matmul")):
        forms = candidates(function.__name__, described(function)["parameters"], None, OPERATORS)
        names = [form.spec.name for form in forms]
        assert like in names and (len(names) == 1 or function is tried)
    assert only(tried, "batch").verdict is Verdict.HOLDS
    with pytest.raises(ValueError, match="no spec is called 'lineer'; did you mean 'linear'"):
        plan(torch.atan2, "lineer")


def test_a_function_that_cannot_take_the_arguments_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"takes \(a, b\); 'softmax' hands over \(x\)"):
        sb.check("examples.my_kernel:good", "softmax")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("matmull", "no component is called 'matmull'; did you mean 'matmul'"),
        ("no.such.module:f", "'no.such.module:f' cannot be imported: no module named 'no.such.module'"),
        ("examples.my_kernel:nix", "'examples.my_kernel:nix' cannot be imported: examples.my_kernel has no 'nix'"),
        ("math.pi", "'math.pi' is float; a function is needed"),
        (3, "a component, its name or a function can be judged; got int"),
    ],
)
def test_a_target_that_is_none_is_named(target: str, words: str) -> None:
    with pytest.raises(ValueError) as raised:
        sb.check(target, "matmul" if isinstance(target, str) and ":" in target else None)
    assert words in str(raised.value)
