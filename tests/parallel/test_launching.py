"""The launcher on real processes: whose failure it reports, that it ends the others, and that none is left behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from tests.parallel import ranks as testing

from samebits.cli import commands
from samebits.cli.commands.launch import ON_RANKS
from samebits.parallel import launching_processes
from samebits.parallel.launching import Ended, Outcome, launch
from samebits.parallel.launching_processes import Process, Screen

PROGRAM = str(Path(__file__).with_name("programs.py"))
# Who it is, for the test; then what the rank does. No torch: these ranks start at once.
START = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
open(f"{sys.argv[1]}/{rank}.new", "w").write(str(os.getpid()))
os.rename(f"{sys.argv[1]}/{rank}.new", f"{sys.argv[1]}/{rank}")
"""
# Nobody waits so long: ranks are ended, or judged to have been left.
WAIT = "time.sleep(3600)"
# What is waited for is an event; this ends a test that would never see it, on however busy a machine.
PATIENCE = 600.0
# The others are all there before the one fails.
THEN = (
    "while len([n for n in os.listdir(sys.argv[1]) if n.isdigit()]) < int(os.environ['WORLD_SIZE']): time.sleep(.01)\n"
)


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """These ranks have nothing to say after a failure, unless a test is about that."""
    monkeypatch.setattr("samebits.parallel.launching.SETTLE_SECONDS", 0.1)


class Lines(Screen):
    """What a screen would show."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = {"out": b"", "err": b""}

    def show_out(self, data: bytes) -> None:
        self.shown["out"] += data

    def show_err(self, data: bytes) -> None:
        self.shown["err"] += data


def run(folder: Path, code: str, size: int = 3) -> tuple[Outcome, Lines]:
    lines = Lines()
    return launch([sys.executable, "-c", START + THEN + code, str(folder)], size, screen=lines), lines


def left(folder: Path) -> list[int]:
    """The ranks whose processes live; a zombie does not."""
    found = []
    for file in folder.glob("[0-9]"):
        try:
            state = Path(f"/proc/{file.read_text()}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            found.append(int(file.name))
    return sorted(found)


def soon(true: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


def only_one_failed(outcome: Outcome, rank: int) -> bool:
    """Every other rank was ended by the launcher."""
    return all(each.asked and each.how == "killed by SIGTERM" for each in outcome.ranks if each.rank != rank)


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("sys.exit(7)", 7, "rank 1 failed first (exit 7)"),
        ("sys.exit('samebits: no such file')", 1, "rank 1 failed first (exit 1): no such file"),
        ("raise KeyError('a')", 1, "rank 1 failed first (exit 1): KeyError: 'a'"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "rank 1 failed first (killed by SIGKILL)"),
        ("sys.exit(200)", 200, "rank 1 failed first (exit 200)"),
        ("os.kill(os.getpid(), 35)", 163, "rank 1 failed first (killed by signal 35)"),
        ("os.abort()", 134, "rank 1 failed first (killed by SIGABRT)"),
    ],
)
def test_the_first_failure_ends_the_others(tmp_path: Path, fault: str, code: int, message: str) -> None:
    outcome, _ = run(tmp_path, f"if rank == 1: {fault}\n{WAIT}")
    assert (outcome.code, outcome.message) == (code, message)
    assert only_one_failed(outcome, 1) and left(tmp_path) == []


def test_a_launcher_that_leaves_the_others_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: nobody is told to end."""
    monkeypatch.setattr(Process, "ask", lambda self: None)
    monkeypatch.setattr(Process, "kill", lambda self: None)
    outcome, _ = run(tmp_path, "if rank == 1: sys.exit(7)\ntime.sleep(0.3)")
    assert outcome.code == 7 and not only_one_failed(outcome, 1)


def test_a_rank_that_does_not_want_to_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samebits.parallel.launching.GRACE_SECONDS", 0.2)
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    outcome, _ = run(
        tmp_path,
        f"{deaf}open(f'{{sys.argv[1]}}/deaf{{rank}}', 'w')\n"
        "while rank == 1 and len(os.listdir(sys.argv[1])) < 6: time.sleep(.01)\n"
        f"if rank == 1: sys.exit(7)\n{WAIT}",
    )
    assert outcome.code == 7 and [each.how for each in outcome.ranks] == [
        "killed by SIGKILL",
        "exit 7",
        "killed by SIGKILL",
    ]
    assert left(tmp_path) == []


