"""Exit codes, one JSON document, one-line errors: what a script may rely on."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from samebits import native
from samebits.cli import app
from samebits.cli.commands.check import parse_shape

Samebits = Callable[..., object]
SMALL = ("--shape", "8x64x64", "--recipe", "normal", "--format", "float32", "--seed", "1")


def test_check_prints_a_table_and_exits_0_where_all_holds(samebits: Samebits) -> None:
    ran = samebits("check", "matmul", "--like", "linear", "--backend", "cpu", "--promise", "batch", *SMALL)
    assert ran.code == 0 and ran.err == ""
    header, row, *rest = ran.out.splitlines()
    assert header.split() == ["subject", "promise", "backend", "verdict", "cases", "faults", "caught", "seconds"]
    assert row.split()[:4] == ["matmul.linear", "batch", "cpu", "holds"] and "2 of 2" in row
    assert rest[-1] == "holds: 1"


def test_check_says_what_differs_and_how_to_see_it_again(samebits: Samebits) -> None:
    ran = samebits("check", "torch.nn.functional.linear", "--promise", "batch", *SMALL)
    assert ran.code == 1
    assert "torch.nn.functional.linear: batch does not hold on cpu" in ran.out
    assert ran.err == "samebits: searching torch.nn.functional.linear for about 30 s\n"
    again = next(line for line in ran.out.splitlines() if "again: " in line).split("again: ")[1]
    second = samebits(*shlex.split(again)[1:])
    assert second.code == 1 and again in second.out


def test_check_lists_what_was_not_asked(samebits: Samebits) -> None:
    ran = samebits("check", "torch.nn.functional.linear", "--promise", "device")
    assert ran.code == 3
    words = "device is about two backends, which only our own operators have"
    assert f"not asked: torch.nn.functional.linear: {words}" in ran.out
    assert "nothing was judged" in ran.out


def test_check_prints_one_json_document(samebits: Samebits) -> None:
    ran = samebits("check", "torch.nn.functional.linear", "--promise", "batch", "--promise", "device", *SMALL, "--json")
    document = json.loads(ran.out)
    assert ran.code == 1 and document["schema"] == "samebits.report/1" and document["verdict"] == "does not hold"
    (finding,) = document["findings"]
    assert finding["promise"] == "batch" and finding["reproduce"].startswith(
        "samebits check torch.nn.functional.linear"
    )
    assert len(document["not_asked"]) == 1 and document["environment"]["torch"]
    assert document["coverage"]["classes"]["batch"]["calls"] >= 1


STRANGERS = """
import ctypes, os, sys, time
import torch

def exits(a, b): sys.exit(0)
def exits_at_once(a, b): os._exit(0)
def becomes_another(a, b): os.execv("/bin/true", ["true"])
def crashes(a, b): ctypes.string_at(0)
def aborts(a, b): os.abort()
def hangs(a, b): time.sleep(3600)
def raises(a, b): raise RuntimeError("Found no NVIDIA driver on your system")
def forges(a, b):
    for number in range(3, 40):
        try:
            os.write(number, bytes(64))
        except OSError:
            pass
    return a @ b
def eats(a, b):
    kept = []
    while True:
        kept.append(torch.empty(1 << 28))
