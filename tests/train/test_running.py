"""A run as a user makes it: into a folder, logged, refused, resumed, killed at any time with the same end."""

from __future__ import annotations

import io
import json
import resource
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.train.killing import killed_and_resumed, whole
from tests.train.small_run import TEXT, small, trainer_of

from samebits.cli import main
from samebits.model.loading import load
from samebits.numerics.bits import same_bits
from samebits.records.appending import BLOCK
from samebits.train import checkpoint, display, events
from samebits.train.configuration_file import read_text
from samebits.train.lanes import Backward, backward
from samebits.train.running import RefusedError, run
from samebits.train.speed import peak_flops, utilisation
from samebits.train.trainer import Parts, StepRecord
from samebits.train.watch import BreachError


@pytest.fixture
def samebits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """samebits("train", ...): exit code, stdout, stderr; the small configuration lies in run.yaml."""
    (tmp_path / "run.yaml").write_text(TEXT)

    def command(name: str, *words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([name, str(tmp_path / "run.yaml"), *words])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return command


def test_a_run_is_logged_and_ends_in_a_checkpoint(
    samebits: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, err = samebits("train", "--out", str(tmp_path / "out"), "--json")
    # On a busy machine a step may be slow enough for an alarm.
    log = [each for each in events.read(tmp_path / "out") if each.get("kind") != "throughput drop"]
    found = json.loads(out)
    assert (
        code == 0 and found["schema"] == "samebits.train/1" and found["steps"] == 10 and found["waived"] == ["CFG-OB7"]
    )
    assert found["digest"] == checkpoint.read(tmp_path / "out").digest
    assert checkpoint.committed(tmp_path / "out") == [5, 10]
    assert checkpoint.read(tmp_path / "out").state["waived"] == ["CFG-OB7"]
    kinds = ["start", *["step"] * 5, "checkpoint", *["step"] * 5, "checkpoint", "end"]
    assert [event["event"] for event in log] == kinds
    step = log[-3]
    assert {*asdict(blank()), "event", "time", "tokens_per_second", "mfu"} == set(step)
    # What is logged is what was applied.
    assert step["rate"] == trainer_of(small()).rate(10) and found["loss"] == step["loss"]
    assert step["tokens_per_second"] == step["tokens"] / step["seconds"]
    assert "WAIVED CFG-OB7" in err and "step 10/10  loss" in err and "MFU" in err


def blank(step: int = 1, loss: float = 2.0) -> StepRecord:
    return StepRecord(
        step=step, loss=loss, norm=1.0, norm_after=1.0, rate=0.1, tokens=10, without_gradient=0, seconds=1.0
    )


def test_a_refused_plan_costs_no_step(samebits: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    for name in ("plan", "train"):
        out = ["--out", str(tmp_path / "out")] if name == "train" else []
        code, printed, _ = samebits(name, *out, "--set", "optimizer.warmup_steps=9")
        assert code == 1 and "refused CFG-OB3: warmup_steps is 9 of 10 steps" in printed
    assert not (tmp_path / "out").exists()
    with pytest.raises(RefusedError, match="CFG-OB3"):
        run(small("optimizer.warmup_steps=9"), tmp_path / "out")


def test_a_folder_is_not_trained_into_twice(tmp_path: Path) -> None:
    run(small(), tmp_path)
    with pytest.raises(ValueError, match=r"holds checkpoints up to step 10; allowed: --resume, or another folder$"):
        run(small(), tmp_path)
    again = run(small(), tmp_path, resume=True)
    assert again.resumed_from == again.steps == 10 and again.loss is None and again.tokens == 0
    with events.opened(tmp_path), pytest.raises(ValueError, match="another run is at work here"):
        run(small(), tmp_path, resume=True)


class StopError(Exception):
    """Ends a run at a step, as a crash would."""


def stopping(step: int) -> Parts:
    calls = []

    def stop(*given: object) -> Backward:
        calls.append(1)
        if len(calls) > step:
            raise StopError
        return backward(*given)  # type: ignore[arg-type]

    return Parts(backward=stop)


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_whose_marker_is_damaged_does_not_begin_anew(resume: bool, tmp_path: Path) -> None:
    """Before, it did, without a word, beside the damaged step."""
    short = small("training.max_steps=2", "optimizer.min_lr_ratio=0")
    run(short, tmp_path)
    logged = (tmp_path / "events.jsonl").read_bytes()
    (tmp_path / "step-00000002" / "COMMITTED").write_bytes(b"x")
    words = r"no checkpoint that can be read; .*step-00000002: COMMITTED" if resume else r"up to step 2; allowed"
    with pytest.raises(ValueError, match=words):
        run(short, tmp_path, resume=resume)
    assert (tmp_path / "events.jsonl").read_bytes() == logged and (tmp_path / "step-00000002").is_dir()


def test_a_run_goes_on_with_another_cut_and_to_the_same_end(tmp_path: Path) -> None:
    """Stopped after 7 steps, resumed from the checkpoint of step 5, with other micro-batches, padded."""
    whole_run = run(small(), tmp_path / "whole")
    with pytest.raises(StopError):
        run(small(), tmp_path / "cut", parts=stopping(7))
    config = small("training.micro_batch_size=8", "training.gradient_accumulation_steps=1", "training.collation=padded")
    resumed = run(config, tmp_path / "cut", resume=True)
    assert resumed.resumed_from == 5 and resumed.digest == whole_run.digest
    steps = [event["step"] for event in events.read(tmp_path / "cut") if event["event"] == "step"]
    assert sorted(steps) == list(range(1, 11))


def test_what_was_forgotten_on_resuming_would_show(tmp_path: Path) -> None:
    """Planted: moments that begin again at zero (ALB-118), a step count that does (t reset), data from the start."""
    digest = run(small(), tmp_path / "whole").digest

    def end_of(fault: Callable[[object], None], name: str) -> str:
        trainer = trainer_of(small())
        trainer.restore(checkpoint.read(tmp_path / "whole", 5))
        fault(trainer)
        for _ in range(5):
            trainer.step()
        return checkpoint.digest(checkpoint.write(tmp_path / name, 10, **trainer.state()))

    def moments(trainer: object) -> None:
        for each in trainer.moments().values():  # type: ignore[attr-defined]
            each.zero_()

    def count(trainer: object) -> None:
        for state in trainer.optimizer.state.values():  # type: ignore[attr-defined]
            state["step"] = 0

    def position(trainer: object) -> None:
        trainer.data.starts[:] = trainer.data.starts[::-1].copy()  # type: ignore[attr-defined]

    assert end_of(lambda _: None, "good") == digest
    assert all(end_of(fault, fault.__name__) != digest for fault in (moments, count, position))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("optimizer.beta2=0.99", r"optimizer.beta2 was 0.95 and is now 0.99; allowed: as it was, or --allow-changes"),
        ("training.max_steps=20", r"training.max_steps was 10 and is now 20; .*"),
        ("data.max_train_samples=5", r"data.digest was '[0-9a-f]{64}' and is now '[0-9a-f]{64}'; .*"),
        ("training.gradient_accumulation_steps=2", r"position.sequence was .*"),
    ],
)
def test_a_changed_configuration_is_refused(setting: str, said: str, tmp_path: Path) -> None:
    first = run(small(), tmp_path)
    with pytest.raises(ValueError, match=f"^resume: {said}"):
        run(small(setting), tmp_path, resume=True)
    assert checkpoint.read(tmp_path).digest == first.digest


def test_changes_are_allowed_by_name(tmp_path: Path) -> None:
    run(small(), tmp_path)
    changed = run(small("training.max_steps=20"), tmp_path, resume=True, allow_changes=["training.max_steps"])
    assert (changed.resumed_from, changed.steps) == (10, 20)
    with pytest.raises(ValueError, match=r"^--allow-changes training.sed: no such setting decides bits; allowed: "):
        run(small("training.max_steps=20"), tmp_path, resume=True, allow_changes=["training.sed"])


def test_a_breach_is_one_line_and_the_last_checkpoint_stays(
    samebits: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: an update whose rate is infinite in effect, after the checkpoint of step 5."""

    def faulty(step: int, loss: float) -> None:
        if step == 8:
            raise BreachError("C-TRAINSTABLE-001", step, f"the loss is {float('nan')}; allowed: finite")

    monkeypatch.setattr("samebits.train.watch.loss_is_finite", faulty)
    code, _, err = samebits("train", "--out", str(tmp_path / "out"))
    line = "samebits: C-TRAINSTABLE-001: step 8: the loss is nan; allowed: finite; the last checkpoint is step 5"
    assert code == 1 and err.splitlines()[-1] == line
    log = events.read(tmp_path / "out")
    assert log[-1]["event"] == "breach" and log[-1]["contract"] == "C-TRAINSTABLE-001" and log[-1]["step"] == 8
    assert checkpoint.read(tmp_path / "out").step == 5


def test_the_model_goes_on_from_where_it_was_exported(
    samebits: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Out in Hugging Face's layout and in again: the same bits, and another run can begin with them."""
    path = tmp_path / "model"
    code, _, _ = samebits("train", "--out", str(tmp_path / "out"), "--export", str(path))
    kept, loaded = checkpoint.read(tmp_path / "out").weights, load(str(path))
    assert code == 0 and all(same_bits(kept[name], each) for name, each in loaded.model.weights.items())
    assert loaded.tokenizer.encode("é") == [*"é".encode()] and loaded.model.config.eos_token_id == (256,)
    text = TEXT.replace("preset: tiny", f"folder: {path}").replace("\n".join(TEXT.splitlines()[3:5]), "")
    first, fresh = (trainer_of(config).step() for config in (read_text(text), small()))
    assert first.loss < 0.8 * fresh.loss
    code, _, err = samebits("train", "--out", str(tmp_path / "other"), "--export", str(path))
    assert code == 2 and "is there already" in err and not (tmp_path / "other").exists()


def test_wrong_usage_is_exit_2(samebits: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    for words in (
        ["--set", "training.sed=1"],
        ["--allow-changes", "data.max_train_samples"],
        ["--set", "data.max_length=9"],
    ):
        code, _, err = samebits("train", "--out", str(tmp_path / "out"), *words)
        assert code == 2 and err.startswith("samebits: ") and err.count("\n") == 1


def test_a_torn_event_is_dropped(tmp_path: Path) -> None:
    with events.opened(tmp_path) as log:
        log.write("step", {"step": 1, "loss": float("nan")})
        log.write("step", {"step": 2, "loss": 1.0})
    path = tmp_path / events.NAME
    whole_log = path.read_bytes()
    for length in range(len(whole_log)):
        path.write_bytes(whole_log[:length])
        with events.opened(tmp_path) as log:
            log.write("step", {"step": 3})
        kept = [event["step"] for event in events.read(tmp_path)]
        assert kept == [*range(1, whole_log[:length].count(b"\n") + 1), 3]
    path.write_bytes(whole_log)
    assert events.read(tmp_path)[0]["loss"] == "nan"
    with events.opened(tmp_path) as log, pytest.raises(ValueError, match="event is 'other'"):
        log.write("other", {})


def test_a_torn_event_of_any_length_is_dropped(tmp_path: Path) -> None:
    """The first line names every path of the data."""
    for length in (BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK):
        for whole_lines in (b"", b'{"event": "start"}\n'):
            (tmp_path / events.NAME).write_bytes(whole_lines + b"x" * length)
            with events.opened(tmp_path) as log:
                log.write("end", {})
            found = [event["event"] for event in events.read(tmp_path)]
            assert found == (["start", "end"] if whole_lines else ["end"])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x", "Expecting value"),
        ("[]", "is a list; allowed: a JSON object"),
        ('{"event": ["step"]}', "has event \\['step'\\], step None; allowed: start, step"),
        ('{"event": "step", "step": "1"}', "has event 'step', step '1'; allowed"),
    ],
)
def test_a_log_that_no_run_wrote_is_named_with_its_line(line: str, said: str, tmp_path: Path) -> None:
    (tmp_path / events.NAME).write_text(f'{{"event": "start"}}\n{line}\n')
    with pytest.raises(ValueError, match=f"/{events.NAME}:2: {said}"):
        events.read(tmp_path)


def test_a_full_disk_tears_no_event(tmp_path: Path) -> None:
    """The system takes the part of a line that has room, and says nothing; no later line may stand behind it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with events.opened(tmp_path) as log:
        log.write("step", {"step": 1})
        size = (tmp_path / events.NAME).stat().st_size
        for room in (0, 1, 20):
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, hard))
                with pytest.raises(OSError, match=rf"File too large: '.*{events.NAME}'"):
                    log.write("step", {"step": 2})
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        log.write("step", {"step": 3})
    assert [event["step"] for event in events.read(tmp_path)] == [1, 3]


def test_the_picture_of_a_run() -> None:
    from rich.console import Console

    shown = display.Shown(record=blank(step=7), steps=9, tokens_per_second=1234.5, utilisation=0.25)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(display.picture(shown, [3.0, 2.5, 2.0]))
    text = console.export_text()
    assert "step 7" in text and "2.0000  █▅▁" in text and "MFU 25.0%" in text
    assert display.bars([1.0, 1.0]) == "▁▁"


def test_utilisation_is_a_share_of_the_peak() -> None:
    assert utilisation(parameters=10, tokens=100, seconds=2.0, peak=6000.0) == 0.5
    assert peak_flops(small()) == 1e12


def test_killed_and_resumed_it_ends_the_same(tmp_path: Path) -> None:
    """SIGKILL of a real process at a random step; ten times in the long tests."""
    digest = whole(tmp_path)
    assert killed_and_resumed(tmp_path, kills=1, seed=1) == {digest}