def test_children_of_ranks_end_with_them(tmp_path: Path) -> None:
    child = "if os.fork() == 0: open(f'{sys.argv[1]}/9', 'w').write(str(os.getpid())); time.sleep(3600)\n"
    outcome, _ = run(tmp_path, f"{child}while not os.path.exists(f'{{sys.argv[1]}}/9'): time.sleep(.01)", size=1)
    assert outcome.code == 0 and soon(lambda: left(tmp_path) == [])


def ended(rank: int, code: int, seconds: float, kind: str = "", asked: bool = False) -> Ended:
    killed = code - 128 if code > 128 else 0
    return Ended(rank=rank, code=code, signal=killed, seconds=seconds, asked=asked, kind=kind, words="")


@pytest.mark.parametrize(
    ("first", "ranks"),
    [
        (2, [ended(0, 3, 1.0, "lost"), ended(1, 3, 1.1, "lost"), ended(2, 137, 1.2)]),
        (2, [ended(0, 3, 1.0, "lost"), ended(1, 3, 1.1, "hung"), ended(2, 1, 1.2, "raised")]),
        (1, [ended(0, 3, 1.0, "lost"), ended(1, 3, 1.1, "hung"), ended(2, 143, 1.2, asked=True)]),
        (1, [ended(0, 0, 0.1, "left"), ended(1, 1, 1.1), ended(2, 1, 1.2)]),
        (None, [ended(0, 0, 0.1), ended(1, 0, 0.2), ended(2, 0, 0.3)]),
    ],
)
def test_the_first_cause_is_no_consequence(first: int | None, ranks: list[Ended]) -> None:
    found = Outcome(ranks=tuple(ranks), interrupted=0).first
    assert (found.rank if found else None) == first


def test_lines_are_told_apart(tmp_path: Path) -> None:
    outcome, lines = run(tmp_path, "print(f'result {rank}')\nprint(f'note {rank}', file=sys.stderr)")
    assert outcome.code == 0 and outcome.message == ""
    assert lines.shown["out"] == b"result 0\n"
    assert sorted(lines.shown["err"].splitlines()) == [b"[rank 1] note 1", b"[rank 2] note 2", b"note 0"]


def test_the_stdout_of_a_failed_rank_is_shown(tmp_path: Path) -> None:
    outcome, lines = run(tmp_path, f"print(f'result {{rank}}', flush=True)\nif rank == 2: sys.exit('no')\n{WAIT}")
    assert outcome.message == "rank 2 failed first (exit 1): no"
    assert sorted(lines.shown["err"].splitlines()) == [b"[rank 2] no", b"[rank 2] result 2"]


@pytest.mark.parametrize(("seconds", "said"), [(20.0, True), (0.0, False)])
def test_rank_0_may_say_what_all_of_them_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, said: bool
) -> None:
    """Planted fault, the second: others are ended before they can say anything."""
    monkeypatch.setattr("samebits.parallel.launching.SETTLE_SECONDS", seconds)
    outcome, lines = run(tmp_path, "if rank == 0: time.sleep(0.5); print('refused', flush=True)\nsys.exit(1)", size=2)
    assert outcome.message == "rank 1 failed first (exit 1)" and (lines.shown["out"] == b"refused\n") is said


def test_rank_0_has_a_terminal_where_the_launcher_has_one(tmp_path: Path) -> None:
    reads, writes = pty.openpty()
    termios.tcsetwinsize(writes, (40, 99))
    show = "print(sys.stderr.isatty() and os.get_terminal_size(2).columns, file=sys.stderr)"
    with open(writes, "w") as terminal:
        lines = Lines()
        lines.err = terminal
        launch([sys.executable, "-c", START + show, str(tmp_path)], 2, screen=lines)
    os.close(reads)
    assert sorted(lines.shown["err"].splitlines()) == [b"99", b"[rank 1] False"]


def test_a_launcher_that_cannot_go_on_leaves_nobody(tmp_path: Path) -> None:
    class Closed(Lines):
        def show_out(self, data: bytes) -> None:
            raise BrokenPipeError("nobody reads this")

    code = f"{START}{THEN}print(1, flush=True)\n{WAIT}"
    with pytest.raises(BrokenPipeError):
        launch([sys.executable, "-c", code, str(tmp_path)], 3, screen=Closed())
    assert soon(lambda: left(tmp_path) == [])


