"""The adversary catches planted faults, accuses no sound kernel, and what it prints shows the fault again.

Every ninth of the planted kernels here; all of them in tests/long."""

from __future__ import annotations

import itertools
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from tests.checker.kernels import FOLDER, faulty, name, sound
from torch import Tensor

import samebits as sb
from samebits.checker.adversary import Request, examine, one_order, origin_of_text, watching, workers
from samebits.checker.adversary.any_formula import with_any_formula
from samebits.checker.adversary.coverage import Coverage
from samebits.checker.adversary.frames import BrokenPipeMessageError, receive, send
from samebits.checker.adversary.held import Held
from samebits.checker.adversary.layouts import joined, laid_out
from samebits.checker.adversary.nearness import any_order, one_sided
from samebits.checker.adversary.pool import KINDS, MIXED, kinds_of, make_pool
from samebits.checker.adversary.situations import THREADS, threads_near
from samebits.checker.adversary.sizes import LARGE, REMAINDERS
from samebits.checker.adversary.stranger_process import fork_for
from samebits.checker.adversary.trial import Trial, arrangement, parse_trial
from samebits.checker.targets import OPERATORS, find_spec
from samebits.numerics.recipes import make
from samebits.records.report import Report, UnjudgedError, Verdict

MATMUL = FOLDER / "matmul.py"


def checked(target: str, like: str | None, seconds: float = 30.0) -> Report:
    """The default check, without making what it finds small."""
    return examine(Request(origin=origin_of_text(target), like=like, seconds=seconds, shrink_seconds=0.5), OPERATORS)


@pytest.mark.parametrize(("target", "like"), faulty()[::14], ids=lambda each: name(each) if ":" in each else "")
def test_a_planted_fault_is_caught(target: str, like: str) -> None:
    report = checked(target, like)
    assert report.verdict is Verdict.DOES_NOT_HOLD, report.notes
    (finding,) = report.findings
    assert finding.reproduce.startswith(f"samebits check {target} --like {like} ")


@pytest.mark.parametrize(
    ("fault", "case"),
    [
        ("weight_gradient_without_the_last_row", "65x2x1 rows=normal pick=n1 requires=b"),
        ("input_gradient_beside_a_silent_row", "8x67x12 pick=n1z3 requires=a"),
        ("split_for_rows_far_apart", "28x67x12 layouts=a:w"),
        ("forgets_the_last_product_of_one_remainder", "5x663x3 rows=normal"),
    ],
)
def test_one_case_shows_what_is_seldom(fault: str, case: str) -> None:
    """A sum over rows beside its exact value, rows into which nothing flows, wide strides, an odd remainder."""
    (found,) = sb.check(f"{MATMUL}:{fault}", "matmul", case=case).findings
    assert found.verdict is Verdict.DOES_NOT_HOLD, found.detail
    (healthy,) = sb.check(f"{FOLDER / 'sound.py'}:matmul_with_its_own_backward", "matmul", case=case).findings
    assert healthy.verdict is Verdict.HOLDS, healthy.detail


def test_refusing_gradients_is_a_limit() -> None:
    report = checked(f"{FOLDER / 'sound.py'}:matmul_without_gradients", "matmul", seconds=2.0)
    assert report.verdict is Verdict.HOLDS, report.findings
    assert any("it takes no argument that requires one: raised RuntimeError" in note for note in report.notes)


def test_few_rows_beside_a_layers_weight_are_tried() -> None:
    report = checked(f"{MATMUL}:split_for_few_rows_and_a_large_weight", "matmul")
    (finding,) = report.findings
    assert finding.verdict is Verdict.DOES_NOT_HOLD, report.notes
    assert "x1024x1024 " in finding.detail