"""


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("exits", "ended its process by SystemExit: 0"),
        ("exits_at_once", "ended its process in the middle of a call, exit code 0"),
        ("becomes_another", "ended its process in the middle of a call, exit code 0"),
        ("crashes", "crashed: SIGSEGV"),
        ("aborts", "crashed: SIGABRT"),
        ("hangs", "hangs: a call took more than 2 s and was ended"),
        ("raises", "raised RuntimeError: Found no NVIDIA driver on your system"),
        ("forges", "wrote into the checker's pipe"),
        ("eats", "ran out of memory"),
    ],
)
def test_what_cannot_run_could_not_be_judged(
    samebits: Samebits, monkeypatch: pytest.MonkeyPatch, function: str, words: str
) -> None:
    """Whatever a function does to its process, the answer is exit code 3 and the reason."""
    monkeypatch.setattr("samebits.checker.adversary.bench.CALL_SECONDS", 2.0 if function == "hangs" else 60.0)
    Path("strangers.py").write_text(STRANGERS)
    ran = samebits("check", f"./strangers.py:{function}", "--like", "matmul")
    assert ran.code == 3 and words in ran.out and ran.out.endswith("could not be judged: 1\n")


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("import sys; sys.exit(0)\n", 3, "cannot be imported: SystemExit: 0"),
        ("import os; os._exit(0)\n", 3, "cannot be imported: its process ended with exit code 0"),
        ("import no_such_package\n", 3, "cannot be imported: ModuleNotFoundError: No module named 'no_such_package'"),
        ("def f(a, b: return\n", 3, "cannot be imported: SyntaxError"),
        ("g = 1\n", 2, "samebits: 'stranger.py:f' cannot be imported: stranger has no 'f'\n"),
        ("f = 1\n", 2, "samebits: './stranger.py:f' is int; a function is needed\n"),
        (None, 2, "samebits: './stranger.py:f': no file './stranger.py'; "),
    ],
)
def test_a_file_that_cannot_be_imported(samebits: Samebits, text: str | None, code: int, words: str) -> None:
    if text is not None:
        Path("stranger.py").write_text(text)
    ran = samebits("check", "./stranger.py:f", "--like", "matmul")
    assert ran.code == code and words in (ran.out if code == 3 else ran.err) and "Traceback" not in ran.err


def test_what_only_operators_or_only_functions_take_is_told_apart(samebits: Samebits) -> None:
    ran = samebits("check", "matmul", "--case", "3x4x5")
    assert ran.code == 2 and "case is for someone's function; an operator is judged by its contract" in ran.err
    ran = samebits("check", "torch.mm", "--seconds", "-1")
    assert ran.code == 2 and "seconds must be in 0..86400, got seconds=-1.0" in ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check",), "samebits: check: name a component (adamw, attention, "),
        (
            ("check", "matmull"),
            "samebits: no component is called 'matmull'; did you mean 'matmul'? known: adamw, attention, ",
        ),
        (
            ("check", "matmul", "--promise", "bath"),
            "samebits: unknown promise 'bath'; did you mean 'batch'? known: repeat",
        ),
        (("check", "matmul", "--backend", "gpu"), "samebits: unknown backend 'gpu'; "),
        (("check", "torch.mm", "--like", "matmal"), "samebits: no spec is called 'matmal'; did you mean 'matmul'?"),
        (
            ("check", "matmul", "--shape", "3x-4x2"),
            "samebits: shape='3x-4x2' cannot be read; allowed: sizes joined by x",
        ),
        (("check", "matmul", "--shape", "3x4"), "samebits: matmul: shape=3x4 has 2 sizes; allowed: MxKxN"),
        (("check", "matmul", "--recipe", "mild"), "samebits: recipe='mild' is unknown; allowed: normal"),
        (("check", "matmul", "--format", "float8"), "samebits: format='float8' is unknown; allowed: float32"),
        (("check", "matmul", "--seed", "x"), "samebits: "),
        (("check", "no.module:f"), "samebits: 'no.module:f' cannot be imported: no module named 'no.module'"),
        (("check", "--bogus"), "samebits: No such option"),
        (("bogus",), "samebits: No such command 'bogus'"),
        (("reveal",), "samebits: Missing argument"),
        (
            ("reveal", "torch.mm", "--rows", "1,,2"),
            "samebits: rows='1,,2' cannot be read; allowed: sizes of at least 1",
        ),
        (("reveal", "torch.mm", "--device", "tpu"), "samebits: unknown device 'tpu'; allowed: cpu, cuda"),
        (
            ("reveal", "torch.mm", "--svg", "/no/such/folder/x.svg", "--k", "4", "--rows", "1"),
            "samebits: --svg /no/such",
        ),
        (("reveal", "rmsnorm", "--k", "8"), "samebits: rmsnorm: the statistic shows its sum for 4, 16, 64, 256"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(samebits: Samebits, arguments: tuple[str, ...], words: str) -> None:
    ran = samebits(*arguments)
    assert ran.code == 2 and ran.out == ""
    mistake = ran.err.splitlines()[-1]
    assert mistake.startswith(words) and ran.err.count("\n") == (2 if "searching" in ran.err else 1)


@pytest.mark.parametrize("command", ["check", "reveal", "doctor", "demo"])
def test_every_command_has_help_with_an_example(samebits: Samebits, command: str) -> None:
    ran = samebits(command, "--help")
    assert ran.code == 0 and "--json" in ran.out and f"samebits {command}" in ran.out and "Example" in ran.out


def commands(of: typer.Typer, *words: str) -> Iterator[tuple[str, str]]:
    """Every command with its help, those of groups too."""
    for each in of.registered_commands:
        assert each.callback is not None and each.help is not None
        yield " ".join([*words, each.name or each.callback.__name__.replace("_", "-")]), each.help
    for group in of.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, *words, str(group.name))


def test_help_is_broken_by_the_screen_and_names_a_whole_command() -> None:
    """Once lines ended where the docstring's did, and examples of contracts left out whose command they are."""
    found = dict(commands(app))
    assert {"train", "contract prove", "report write", "sim run"} <= found.keys()
    for name, said in found.items():
        assert "\n" not in said.replace("\n\n", ""), name
        examples = re.findall(r"\[bold\](.*?)\[/bold\]", said)
        assert all(each.startswith(("samebits ", "--")) for each in examples), (name, examples)
        assert examples and "Example" in said, name