def test_ranks_learn_who_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS"]
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    show = f"print([os.environ[name] for name in {names}], file=sys.stderr)"
    _, lines = run(tmp_path, show, size=2)
    threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert str(["0", "0", "2", "2", "127.0.0.1", threads]) in lines.shown["err"].decode()
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert "'5']" in run(tmp_path, show, size=1)[1].shown["err"].decode()


def launcher(folder: str, harmless: bool) -> None:
    """A launcher in a process of its own; `harmless`: one that forgot to tie its ranks to itself."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Under nohup it would be ignored, as the launcher's own parent asked for.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if harmless:
        launching_processes._libc.prctl = lambda *_: 0
    outcome = launch([sys.executable, "-c", START + WAIT, folder], 2, screen=Lines())
    Path(folder, "outcome").write_text(f"{outcome.code} {outcome.message}")


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Callable[[bool], BaseProcess]]:
    def start(harmless: bool) -> BaseProcess:
        process: Any = testing.FORKING.Process(target=launcher, args=(str(tmp_path), harmless))
        process.start()
        assert soon(lambda: left(tmp_path) == [0, 1] or not process.is_alive()) and left(tmp_path) == [0, 1]
        return process  # type: ignore[no-any-return]

    yield start
    for rank in left(tmp_path):
        os.kill(int((tmp_path / str(rank)).read_text()), signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_ranks(tmp_path: Path, launched: Callable[[bool], BaseProcess], number: int) -> None:
    process = launched(False)
    assert process.pid
    os.kill(process.pid, number)
    process.join(PATIENCE)
    expected = f"{128 + number} {signal.Signals(number).name}: all 2 ranks were ended"
    assert (tmp_path / "outcome").read_text() == expected and left(tmp_path) == []


def test_ranks_do_not_outlive_a_killed_launcher(tmp_path: Path, launched: Callable[[bool], BaseProcess]) -> None:
    process = launched(False)
    process.kill()
    process.join(PATIENCE)
    assert soon(lambda: left(tmp_path) == [])


def test_an_orphan_is_noticed(tmp_path: Path, launched: Callable[[bool], BaseProcess]) -> None:
    """Planted fault: ranks that the kernel does not tie to their launcher."""
    process = launched(True)
    process.kill()
    process.join(PATIENCE)
    time.sleep(0.3)
    assert left(tmp_path) == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nproc", "0", "--", "train"], "launch: nproc is 0; allowed: at least 1"),
        (["--nproc", "2"], "launch: missing command after --; allowed: debug, distill, generate, rl, train, "),
        (["--nproc", "2", "--", "trian"], "launch: command is 'trian'; allowed: debug, distill, generate, rl, train, "),
        (
            ["--nproc", "2", "--", "launch"],
            "launch: command is 'launch'; allowed: debug, distill, generate, rl, train, ",
        ),
        (["--nproc", "2", "--", "merge", "a.yaml"], "launch: command is 'merge'; allowed: debug, distill, "),
        (
            ["--nproc", "2", "--", "gone.py"],
            "launch: gone.py is no file; allowed: debug, distill, generate, rl, train, ",
        ),
        (["--nproc", "2", "--timeout", "-1", "--", "train"], "ranks: timeout is -1.0; allowed: seconds above 0"),
        (["--", "doctor"], "Missing option '--nproc'."),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    from samebits.cli import main

    with pytest.raises(SystemExit) as raised:
        main(["launch", *arguments])
    printed = capsys.readouterr()
    assert raised.value.code == 2 and printed.out == ""
    assert printed.err.startswith(f"samebits: {words}") and printed.err.count("\n") == 1


def test_commands_that_are_launched_are_those_whose_ranks_meet() -> None:
    """Of any other command there would be so many copies, each of which writes what the others write."""
    folder = Path(commands.__file__).parent
    meeting = [file.stem for file in folder.glob("*.py") if "parallel.launching import ranks" in file.read_text()]
    assert sorted(meeting) == list(ON_RANKS)


@pytest.mark.long
def test_the_command_launches_ranks_that_add() -> None:
    words = [sys.executable, "-m", "samebits.cli", "launch", "--nproc", "2", "--json", "--", PROGRAM, "nothing"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    document = json.loads(ran.stdout)
    assert ran.returncode == 0 and document["schema"] == "samebits.launch/1" and document["first"] is None
    assert [each["how"] for each in document["ranks"]] == ["exit 0", "exit 0"]
    assert "rank 0 of 2: 12 exchanges" in ran.stderr


def test_torchrun_launches_ranks_too() -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", PROGRAM, "nothing"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [f"rank {rank} of 2: 12 exchanges" for rank in range(2)]