@pytest.mark.parametrize(
    ("empty", "words"),
    [
        ("raise ValueError('no rows')", "raised ValueError: no rows"),
        ("return b[:1]", "returned shape [1, 12] for 0 rows"),
        ("return a", "returned float32[0, 67]; an empty one is float32[0, 12]"),
        ("import os; os._exit(3)", "ended its process in the middle of a call, exit code 3"),
    ],
)
def test_what_a_batch_without_rows_gives_is_said(empty: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text(
        "from samebits import ops\n\n"
        f"def product(a, b):\n    if not len(a):\n        {empty}\n    return ops.matmul(a, b)\n"
    )
    report = checked(f"{tmp_path / 'some.py'}:product", "matmul", seconds=1.0)
    assert report.verdict is Verdict.HOLDS, report.findings
    (note,) = [each for each in report.notes if "without rows" in each]
    assert words in note, note


def test_rows_of_nan_have_every_kind_of_it() -> None:
    """Both signs, quiet and signalling, least and greatest payload: among the rows of every promise's calls."""
    spec, _ = find_spec("matmul", OPERATORS)
    for format, whole in (("float32", torch.int32), ("bfloat16", torch.int16), ("float16", torch.int16)):
        pool = make_pool(spec, Trial(sizes=(1, 67, 12), format=format))
        row = pool.arguments["a"][pool.kinds.index("nan")]
        bits = {int(each) for each in row.view(whole)}
        assert bool(row.isnan().all()) and len(bits) == 5
        assert {each < 0 for each in bits} == {True, False} and -1 in bits


def test_rows_with_zeros_that_take_another_order_are_two_orders(tmp_path: Path) -> None:
    """Planted: each row has its own bits in every batch, and only an order tells that there are two."""
    (tmp_path / "skips.py").write_text(
        "from samebits import ops\n\n"
        "def product(a, b):\n"
        "    zeros, y = (a == 0).any(-1), ops.matmul(a, b).clone()\n"
        "    y[zeros] = ops.matmul(a[zeros].flip(1), b.flip(0))\n"
        "    return y\n"
    )
    (finding,) = sb.check(f"{tmp_path / 'skips.py'}:product", "matmul", promises=["order"]).findings
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert "and not this order where zeros of both signs are among the terms" in finding.detail


def test_the_order_of_what_takes_a_number_of_each_row_is_asked(tmp_path: Path) -> None:
    (tmp_path / "experts.py").write_text(
        "from samebits import ops\n\n"
        "def experts(x, expert, weight):\n"
        "    return ops.grouped_matmul(x, weight, expert)\n"
    )
    (finding,) = sb.check(f"{tmp_path / 'experts.py'}:experts", "grouped_matmul", promises=["order"]).findings
    assert finding.verdict is Verdict.HOLDS and "chain of 16" in finding.detail


def test_every_remainder_by_sixteen_is_among_the_long_sizes() -> None:
    assert {size % 16 for size in (*LARGE, *REMAINDERS) if size > 256} == set(range(16))


def test_rows_in_two_axes_are_asked_of_a_function_that_counts_axes() -> None:
    """A batch of sequences; the case that is printed shows it again."""
    target = f"{FOLDER / 'linear.py'}:other_for_a_batch_of_sequences"
    (finding,) = checked(target, "linear").findings
    assert finding.verdict is Verdict.DOES_NOT_HOLD
    assert "rows in two axes" in finding.detail and "fold=" in finding.detail
    case = finding.reproduce.partition("--case ")[2].strip("'")
    again = examine(Request(origin=origin_of_text(target), like="linear", case=case), OPERATORS)
    assert again.verdict is Verdict.DOES_NOT_HOLD


def test_of_a_function_written_for_one_axis_two_are_a_note() -> None:
    """Its loop over rows would take a whole sequence at once: said, and no part of the verdict."""
    report = checked(f"{FOLDER / 'sound.py'}:linear_row_by_row", None, seconds=2.0)
    assert report.verdict is Verdict.HOLDS
    assert any("rows in two axes [1, 6] have other bits" in note for note in report.notes)


def test_a_softmax_over_axis_1_does_not_take_two_axes() -> None:
    def softmax_over_axis_1(x: Tensor) -> Tensor:
        return torch.softmax(x.double(), 1).to(x.dtype) if x.dim() else x

    report = sb.check(softmax_over_axis_1, like="softmax", seconds=2.0)
    assert report.verdict is not Verdict.DOES_NOT_HOLD and not any("two axes" in note for note in report.notes)


@pytest.mark.parametrize("target", sound()[::10], ids=name)
def test_a_sound_kernel_is_not_accused(target: str) -> None:
    report = checked(target, None, seconds=2.0)
    assert report.verdict is not Verdict.DOES_NOT_HOLD, report.findings
    assert {finding.promise for finding in report.findings} >= {"repeat", "batch", "accuracy"}


# As anyone writes it: the largest logit is subtracted, and torch differentiates all of it.
PLAIN_LOSS = """
import torch

def {name}(hidden, weight, {ids}):
    logits = {logits}
    logits = logits - logits.amax(-1, keepdim=True)
    own = logits.gather(1, {ids}.clamp(min=0)[:, None])[:, 0]
    loss = logits.exp().sum(-1).log() - own
    return {sign}torch.where({ids} < 0, 0.0, loss)
"""


@pytest.mark.parametrize(("like", "ids", "sign"), [("selected_logprob", "ids", "-"), ("cross_entropy", "targets", "")])
def test_a_plain_loss_is_as_near_as_it_can_be(tmp_path: Path, like: str, ids: str, sign: str) -> None:
    """Its sum has an order of its own, and rounding flows back through the maximum. Logits of bfloat16 are too far."""
    sound, rounded = "hidden.float() @ weight.float().T", "(hidden.bfloat16() @ weight.bfloat16().T).float()"
    for title, logits, holds in (("sound", sound, True), ("rounded", rounded, False)):
        file = tmp_path / f"{title}.py"
        file.write_text(PLAIN_LOSS.format(name=title, logits=logits, ids=ids, sign=sign))
        request = Request(
            origin=origin_of_text(f"{file}:{title}"), like=like, promises=("accuracy",), seconds=6.0, shrink_seconds=0.5
        )
        (finding,) = examine(request, OPERATORS).findings
        assert finding.verdict is (Verdict.HOLDS if holds else Verdict.DOES_NOT_HOLD), finding.detail
    case = "1x35x53 seed=2 shared=integers"
    (known,) = sb.check(f"{FOLDER / 'sound.py'}:logprob_plain", "selected_logprob", case=case).findings
    assert known.verdict is Verdict.HOLDS, known.detail


@pytest.mark.parametrize(
    ("target", "like", "case", "holds"),
    [
        ("sound.py:softmax_one_by_one", "softmax", "1x777 seed=63", True),
        ("sound.py:log_softmax_one_by_one", "log_softmax", "1x66 seed=825", True),
        ("softmax.py:gradient_off_at_the_maximum", "softmax", "1x777 seed=63", False),
    ],
)
def test_rounding_may_flow_back_through_a_maximum(target: str, like: str, case: str, holds: bool) -> None:
    """Planted: more than rounding does."""
    (finding,) = sb.check(f"{FOLDER / target}", like, case=case).findings
    assert finding.verdict is (Verdict.HOLDS if holds else Verdict.DOES_NOT_HOLD), finding.detail


# As transformers has it: frequencies and angles in float32.
PLAIN_ROPE = """
import torch

def {name}(x, positions):
    size = x.shape[-1]
    frequencies = 1.0 / ({theta} ** (torch.arange(0, size, 2).float() / size))
    angles = positions.float()[:, None] * frequencies
    cos, sin = (torch.cat([each, each], -1)[:, None] for each in (angles.cos(), angles.sin()))
    turned = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], -1)
    return (x.float() * cos + turned.float() * sin).to(x.dtype)
"""


@pytest.mark.parametrize(("theta", "holds"), [("10000.0", True), ("10001.0", False)])
def test_angles_may_be_rounded_more_than_once(tmp_path: Path, theta: str, holds: bool) -> None:
    """Planted: other frequencies, by a hundred-thousandth."""
    file = tmp_path / "ropes.py"
    file.write_text(PLAIN_ROPE.format(name="plain", theta=theta))
    (finding,) = sb.check(f"{file}:plain", "rope", case="1x1x34 seed=406").findings
    assert finding.verdict is (Verdict.HOLDS if holds else Verdict.DOES_NOT_HOLD), finding.detail


PLAIN_NORM = """
def {name}(x, weight, bias, {eps}):
    d = x.double() - x.double().mean(-1, keepdim=True)
    scale = (d.square().mean(-1, keepdim=True) + {used}).rsqrt()
    return (d * scale * weight.double() + bias.double()).to(x.dtype)
"""


@pytest.mark.parametrize(
    ("eps", "used", "holds"), [("eps", "eps", True), ("epsilon=1e-12", "epsilon", True), ("eps", "1e-3", False)]
)
def test_a_norm_is_told_its_epsilon(tmp_path: Path, eps: str, used: str, holds: bool) -> None:
    """The operator's own, by whichever name it is asked for. Planted: another is used."""
    file = tmp_path / "norms.py"
    file.write_text(PLAIN_NORM.format(name="plain", eps=eps, used=used))
    request = Request(
        origin=origin_of_text(f"{file}:plain"),
        like="layernorm",
        promises=("accuracy",),
        seconds=2.0,
        shrink_seconds=0.5,
    )
    (finding,) = examine(request, OPERATORS).findings
    assert finding.verdict is (Verdict.HOLDS if holds else Verdict.DOES_NOT_HOLD), finding.detail


def looped(times: int) -> int:
    total = 0
    for each in range(times):
        total += each
    return total


@pytest.mark.parametrize(("times", "reached"), [(10, 4), (10_000, 3)])
def test_a_loop_of_millions_is_watched_for_a_while(monkeypatch: pytest.MonkeyPatch, times: int, reached: int) -> None:
    """What is behind a long loop is seen in a shorter call; the result is that of the function either way."""
    monkeypatch.setattr(watching, "MOST_EVENTS", 1000)
    watch, before = watching.Watch(looped), sys.gettrace()
    with watch.on(poison=False, lines=True):
        assert looped(times) == times * (times - 1) // 2
    assert watch.lines() == [reached, 4] and sys.gettrace() is before


def test_scores_beyond_all_bounds_are_no_accusation() -> None:
    """A weight that is nothing times an error without end is no number; a bound is one, or is infinite."""
    spec, _ = find_spec("attention", OPERATORS)
    q, k, v = torch.full((1, 4, 2, 8), 1e8), torch.full((1, 4, 1, 8), -1e8), torch.ones(1, 4, 1, 8)
    k[0, 1], v[0, 2] = 0.0, 0.0
    arguments, dy = {"q": q, "k": k, "v": v}, torch.ones(1, 4, 2, 8)
    exact = spec.exact(arguments, dy, any_order)
    assert any(bool(each.allowed.isnan().any()) for each in exact.values()), "planted: the bound before"
    widened = with_any_formula(spec, exact, arguments, dy, any_order)
    assert not any(bool(each.allowed.isnan().any()) for each in widened.values())


@pytest.mark.parametrize("starved", [True, False])
def test_waiting_for_a_core_is_no_hanging(monkeypatch: pytest.MonkeyPatch, starved: bool) -> None:
    """An answer after 2.5 seconds where one is allowed: of a process that could not run, or of one that slept."""
    if starved:
        monkeypatch.setattr(workers, "_running", lambda pid: (True, 0.0))
    here, there = socket.socketpair()

    def answer() -> None:
        header, _ = receive(there)
        time.sleep(2.5)
        with suppress(BrokenPipeMessageError):
            send(there, {"number": header["number"]}, {})

    answering = threading.Thread(target=answer)
    answering.start()
    with tempfile.TemporaryFile() as log, subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        worker = workers.Worker(here, process.pid, process.wait, log)
        if starved:
            assert worker.ask({}, {}, 1.0) == ({}, {})
        else:
            with pytest.raises(UnjudgedError, match="hangs: a call took more than 1 s and was ended"):
                worker.ask({}, {}, 1.0)
        worker.end()
    answering.join()


def test_what_runs_and_what_sleeps_are_told_apart() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeping, subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy:
        deadline = time.monotonic() + 60
        while workers._running(busy.pid)[1] < 0.2 and time.monotonic() < deadline:
            time.sleep(0.05)
        found = workers._running(busy.pid), workers._running(sleeping.pid)
        sleeping.kill()
        busy.kill()
    assert found[0][0] and found[0][1] >= 0.2 and not found[1][0] and found[1][1] < 0.1


def test_there_are_enough_of_both() -> None:
    assert len(faulty()) >= 80 and len(sound()) >= 20
    likes = "attention linear matmul rmsnorm rope selected_logprob softmax swiglu"
    assert {like for _, like in faulty()} == set(likes.split())


def test_what_differs_is_made_small_and_shown_again_by_one_line() -> None:
    target = f"{MATMUL}:split_for_few_rows"
    (finding,) = sb.check(target, "matmul").findings
    assert finding.promise == "batch" and finding.detail.startswith("5x2x")
    case = finding.reproduce.partition("--case '")[2].rstrip("'")
    (again,) = sb.check(target, "matmul", case=case).findings
    assert again.verdict is Verdict.DOES_NOT_HOLD and again.promise == "batch" and again.detail == finding.detail
    (healthy,) = sb.check(f"{FOLDER / 'sound.py'}:matmul_ours", "matmul", case=case).findings
    assert healthy.verdict is Verdict.HOLDS


def test_a_patched_comparison_changes_nothing(tmp_path: Path) -> None:
    """Planted: a function that makes torch call everything equal."""
    file = tmp_path / "patches.py"
    file.write_text(
        "import torch\n\ndef matmul(a, b):\n    torch.equal = torch.allclose = lambda *_, **__: True\n"
        "    torch.Tensor.__eq__ = lambda *_: torch.tensor(True)\n    return a @ b\n"
    )
    assert checked(f"{file}:matmul", None).verdict is Verdict.DOES_NOT_HOLD


def test_a_wider_accumulator_has_one_order_and_is_not_the_declared_one() -> None:
    target = f"{FOLDER / 'sound.py'}:matmul_in_float64"
    (one,) = sb.check(target, promises=["order"]).findings
    assert one.verdict is Verdict.HOLDS and "wider than float32 or compensated" in one.detail
    (this,) = sb.check(target, promises=["order"], order="chain-1").findings
    assert this.verdict is Verdict.DOES_NOT_HOLD and "declared chain-1" in this.detail
    (chain,) = sb.check(f"{FOLDER / 'sound.py'}:matmul_chain", promises=["order"], order="chain-1").findings
    assert chain.verdict is Verdict.HOLDS


@pytest.mark.parametrize(
    ("promise", "words"), [("order", "2 orders for 16 terms, in an accumulator"), ("batch", "far_a")]
)
def test_two_orders_of_a_wider_accumulator_are_a_broken_promise(promise: str, words: str) -> None:
    """Terms that are far apart show them in float32 results, to probes and to a search."""
    target = f"{MATMUL}:float64_backwards_for_few_rows"
    (finding,) = sb.check(target, "matmul", promises=[promise], formats=["float32"]).findings
    assert finding.verdict is Verdict.DOES_NOT_HOLD and words in finding.detail, finding


def test_terms_that_are_far_apart_are_lost_to_float64() -> None:
    row = torch.from_numpy(make("normal", (67,), 3))
    for format, lost in (("float32", True), ("bfloat16", True), ("float16", False)):
        far = KINDS["far_apart"](row, format)
        large = far.abs().max().double()
        assert bool(large + 1.0 == large) is lost and sorted(far.tolist())[0] == -sorted(far.tolist())[-1]
        assert (
            int((far == row).sum()) == 65
            and getattr(torch, format)
            and bool(far.to(getattr(torch, format)).isfinite().all())
        )


def test_threads_are_tried_at_numbers_that_the_code_names() -> None:
    tried = threads_near([11, 40, 5000])
    assert {*THREADS, 11, 12, 40, 41} == {*tried} and len(set(tried)) == len(tried)


def test_what_was_handed_out_is_held_for_some_calls() -> None:
    """Planted: a result that is written into seven calls later, and one that is no longer held."""
    held = Held(lambda tensor: tensor.numpy().tobytes())
    first = torch.zeros(3)
    held.keep({"output": torch.ones(3), "a": first})
    for _ in range(7):
        held.keep({"output": torch.ones(3)})
    assert held.overwritten() == ""
    first[1] = 1.0
    assert held.overwritten() == "a"
    held.keep({"output": torch.ones(3)})
    assert held.overwritten() == ""
    held.keep({"output": torch.ones(1 << 21)})
    assert len(held.calls) == 1


def test_a_ring_of_buffers_is_shown_again_by_one_line() -> None:
    (finding,) = checked(f"{MATMUL}:takes_turns_with_two_buffers", "matmul", seconds=2.0).findings
    assert (
        finding.verdict is Verdict.DOES_NOT_HOLD and "handed out earlier was overwritten by this call" in finding.detail
    )
    assert "--case '" in finding.reproduce


@pytest.mark.parametrize("target", ["examples.my_kernel:split_by_batch", "examples.my_kernel:good"])
def test_an_order_that_was_not_asked_for_all_rows_is_no_pass(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Planted: no time but for the first number of rows, as for a slow function or on a busy machine."""
    monkeypatch.setattr(one_order, "SECONDS", 0.0)
    (finding,) = sb.check(target, "matmul", promises=["order"], formats=["float32"]).findings
    assert finding.verdict is Verdict.COULD_NOT_BE_JUDGED and finding.cases == 1, finding
    assert finding.detail.startswith("too slow: for 1 rows it adds as "), finding.detail


def test_an_order_that_would_take_too_long_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: no time but for a handful of calls."""
    monkeypatch.setattr(one_order, "FIRST_SECONDS", 1e-4)
    (finding,) = sb.check("examples.my_kernel:good", "matmul", promises=["order"], formats=["float32"]).findings
    assert finding.verdict is Verdict.COULD_NOT_BE_JUDGED and finding.cases == 0, finding
    assert finding.detail.startswith("too slow: a call takes about "), finding.detail


def test_a_closure_runs_in_a_fork_and_the_report_says_so() -> None:
    scale = 1.0

    def matmul(a: Tensor, b: Tensor) -> Tensor:
        return sb.ops.matmul(a, b) * scale

    report = sb.check(matmul, seconds=0.5, promises=["batch", "tile"], formats=["float32"])
    verdicts = {finding.promise: finding.verdict for finding in report.findings}
    assert verdicts == {"batch": Verdict.HOLDS, "tile": Verdict.COULD_NOT_BE_JUDGED}
    assert any("in a fork of this process" in note for note in report.notes)


@pytest.mark.parametrize(
    "text",
    [
        "17x100x33",
        "2x3x4 format=bfloat16 seed=7 pick=s4 layouts=a:t+3,b:c threads=3 requires=a,b reuse fresh",
        "9x3x4 pick=n5z7 layouts=a:g+9,b:j,cotangent:e requires=b history=fewer between",
    ],
)
def test_a_case_is_text_that_can_be_read_back(text: str) -> None:
    assert str(parse_trial(text)) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "case='' is empty"),
        ("3x0x2", "sizes='3x0x2' cannot be read"),
        ("3x4 colour=red", "'colour=red' is unknown; allowed: format, seed"),
        ("3x4 layouts=a:q", "layout='q' cannot be read"),
        ("3x4 pick=x", "pick='x' cannot be read"),
        ("3x4 threads=many", "threads='many' is not a number"),
        ("3x4 reuse=yes", "reuse takes no value"),
        ("3x4 mode=quick", "mode='quick' is unknown; allowed: plain"),
        ("3x4 repeat=0", "repeat=0; allowed: 1 to 4096"),
        ("3x4 threads=1000000", "threads=1000000; allowed: 0 to 1024"),
        ("2000000000x2x2", "sizes=2000000000x2x2 make 8000000004 numbers; allowed: at most"),
        ("1x2x2 layouts=q:c", "layouts='q' is unknown; allowed: a, b, cotangent"),
        ("1x2x2 requires=q", "requires='q' is unknown; allowed: a, b"),
        ("1x2x2 omit=b", "omit='b' is unknown; allowed: none"),
    ],
)
def test_a_case_that_means_nothing_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError) as raised:
        sb.check(f"{MATMUL}:stock", "matmul", case=text)
    assert words in str(raised.value)