def test_no_command_shows_the_commands(samebits: Samebits) -> None:
    ran = samebits()
    assert ran.code == 0 and all(command in ran.out for command in ("check", "reveal", "doctor", "demo"))


def test_a_shape_is_sizes_joined_by_x() -> None:
    assert parse_shape("33x576X64") == (33, 576, 64) and parse_shape(None) is None
    with pytest.raises(ValueError, match="shape='' cannot be read"):
        parse_shape("")


def test_reveal_finds_more_than_one_order_in_stock_linear_and_draws_each(samebits: Samebits) -> None:
    ran = samebits("reveal", "torch.nn.functional.linear", "--k", "64", "--rows", "1,2,8")
    assert ran.code == 1
    assert ran.out.count("replays; ") == ran.out.count("420 of 420 vectors replayed bit for bit") > 1
    assert "holds" not in ran.out and ran.out.rstrip().endswith("orders, one is needed")
    written = ran.out.split("written: ")[1].splitlines()[0].split(", ")
    assert all(Path(name).read_text().startswith("<svg ") for name in written) and len(written) > 1


def test_reveal_of_a_component_is_one_order_for_every_size(samebits: Samebits) -> None:
    ran = samebits("reveal", "matmul", "--k", "24", "--json", "--svg", "one.svg")
    document = json.loads(ran.out)
    assert ran.code == 0 and document["verdict"] == "holds" and document["schema"] == "samebits.reveal/1"
    (order,) = document["orders"]
    assert order["rows"] == [1, 2, 8, 64] and order["order"] == "chain of 24, one at a time"
    assert order["replayed"] == order["replay_total"] == 1680
    assert document["pictures"] == ["one.svg"] and Path("one.svg").exists()


def test_reveal_of_a_compensated_sum_does_not_hold(samebits: Samebits) -> None:
    ran = samebits("reveal", "examples.my_kernel:kahan", "--like", "matmul", "--k", "24", "--rows", "2", "--no-svg")
    assert ran.code == 1 and "does not hold: " in ran.out and not list(Path().glob("*.svg"))


def test_reveal_takes_a_plain_sum(samebits: Samebits) -> None:
    assert samebits("reveal", "torch.sum", "--k", "16", "--no-svg").code == 0


def test_doctor_says_what_runs(samebits: Samebits) -> None:
    ran = samebits("doctor", "--json")
    document = json.loads(ran.out)
    assert ran.code == 0 and document["backends"]["cpu"] == {"runs": True, "reason": ""}
    assert document["machine"]["instruction sets"].split()[0] == "baseline"
    assert "-ffp-contract=off" in document["machine"]["compiled by"]
    assert "backend cpu" in samebits("doctor").out


def test_doctor_exits_1_without_the_native_library(samebits: Samebits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a library that cannot be loaded. Nothing that needs it passes."""

    def missing() -> None:
        raise native.NativeError("libsamebits.so is not built; run it")

    monkeypatch.setattr(native, "library", missing)
    ran = samebits("doctor")
    assert ran.code == 1 and "cannot run: libsamebits.so is not built; run it" in ran.out
    judged = samebits("check", "matmul", "--like", "linear", "--promise", "batch", "--backend", "cpu", *SMALL)
    assert judged.code == 3 and "could not be judged" in judged.out
