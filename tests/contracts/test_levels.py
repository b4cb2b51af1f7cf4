"""Every contract stands where it must, on every backend, by receipts that count; the logic is tried on made-up stores.

The first test is red where a required level is missing or stale, and names the command that renews it. What is not
shown yet is in receipts/behind.yaml with the level that is; it may not fall, nor be listed once it is reached."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.contracts.evidence import made_at, made_up

from samebits.checker import environment
from samebits.checker.present import Present
from samebits.checker.status import shortfalls, standings
from samebits.checker.targets import OPERATORS
from samebits.cli.commands.contract_components import known_components
from samebits.contracts.graph import graph_of
from samebits.contracts.receipts import Receipt
from samebits.contracts.registry import Component
from samebits.contracts.store import Store
from samebits.records.shipped import shipped

NAME = "swiglu"
"""A contract with proofs of both backends and an obligation that compares them; it must reach level 3 on both."""


def test_every_required_level_is_reached() -> None:
    known = known_components(None)
    found = standings(known, Store(shipped("receipts")))
    behind = yaml.safe_load((shipped("receipts") / "behind.yaml").read_text())
    required = {
        name: {each: component.contract().required(each) for each in component.contract().backends}
        for name, component in known.items()
    }
    wanted = {name: {**levels, **behind.get(name, {})} for name, levels in required.items()}
    reached = {
        name: {each: min(found[name].levels[each] or 0, level) for each, level in levels.items()}
        for name, levels in required.items()
    }
    assert reached == wanted, "\n".join(["", *shortfalls(found)])
    assert all(level < required[name][each] for name, levels in behind.items() for each, level in levels.items())
    # Asked for one contract, the answer is the same, with all that it depends on and nothing else.
    part = standings(known, Store(shipped("receipts")), ["lm_head"])
    assert {"lm_head", "matmul"} <= part.keys() < found.keys() and "adamw" not in part
    assert part == {name: found[name] for name in part}


@pytest.fixture
def component(monkeypatch: pytest.MonkeyPatch) -> Component:
    monkeypatch.setattr(environment, "gpu", lambda: "NVIDIA H200 (compute capability 9.0)")
    return OPERATORS.components()[NAME]


def lines(component: Component, folder: Path, receipts: list[Receipt]) -> list[str]:
    store = Store(folder)
    store.write(receipts)
    return shortfalls(standings({NAME: component}, store))


def test_a_full_store_is_green(component: Component, tmp_path: Path) -> None:
    assert lines(component, tmp_path, made_up(component, Present({NAME: component}))) == []


def without(part: Callable[[Receipt], bool]) -> Callable[[Receipt], Receipt | None]:
    return lambda each: None if part(each) else each


def with_(part: Callable[[Receipt], bool], **changes: object) -> Callable[[Receipt], Receipt | None]:
    return lambda each: replace(each, **changes) if part(each) else each  # type: ignore[arg-type]


def is_(obligation: str, level: int, backend: str) -> Callable[[Receipt], bool]:
    return lambda each: (each.obligation, each.level, each.backend) == (obligation, level, backend)


FAULTS: dict[str, tuple[Callable[[Receipt], Receipt | None], str]] = {
    "removed on the GPU": (without(is_("SG-OB102", 3, "triton")), "on triton: level 2 of 3: SG-OB102: level 3: no"),
    "removed on the CPU": (without(is_("SG-OB102", 2, "cpu")), "on cpu: level 1 of 3: SG-OB102: level 2: no"),
    "types removed": (without(lambda each: each.level == 1 and each.backend == "cpu"), "swiglu on cpu: level 0 of 3"),
    "stale": (with_(is_("SG-OB102", 3, "cpu"), sources={"kernel": "other"}), "stale: kernel: the code of the kernel"),
    "too few calls": (with_(is_("SG-OB102", 3, "cpu"), calls=9_999), "SG-OB102: level 3: 9999 calls of 10000"),
    "a mutant alive": (with_(is_("SG-OB102", 2, "cpu"), killed={}), "SG-OB102: level 2: SG-MU"),
    "a recipe never drawn": (with_(is_("SG-OB102", 3, "cpu"), classes={"normal": 9}), "never drawn"),
    "does not hold": (with_(is_("SG-OB102", 3, "triton"), holds=False, detail="row 3 differs"), "H200: row 3 differs"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_missing_or_stale_is_red(component: Component, tmp_path: Path, fault: str) -> None:
    """Planted faults: one receipt of a full store is gone or says something else."""
    change, words = FAULTS[fault]
    made = [changed for each in made_up(component, Present({NAME: component})) if (changed := change(each)) is not None]
    (line,) = lines(component, tmp_path, made)
    assert words in line and f"samebits contract prove {NAME} --backend " in line, line


def test_a_proof_counts_for_its_own_backend_and_none_may_be_missing(component: Component, tmp_path: Path) -> None:
    contract = component.contract()
    traced = next(name for name, entry in contract.proofs.items() if entry.kind == "dag")
    assert contract.proofs[traced].backends == ["triton"]
    identifier = contract.proofs[traced].obligations[0]
    made = made_up(component, Present({NAME: component}))
    assert not [each for each in made if each.method in ("dag", "artifact") and "cpu" in each.backend]

    def level(receipts: list[Receipt], backend: str) -> tuple[int, str]:
        store = Store(tmp_path / f"{len(receipts)} {backend}")
        store.write(receipts)
        own = standings({NAME: component}, store)[NAME].standings
        (one,) = (each for each in own if (each.obligation, each.backend) == (identifier, backend))
        return one.level, one.lacks

    assert level(made, "triton")[0] == 4
    some = [each for each in made if not (each.method == "dag" and each.obligation == identifier)]
    assert level(some, "triton") == (3, f"level 4: {traced} has no receipt that counts")
    reached, lacks = level(made, "cpu")
    assert not contract.proofs_of(identifier, "cpu"), "choose an obligation without a proof on the CPU"
    assert (reached, lacks) == (3, "level 4: no proof is declared for cpu")


def test_several_machines_and_one_vocabulary(component: Component, tmp_path: Path) -> None:
    """Shown on another machine counts; status, graph and the lines of a shortfall say the same of it."""
    present = Present({NAME: component})
    made = made_up(component, present)
    here_is = next(each.where["architecture"] for each in made if "architecture" in each.where)
    elsewhere_is = "aarch64" if here_is == "x86-64" else "x86-64"
    other = [
        made_at(each, present, architecture=elsewhere_is, processor="another")
        for each in made
        if "architecture" in each.where
    ]
    elsewhere = [each for each in made if "architecture" not in each.where]
    store = Store(tmp_path)
    store.write([*other, *elsewhere])
    found = standings({NAME: component}, store)
    assert shortfalls(found) == [] and found[NAME].shown_on("cpu")[0].startswith(f"{elsewhere_is} (another)")
    assert found[NAME].shown_on("triton")[-1].endswith("NVIDIA H200")
    here, counted = found[NAME].here("cpu")
    assert here < counted
    store.write(made)
    both = standings({NAME: component}, store)
    assert len(both[NAME].receipts) > len(made) and len(both[NAME].shown_on("cpu")) == 2
    graph = graph_of({NAME: component.contract()}, levels={NAME: both[NAME].levels})
    assert graph.nodes[NAME].verdict == both[NAME].verdict("cpu") == both[NAME].verdict("triton") == "holds"


def test_kills_of_what_no_longer_counts_are_not_counted(
    component: Component, tmp_path: Path, samebits_main: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [each for each in made_up(component, Present({NAME: component})) if each.level == 2]
    Store(tmp_path / "good").write(made)
    Store(tmp_path / "stale").write([replace(each, sources={}) for each in made])
    alive = [
        json.loads(
            samebits_main("contract", "status", NAME, "--mutants", "--receipts", str(tmp_path / kind), "--json")
        )["alive"]
        for kind in ("good", "stale")
    ]
    asked = sum(len(each.mutants) for each in component.contract().obligations.values())
    assert alive == [0, asked]


@pytest.fixture
def samebits_main(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The command in this process: what it prints."""
    from typer.testing import CliRunner

    from samebits.cli.commands.contract import app

    return lambda *arguments: CliRunner().invoke(app, arguments[1:]).stdout