def test_rows_are_picked_as_said() -> None:
    kinds = list(MIXED)
    assert arrangement(Trial(sizes=(4, 1), pick="=3"), kinds).tolist() == [3] * 4
    assert arrangement(Trial(sizes=(5, 1), pick="2,0"), kinds).tolist() == [2, 0, 2, 0, 2]
    padded = arrangement(Trial(sizes=(6, 1), pick="pad:nan:1:2"), kinds)
    assert [kinds[row] for row in padded] == ["nan", *kinds[:3], "nan", "nan"]
    assert {kinds[row] for row in arrangement(Trial(sizes=(50, 1), pick="n3"), kinds)} == {"normal"}
    silent = arrangement(Trial(sizes=(9, 1), pick="n3z2"), kinds).tolist()
    assert silent[:7] == arrangement(Trial(sizes=(7, 1), pick="n3"), kinds).tolist()
    assert [kinds[row] for row in silent[7:]] == ["zero", "zero"]
    assert set(kinds_of("mixed", 1)) <= {*KINDS, "wide"} and len(kinds_of("mixed", 10**9)) == 6


@pytest.mark.parametrize(("letter", "offset"), list(itertools.product("cpsrtvgjw", (0, 1, 7))))
def test_a_layout_changes_no_number(letter: str, offset: int) -> None:
    for shape in ((5,), (4, 3), (2, 3, 4)):
        values = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
        made = laid_out(values, f"{letter}+{offset}")
        assert torch.equal(made, values) and made.untyped_storage().data_ptr() != values.untyped_storage().data_ptr()


