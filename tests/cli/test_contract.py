"""`samebits contract`, as a user types it: what is wrong has its line, what is weaker is breaking."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

import samebits.ops
from samebits.checker import status
from samebits.cli.commands import contract, contract_files

SOFTMAX = Path(samebits.ops.__path__[0]) / "softmax" / "contract.yaml"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "components"


def test_validate_names_file_line_and_id(samebits: Any, tmp_path: Path) -> None:
    good = samebits("contract", "validate")
    assert good.code == 0 and "contracts: every line is executed" in good.out
    broken = tmp_path / "contract.yaml"
    lines = SOFTMAX.read_text().splitlines()
    place = next(number for number, line in enumerate(lines) if "domain: SM-D5" in line)
    broken.write_text("\n".join([*lines[:place], lines[place].replace("SM-D5", "SM-D99"), *lines[place + 1 :]]) + "\n")
    ran = samebits("contract", "validate", str(broken))
    assert ran.code == 1 and "'SM-D99' is not an id of domains" in ran.out and f"{broken}:" in ran.out
    shown = json.loads(samebits("contract", "validate", str(broken), "--json").out)
    assert shown["problems"][0]["line"] > 1


@pytest.mark.parametrize(("asked", "jobs"), [(None, 1), (None, 1000), ("1", 1)])
def test_jobs_share_the_cores(monkeypatch: pytest.MonkeyPatch, asked: str | None, jobs: int) -> None:
    """Each its part, at least one thread, in the processes that it starts too; what the user set stays."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if asked is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=contract._share_cores, initargs=(jobs,)) as pool:
        threads, variable = pool.submit(torch.get_num_threads).result(), pool.submit(os.getenv, "OMP_NUM_THREADS")
        expected = int(asked) if asked else max(1, len(os.sched_getaffinity(0)) // jobs)
        assert threads == expected and variable.result() == str(expected)


def test_a_weaker_contract_is_breaking(samebits: Any, tmp_path: Path) -> None:
    """Planted faults: a larger tolerance, fewer inputs, a mutant that is gone."""
    weaker = tmp_path / "contract.yaml"
    text = SOFTMAX.read_text()
    for old, new in (
        ("{kind: ulp, value: 2}", "{kind: ulp, value: 3}"),
        ("[normal, wide, cancelling]", "[normal, wide]"),
    ):
        assert old in text
        weaker.write_text(text.replace(old, new, 1))
        ran = samebits("contract", "diff", str(SOFTMAX), str(weaker))
        assert ran.code == 1 and "breaking" in ran.out and "0 breaking" not in ran.out
    same = samebits("contract", "diff", str(SOFTMAX), str(SOFTMAX))
    assert same.code == 0 and "0 changes, 0 breaking" in same.out


def test_a_scaffold_fails_until_it_is_filled(samebits: Any, tmp_path: Path) -> None:
    made = samebits("contract", "scaffold", "my_kernel", "--prefix", "MK", "--folder", str(tmp_path))
    assert made.code == 0 and (tmp_path / "my_kernel" / "contract.yaml").is_file()
    assert samebits("contract", "validate", str(tmp_path / "my_kernel")).code == 1
    again = samebits("contract", "scaffold", "my_kernel", "--prefix", "MK", "--folder", str(tmp_path))
    assert again.code == 2 and again.err.count("\n") == 1


@pytest.fixture(scope="module")
def gathered_once() -> Iterator[None]:
    """Receipts and sources are read for one form of the graph."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(contract_files, "_graph", cache(contract_files._graph))
        yield


@pytest.mark.parametrize(
    ("form", "word"), [("text", "softmax"), ("mermaid", "graph"), ("dot", "digraph"), ("json", "{")]
)
def test_the_graph_in_every_form(samebits: Any, gathered_once: None, form: str, word: str) -> None:
    ran = samebits("contract", "graph", "--format", form)
    assert ran.code == 0 and word in ran.out and "attention" in ran.out


def test_the_graph_as_a_page(samebits: Any, gathered_once: None, tmp_path: Path) -> None:
    ran = samebits("contract", "graph", "--format", "html", "--output", str(tmp_path / "graph.html"))
    page = (tmp_path / "graph.html").read_text()
    assert ran.code == 0 and "<svg" in page and "attention" in page and not list(tmp_path.glob("*.new"))


def test_a_mistake_is_one_line(samebits: Any, tmp_path: Path) -> None:
    for arguments, words in (
        (("contract", "prove", "nothing"), "no contract is called 'nothing'"),
        (("contract", "prove", "softmax", "--level", "9"), "allowed: levels 1 to 4"),
        (("contract", "status", "--components", str(tmp_path)), "has no component"),
        (("contract", "collect", str(tmp_path / "none")), "is not a folder"),
        (("contract", "replay", "--sample", "0"), "sample=0, seconds=60.0; allowed: at least 1"),
        (("contract", "status", "--backend", "tpu"), "unknown backend 'tpu'"),
        (("contract", "prove", "--backend", "tpu"), "unknown backend 'tpu'"),
        (("contract", "sign", "--key", str(tmp_path / "none")), "is not a file; pass a private ssh key"),
        (("contract", "verify", "--allowed-signers", str(tmp_path / "none")), "is not a file; pass one with"),
        (("contract", "diff", "git:HEAD", "git:HEAD"), "both sides are revisions"),
    ):
        ran = samebits(*arguments)
        assert ran.code == 2 and words in ran.err and ran.err.count("\n") == 1, ran.err


def test_an_audit_lists_what_waits(samebits: Any, tmp_path: Path) -> None:
    """Without receipts every obligation is a hole; what has no code is listed and never counted."""
    ran = samebits("contract", "audit", "--receipts", str(tmp_path), "--json")
    found = json.loads(ran.out)
    assert ran.code == 1 and found["holes"] and "BUFSIZE-OB7" in found["not_bound_yet"]["buf_size"]
    assert all("not bound" not in each["what"] for each in found["holes"])


@pytest.mark.parametrize("command", ["status", "audit"])
def test_a_name_that_no_contract_has_is_refused_before_receipts_are_read(
    samebits: Any, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise ValueError("receipts were read")

    monkeypatch.setattr(status, "standings", read)
    assert "receipts were read" in samebits("contract", command, "softmax").err
    ran = samebits("contract", command, "softmx")
    assert ran.code == 2 and ran.out == "" and "no contract is called 'softmx'" in ran.err and "softmax" in ran.err


@pytest.mark.parametrize(
    ("names", "drawn"), [((), {"kv_cache"}), (("gradient_accumulation",), {"gradient_accumulation"})]
)
def test_level_three_is_drawn_where_it_is_required_or_asked_for(
    samebits: Any, names: tuple[str, ...], drawn: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A contract that requires level 2 says so because thousands of its calls take hours."""
    found: list[str] = []

    def listed(work: list[Any], *_: Any) -> list[Any]:
        found.extend(task.component.name for task in work)
        return []

    monkeypatch.setattr(contract, "_run", listed)
    samebits("contract", "prove", *names, "--level", "3", "--backend", "cpu", "--receipts", str(tmp_path / "none"))
    assert {"kv_cache", "gradient_accumulation"} & set(found) == drawn


def test_what_compares_both_backends_is_drawn_for_the_gpus_level(
    samebits: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whether bits agree between the CPU and a GPU counts for the GPU's level: not run, no contract would reach it."""
    found: list[tuple[str, str]] = []

    def listed(work: list[Any], *_: Any) -> list[Any]:
        found.extend((task.name, task.backend) for task in work)
        return []

    monkeypatch.setattr(contract, "_run", listed)
    samebits("contract", "prove", "--level", "3", "--backend", "triton", "--receipts", str(tmp_path / "none"))
    assert ("SM-OB107", "cpu, triton") in found
