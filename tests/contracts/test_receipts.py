"""Levels come from receipts: lost when what they name changes, refused when edited, kept for several machines.

On a user's own component outside the package, the one in examples/components, and a second one that depends on it. Most
receipts here are made up as a good run would make them; what is really run is told."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contracts.evidence import made_up

from samebits.checker.present import Present
from samebits.checker.status import ContractStanding, effective_levels, holes, shortfalls, standings
from samebits.contracts.receipts import ELSEWHERE, FRESH, STALE, WHOLE, Facts, Receipt, compared
from samebits.contracts.registry import Component, components
from samebits.contracts.store import ReceiptError, Store

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "components"
NAME, DEPENDENT = "square_of_positive", "fourth_power"


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `components`, and good receipts for all of the first and for levels 1 and 2 of the second."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(EXAMPLES / NAME, folder / "components" / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(folder / "components" / NAME, folder / "components" / DEPENDENT)
    for file in (folder / "components" / DEPENDENT).iterdir():
        text = file.read_text().replace(NAME, DEPENDENT).replace("SQ-", "FP-").replace("prefix: SQ", "prefix: FP")
        file.write_text(text.replace("depends_on: []", f"depends_on: [{NAME}]"))
    known = components(folder / "components", "components")
    present, store = Present(known), Store(folder / "receipts")
    store.write([*made_up(known[NAME], present), *made_up(known[DEPENDENT], present, (1, 2))])
    return folder


@pytest.fixture
def own(proved: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    shutil.copytree(proved, tmp_path / "own")
    return tmp_path / "own"


def found(folder: Path) -> tuple[dict[str, Component], dict[str, ContractStanding]]:
    known = components(folder / "components", "components")
    return known, standings(known, Store(folder / "receipts"))


def samebits(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "samebits.cli", *arguments], capture_output=True, text=True, cwd=cwd)


def test_a_users_own_contract_reaches_its_level(own: Path) -> None:
    known, standing = found(own)
    assert standing[NAME].levels == {"cpu": 3, "triton": None} and standing[NAME].verdict("cpu") == "holds"
    assert effective_levels(standing, known, "cpu") == {NAME: 3, DEPENDENT: 2} and not standing[NAME].stale("cpu")
    by_id = {each.obligation: each for each in standing[NAME].standings}
    assert by_id["SQ-OB1"].level == 4 and by_id["SQ-OB1"].proofs == ("enumeration: all of it",)
    assert all(each.calls >= 10_000 and each.killed == each.mutants >= 1 for each in by_id.values())
    here, counted = standing[NAME].here("cpu")
    assert here == counted >= 11 and all(one.standing == FRESH for one in standing[NAME].receipts)
    assert shortfalls({NAME: standing[NAME]}) == []
    (line,) = shortfalls({DEPENDENT: standing[DEPENDENT]})
    assert line.startswith(f"{DEPENDENT} on cpu: level 2 of 3: FP-OB1: level 3: no receipt that counts")
    assert line.endswith(f"renew with `samebits contract prove {DEPENDENT} --backend cpu`")


def test_what_is_run_is_written_down_and_replayed(own: Path) -> None:
    """Really run: one obligation at level 2, by the command, taken over elsewhere, and replayed by the command."""
    where = ("--components", "components", "--receipts", "made")
    ran = samebits("contract", "prove", NAME, "--only", "SQ-OB1", "--level", "2", *where, cwd=own)
    assert ran.returncode == 0 and "1 run, 1 receipts on" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stderr.splitlines() == [f"1 of 1: SQ-OB1 level 2 cpu ({NAME})"]
    taken = samebits("contract", "collect", "made", "--components", "components", "--receipts", "taken", cwd=own)
    assert taken.returncode == 0 and "taken over into taken" in taken.stdout, taken.stdout + taken.stderr
    where = ("--components", "components", "--receipts", "taken")
    again = samebits("contract", "replay", *where, "--json", cwd=own)
    document = json.loads(again.stdout)
    assert again.returncode == 0 and [each["verdict"] for each in document["replayed"]] == ["reproduced"]
    status = samebits("contract", "status", NAME, *where, "--json", cwd=own)
    shown = json.loads(status.stdout)[NAME]
    assert status.returncode == 3 and shown["backends"]["cpu"]["verdict"] == "could not be judged"
    assert [each["standing"] for each in shown["receipts"]] == [FRESH]


def test_what_a_contract_raises_ends_its_task_and_no_other(own: Path) -> None:
    """Planted: a predicate that ends the process as if all were well."""
    file = own / "components" / NAME / "properties.py"
    lines = file.read_text().replace("    negative = -", "    raise SystemExit(0)\n    negative = -")
    file.write_text(lines)
    asked = ["--components", "components", "--receipts", "made", "--level", "2", "--only", "SQ-OB1", "--only", "SQ-OB4"]
    done = samebits("contract", "prove", *asked, cwd=own)
    assert done.returncode == 3 and "SQ-OB1 level 2 cpu (square_of_positive): SystemExit: 0" in done.stdout, done
    assert [each.obligation for each in Store(own / "made").read(NAME)] == ["SQ-OB4"]


def test_collecting_stale_receipts_leaves_those_that_count(own: Path) -> None:
    """And the other way round: those that count replace stale ones."""
    current = Store(own / "receipts").read(NAME)
    Store(own / "old").write([replace(each, sources={**each.sources, "kernel": "0" * 32}) for each in current])
    before = (own / "receipts" / f"{NAME}.jsonl").read_bytes()
    ran = samebits("contract", "collect", "old", "--components", "components", "--receipts", "receipts", cwd=own)
    assert ran.returncode == 0 and f"; {len(current)} stale ones left where newer ones count" in ran.stdout, ran.stderr
    assert (own / "receipts" / f"{NAME}.jsonl").read_bytes() == before
    ran = samebits("contract", "collect", "receipts", "--components", "components", "--receipts", "old", cwd=own)
    assert ran.returncode == 0 and "stale" not in ran.stdout, ran.stderr
    assert (own / "old" / f"{NAME}.jsonl").read_bytes() == before


def test_collecting_unsays_no_refutation(own: Path) -> None:
    theirs = Store(own / "receipts").read(NAME)
    refuting = next(each for each in theirs if each.obligation == "SQ-OB106" and each.level == 3)
    Store(own / "here").write([replace(refuting, holds=False, detail="inf")])
    ran = samebits("contract", "collect", "receipts", "--components", "components", "--receipts", "here", cwd=own)
    assert ran.returncode == 0 and f"; 1 left that hold where one here does not: {refuting}" in ran.stdout, ran
    found_here = standings(components(own / "components", "components"), Store(own / "here"))[NAME]
    assert found_here.verdict("cpu") == "does not hold" and len(found_here.receipts) == len(theirs)


def lines_of(own: Path) -> tuple[Path, list[str]]:
    path = own / "receipts" / f"{NAME}.jsonl"
    return path, path.read_text().splitlines()


def test_a_deleted_receipt_lowers_the_level(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lines = lines_of(own)
    path.write_text("\n".join(line for line in lines if '"SQ-OB102"' not in line or '"level": 3' not in line) + "\n")
    known, standing = found(own)
    assert standing[NAME].levels["cpu"] == 2
    assert "SQ-OB102: level 3: no receipt that counts" in shortfalls({NAME: standing[NAME]})[0]
    monkeypatch.syspath_prepend(own)
    listed = [each.what for each in holes({NAME: known[NAME]}, standing)]
    assert listed == ["cpu: could not be judged: level 3: no receipt that counts"]


def test_a_contract_is_called_as_its_folder(own: Path) -> None:
    path = own / "components" / NAME / "contract.yaml"
    path.write_text(path.read_text().replace(f"contract: {NAME}", "contract: softmax", 1))
    done = samebits("contract", "status", "--components", "components", "--receipts", "receipts", cwd=own)
    assert done.returncode == 2 and f"contract is 'softmax'; allowed: '{NAME}', as its folder" in done.stderr, done


def test_no_receipts_is_no_pass(own: Path) -> None:
    known = components(own / "components", "components")
    standing = standings(known, Store(own / "nowhere"))
    assert {each.verdict("cpu") for each in standing.values()} == {"could not be judged"}
    assert standing[NAME].levels["cpu"] == 0 and len(shortfalls(standing)) == 2


def test_an_edited_receipt_is_false_and_refused(own: Path) -> None:
    path, lines = lines_of(own)
    place = next(number for number, line in enumerate(lines) if '"calls": 10000' in line and '"level": 3' in line)
    edited = lines[place].replace('"calls": 10000', '"calls": 99999', 1)
    path.write_text("\n".join([*lines[:place], edited, *lines[place + 1 :]]) + "\n")
    _, standing = found(own)
    assert standing[NAME].verdict("cpu") == "does not hold"
    assert standing[NAME].false[0].startswith(f"{path}:{place + 1}: SQ-OB1 level 3 on cpu")
    assert "content and id disagree; a receipt is made, never edited" in shortfalls({NAME: standing[NAME]})[0]
    with pytest.raises(ReceiptError, match=rf"{NAME}\.jsonl:{place + 1}: .*content and id disagree"):
        Store(own / "receipts").read(NAME)


def test_an_edited_machine_is_false_too(own: Path) -> None:
    """What many receipts share is in one line; changing it changes all of them."""
    path, lines = lines_of(own)
    path.write_text("\n".join(line.replace('"torch": "', '"torch": "9') for line in lines) + "\n")
    assert len(found(own)[1][NAME].false) >= 8


def test_a_receipt_counts_for_its_own_contract_alone(own: Path) -> None:
    """The types of another contract, with their own id and all, in a file where no types were shown."""
    store = Store(own / "receipts")
    types = [each for each in store.read(DEPENDENT) if each.obligation == WHOLE]
    kept = [each for each in store.read(NAME) if each.obligation != WHOLE]
    path, _ = lines_of(own)
    path.unlink()
    store.write(kept)
    assert found(own)[1][NAME].levels["cpu"] == 0
    (own / "receipts" / f"{DEPENDENT}.jsonl").unlink()
    store.write(types)
    moved = (own / "receipts" / f"{DEPENDENT}.jsonl").read_text()
    path.write_text(path.read_text() + moved)
    _, standing = found(own)
    assert (standing[NAME].levels["cpu"], standing[NAME].verdict("cpu")) == (0, "does not hold")
    assert standing[NAME].false[0].endswith(f"speaks about {DEPENDENT!r}; allowed: {NAME!r}")
    with pytest.raises(ReceiptError, match="speaks about"):
        store.read(NAME)


def test_of_stale_receipts_the_one_with_least_changes_is_named(own: Path) -> None:
    """An older one, whose check has another name by now, says nothing that the newer one does not."""
    one = next(each.receipt for each in found(own)[1][NAME].receipts if each.receipt.key[1:4] == ("SQ-OB1", "cpu", 2))
    older = replace(one, by="components.check:older", sources=dict.fromkeys(one.sources, "0" * 32))
    Store(own / "receipts").write([older])
    kernel = own / "components" / NAME / "__init__.py"
    kernel.write_text(kernel.read_text() + "\nEXTRA = 1\n")
    (standing,) = [each for each in found(own)[1][NAME].standings if each.obligation == "SQ-OB1"]
    (line,) = [line for line in standing.stale if line.startswith("level 2")]
    assert line == f"level 2 ({one.machine}): kernel: the code of the kernel changed"


def test_a_changed_kernel_makes_receipts_and_dependents_stale(own: Path) -> None:
    kernel = own / "components" / NAME / "__init__.py"
    kernel.write_text(kernel.read_text().replace("wide <= 0,", "wide < 0,"))
    _, standing = found(own)
    assert standing[NAME].levels["cpu"] == 0
    assert "kernel: the code of the kernel changed" in standing[NAME].stale("cpu")
    assert standing[DEPENDENT].levels["cpu"] == 1  # types do not depend on another contract's code
    assert f"dependencies: {NAME} changed" in standing[DEPENDENT].stale("cpu")


@pytest.mark.parametrize("place", ["components", f"components/{NAME}/inner"])
def test_a_package_around_the_kernel_is_part_of_it(own: Path, place: str) -> None:
    """Planted: what the kernel calls is replaced when a package that it lies in is imported."""
    folder = own / "components" / NAME
    (folder / "inner").mkdir()
    (folder / "inner" / "__init__.py").write_text("")
    (own / "components" / "__init__.py").write_text("")
    (folder / "inner" / "kernel.py").write_text((folder / "__init__.py").read_text())
    (folder / "__init__.py").write_text(f"from components.{NAME}.inner.kernel import {NAME} as {NAME}\n")
    path, subject = folder / "contract.yaml", f'object: "components.{NAME}:{NAME}"'
    assert subject in path.read_text()
    path.write_text(path.read_text().replace(subject, f'object: "components.{NAME}.inner.kernel:{NAME}"'))
    known = components(own / "components", "components")
    Store(own / "receipts").write(made_up(known[NAME], Present(known), (2,)))
    assert found(own)[1][NAME].here("cpu")[0] == 4
    (own / place / "__init__.py").write_text("import torch\ntorch.where = None\n")
    assert found(own)[1][NAME].here("cpu")[0] == 0
    assert "kernel: the code of the kernel changed" in found(own)[1][NAME].stale("cpu")


def test_a_comment_a_docstring_and_a_line_break_void_nothing(own: Path) -> None:
    kernel = own / "components" / NAME / "__init__.py"
    text = kernel.read_text()
    kernel.write_text(text.replace('"""', '"""Other words. ', 1).replace("wide <= 0,", "wide <= (\n0),  # why\n", 1))
    assert kernel.read_text().count("Other words") == 1 and "# why" in kernel.read_text()
    assert found(own)[1][NAME].levels["cpu"] == 3


def test_a_changed_contract_makes_its_obligation_stale(own: Path) -> None:
    contract = own / "components" / NAME / "contract.yaml"
    contract.write_text(contract.read_text().replace("what is not positive gives +0", "negatives give +0"))
    _, standing = found(own)
    by_id = {each.obligation: each for each in standing[NAME].standings}
    assert by_id["SQ-OB1"].level == 1 and "contract: the contract's words changed" in by_id["SQ-OB1"].stale[0]
    assert by_id["SQ-OB106"].level == 4  # another obligation's words
    assert standing[DEPENDENT].stale("cpu")  # but whoever depends on the contract must look again


def receipt() -> Receipt:
    return Receipt(
        contract="c",
        obligation="C-OB1",
        backend="cpu",
        level=2,
        method="examples",
        by="batch",
        holds=True,
        sources={"kernel": "k"},
        dependencies={},
        result="r",
        where={"architecture": "x86-64", "processor": "P", "torch": "2"},
    )


def test_another_machine_shows_it_elsewhere() -> None:
    made = receipt()
    same = Facts(sources=made.sources, dependencies={}, where=made.where)
    assert compared(made, same).standing == FRESH
    there = compared(made, replace(same, where={**made.where, "torch": "3"}))
    assert (there.standing, there.reasons, there.counts) == (ELSEWHERE, ("torch 2 there, 3 here",), True)
    both = replace(same, sources={"kernel": "other"}, where={**made.where, "torch": "3"})
    assert (compared(made, both).standing, compared(made, None).standing) == (STALE, STALE)


def test_a_level_is_shown_by_its_own_methods() -> None:
    with pytest.raises(ValueError, match="level 4 is not shown by 'draws'"):
        replace(receipt(), level=4, method="draws")


@pytest.mark.parametrize(("obligation", "level", "method"), [(WHOLE, 2, "examples"), ("C-OB1", 1, "types")])
def test_no_line_speaks_for_all_obligations_but_of_types(
    tmp_path: Path, obligation: str, level: int, method: str
) -> None:
    """It would count for each of them, and no run would ever give it again."""
    forged = receipt()
    for name, value in (("obligation", obligation), ("level", level), ("method", method)):
        object.__setattr__(forged, name, value)
    Store(tmp_path).write([forged])
    with pytest.raises(ReceiptError, match=rf"c\.jsonl:2: no receipt: level {level} is shown for .*; allowed: "):
        Store(tmp_path).look("c")


def test_what_no_run_gives_counts_for_nothing(own: Path) -> None:
    """The receipts of one backend under the name of two, or of one that there is not."""
    known, standing = found(own)
    honest = next(each.receipt for each in standing[NAME].receipts if each.receipt.level == 2)
    for backend in ("cpu, triton", "tpu"):
        forged = replace(honest, backend=backend)
        facts = Present(known).facts(known[NAME], honest.obligation, backend, "examples")
        forged = replace(forged, sources=dict(facts.sources), where=dict(facts.where))
        assert not compared(forged, Present(known).of(forged)).counts


def test_a_line_that_stands_there_twice_is_one_receipt(own: Path) -> None:
    path, lines = lines_of(own)
    before = found(own)[1][NAME].here("cpu")
    path.write_text("\n".join(lines + lines) + "\n")
    assert found(own)[1][NAME].here("cpu") == before


def test_a_receipt_that_says_it_takes_long_is_told(own: Path) -> None:
    """A forger writes how long a run takes, too: one that is never drawn must not look replayed."""
    done = samebits(
        "contract", "replay", NAME, "--components", "components", "--receipts", "receipts", "--seconds", "0.5", cwd=own
    )
    assert done.returncode == 3, done
    assert "never drawn, for they say that they take longer than 0.5 s: 12 receipts" in done.stdout


def test_a_newer_receipt_takes_the_place_of_an_older_of_its_machine(tmp_path: Path) -> None:
    store, arm = Store(tmp_path), {"architecture": "aarch64", "processor": "N1", "torch": "2"}
    store.write([receipt(), replace(receipt(), where=arm)])
    store.write([replace(receipt(), holds=False), replace(receipt(), obligation="C-OB2")])
    assert [(each.obligation, each.machine, each.holds) for each in store.read("c")] == [
        ("C-OB1", "aarch64", True),
        ("C-OB1", "x86-64", False),
        ("C-OB2", "x86-64", True),
    ]


def test_an_older_schema_counts_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(
        json.dumps(
            {
                "schema": "samebits.receipt/1",
                "obligation": "C-OB1",
                "level": 3,
                "by": "batch",
                "seconds": 7.5,
                "id": "x",
            }
        )
        + "\n"
    )
    shelf = Store(tmp_path).look("c")
    assert (shelf.receipts, shelf.false, shelf.outdated) == ((), (), 1)
    assert Store(tmp_path).seconds("c") == {("C-OB1", 3, "batch"): 7.5}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "no receipt"),
        ("[1]", "no receipt"),
        ("[" * 100_000, "no receipt"),
        ('{"schema": "samebits.receipt/2"}', "'where'"),
        ('{"schema": "samebits.receipt/2", "where": "w"}', "where is 'w'; allowed: a name that a line above gives"),
        ('{"holds": false, "holds": true}', "key 'holds' is there twice"),
        ('{"facts": {}}', "where and facts must be"),
        ('{"where": ["w"], "facts": {}}', "where and facts must be"),
        ('{"where": "w", "facts": [1]}', "where and facts must be"),
    ],
)
def test_what_is_no_receipt_is_told_by_its_line(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "c.jsonl").write_text(f"\n{line}\n")
    with pytest.raises(ReceiptError, match=rf"c\.jsonl:2: .*{words}"):
        Store(tmp_path).look("c")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("holds", "no"),
        ("holds", 1),
        ("level", 2.0),
        ("calls", "99999"),
        ("calls", float("nan")),
        ("seconds", -1.0),
        ("killed", 3),
        ("killed", {"C-MU1": None}),
        ("classes", {"normal": "many"}),
        ("sources", None),
        ("backend", 3),
    ],
)
def test_a_receipt_of_other_types_is_refused_though_its_id_fits(tmp_path: Path, name: str, value: object) -> None:
    Store(tmp_path).write([replace(receipt(), **{name: value})])  # type: ignore[arg-type]
    with pytest.raises(ReceiptError, match=rf"c\.jsonl:2: no receipt: {name} is "):
        Store(tmp_path).look("c")


def test_what_is_no_file_of_receipts_is_told_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ReceiptError, match=r"c\.jsonl: no receipts: 'utf-8'"):
        Store(tmp_path).look("c")
    path.unlink()
    path.mkdir()
    with pytest.raises(ValueError, match=r"c\.jsonl: is a folder; allowed: a plain file"):
        Store(tmp_path).look("c")