def test_drawn_strides_have_both_orders_and_gaps() -> None:
    found = {laid_out(torch.zeros(3, 4), f"g+{seed}").stride() for seed in range(6)}
    assert any(rows > 4 and columns == 1 for rows, columns in found)
    assert any(rows == 1 and columns > 3 for rows, columns in found)


@pytest.mark.parametrize("rows", [True, False])
def test_arguments_in_one_storage_keep_their_numbers(rows: bool) -> None:
    given = {"a": torch.arange(12.0).view(3, 4), "b": torch.arange(18.0).view(3, 2, 3)}
    made = joined(given, rows=rows)
    assert all(torch.equal(made[name], each) and made[name].shape == each.shape for name, each in given.items())
    assert len({each.untyped_storage().data_ptr() for each in made.values()}) == 1


@pytest.mark.parametrize("halves", [True, False])
def test_a_sum_that_depends_on_the_number_of_rows_is_told(tmp_path: Path, halves: bool) -> None:
    """The weight's gradient in two halves, whose middle moves when rows of zeros follow; and in one order."""
    kernel = tmp_path / "kernel.py"
    kernel.write_text(SUM_OVER_ROWS.replace("HALVES", str(halves)))
    report = checked(f"{kernel}:linear", "linear", seconds=3.0)
    assert report.verdict is Verdict.HOLDS, report.findings
    said = [note for note in report.notes if "depends on how many rows there are" in note]
    assert len(said) == halves and all("gradient of weight" in note for note in said)


SUM_OVER_ROWS = """
import torch
def chain(a, b):
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total = total + a[:, k, None].float() * b[k].float()
    return total
class Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return chain(x, weight.T).to(x.dtype)
    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        half = len(x) // 2 if HALVES else 0
        dw = chain(dy[:half].T, x[:half]) + chain(dy[half:].T, x[half:])
        return chain(dy, weight).to(x.dtype), dw.to(weight.dtype)
def linear(x, weight):
    return Linear.apply(x, weight)
"""


def test_results_on_one_side_are_told_and_equal_ones_count_once() -> None:
    exact = torch.from_numpy(make("normal", (20, 40), 3, "float32")).double()
    cut = (exact.float().view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    assert one_sided(exact.bfloat16(), exact) == "" and "nearer to 0" in one_sided(cut, exact)
    assert one_sided(exact.float(), exact) == "", "float32 is rounded on the way, too"
    assert one_sided(cut[:, :1].expand(20, 40), exact[:, :1].expand(20, 40)) == "", "20 sums, each 40 times"


def test_coverage_says_what_a_pass_bounds() -> None:
    coverage = Coverage()
    for count in range(2, 102):
        coverage.count(Trial(sizes=(count, 3)))
    assert coverage.ways["batch"] == 100 and coverage.met("batch") == pytest.approx(1 - 0.05**0.01)
    assert coverage.met("threads") == 1.0


def test_the_bound_is_that_of_the_worst_order() -> None:
    """1 and many halves of its last place: one at a time they are all lost, and that is allowed."""
    terms = 4097
    lost = (terms - 1) * 2.0**-24
    assert lost / (1 + lost) <= any_order(terms) < 1.01 * terms * 2.0**-24


def test_a_process_can_be_ended_as_soon_as_its_number_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork that is slow to make its own group is in it already; else nothing would end it, and its end be awaited."""
    here, real = os.getpid(), os.setpgid

    def late(pid: int, group: int) -> None:
        if os.getpid() != here:
            time.sleep(60)
        real(pid, group)

    monkeypatch.setattr(os, "setpgid", late)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fork_for(theirs, lambda: None)
        pid = int(ours.recv(16))
        os.killpg(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
