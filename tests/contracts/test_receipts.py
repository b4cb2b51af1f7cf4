"""Levels come from receipts: made by running, lost when anything they name changes, refused when edited.

On a user's own room outside the package, the one in examples/rooms, and a second room that depends on it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from samebits.checker.standing import ContractStanding, effective_levels, standings
from samebits.contracts.receipts import Now, Receipt, ReceiptError, Store, expired
from samebits.contracts.registry import Room, rooms

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "rooms"
NAME, DEPENDENT = "square_of_positive", "fourth_power"


def samebits(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "samebits.cli", *arguments], capture_output=True, text=True, cwd=cwd)


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `rooms` and the receipts that `prove` made for them."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copytree(EXAMPLES / NAME, folder / "rooms" / NAME, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(folder / "rooms" / NAME, folder / "rooms" / DEPENDENT)
    for file in (folder / "rooms" / DEPENDENT).iterdir():
        text = file.read_text().replace(NAME, DEPENDENT).replace("SQ-", "FP-").replace("prefix: SQ", "prefix: FP")
        file.write_text(text.replace("depends_on: []", f"depends_on: [{NAME}]"))
    where = ("--rooms", "rooms", "--receipts", "receipts")
    for asked in ([NAME], [DEPENDENT, "--level", "1", "--level", "2"]):
        done = samebits("contract", "prove", *asked, *where, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def own(proved: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    shutil.copytree(proved, tmp_path / "own")
    return tmp_path / "own"


def found(folder: Path) -> tuple[dict[str, Room], dict[str, ContractStanding]]:
    known = rooms(folder / "rooms", "rooms")
    return known, standings(known, Store(folder / "receipts"))


def test_a_users_own_contract_reaches_its_level(own: Path) -> None:
    known, standing = found(own)
    assert standing[NAME].levels == {"cpu": 3, "triton": None}
    assert effective_levels(standing, known, "cpu") == {NAME: 3, DEPENDENT: 2} and not standing[NAME].stale
    by_id = {each.obligation: each for each in standing[NAME].standings}
    assert by_id["SQ-OB1"].level == 4 and "65,280 finite bfloat16" in by_id["SQ-OB1"].proofs[0]
    assert all(each.inputs >= 10_000 and each.killed == each.mutants >= 1 for each in by_id.values())
    where = ("--rooms", "rooms", "--receipts", "receipts")
    done = samebits("contract", "audit", NAME, *where, cwd=own)
    assert done.returncode == 0 and "1 contracts, 0 holes" in done.stdout
    done = samebits("contract", "status", NAME, *where, "--json", cwd=own)
    assert done.returncode == 0 and json.loads(done.stdout)[NAME]["levels"]["cpu"] == 3
    again = samebits("contract", "prove", NAME, *where, cwd=own)
    assert again.returncode == 0 and "0 run, 0 receipts" in again.stdout


def lines_of(own: Path) -> tuple[Path, list[str]]:
    path = own / "receipts" / f"{NAME}.jsonl"
    return path, path.read_text().splitlines()


def test_a_deleted_receipt_lowers_the_level(own: Path) -> None:
    path, lines = lines_of(own)
    path.write_text("\n".join(line for line in lines if '"SQ-OB2"' not in line or '"level": 3' not in line) + "\n")
    _, standing = found(own)
    assert standing[NAME].levels["cpu"] == 2
    done = samebits("contract", "audit", NAME, "--rooms", "rooms", "--receipts", "receipts", cwd=own)
    assert done.returncode == 1 and "SQ-OB2: cpu: level 3: no receipt" in done.stdout and "1 holes" in done.stdout


def test_no_receipts_is_no_pass(own: Path) -> None:
    done = samebits("contract", "status", "--rooms", "rooms", "--receipts", "nowhere", cwd=own)
    assert done.returncode == 3 and "1 at 0" not in done.stdout and "2 at 0 loads" in done.stdout


def test_an_edited_receipt_is_refused(own: Path) -> None:
    path, lines = lines_of(own)
    place = next(number for number, line in enumerate(lines) if '"inputs": 1' in line and '"level": 3' in line)
    edited = lines[place].replace('"inputs": 1', '"inputs": 9', 1)
    path.write_text("\n".join([*lines[:place], edited, *lines[place + 1 :]]) + "\n")
    with pytest.raises(ReceiptError, match=rf"{NAME}\.jsonl:{place + 1}: .*content and id disagree"):
        found(own)


def test_a_changed_kernel_line_makes_receipts_and_dependents_stale(own: Path) -> None:
    kernel = own / "rooms" / NAME / "__init__.py"
    kernel.write_text(kernel.read_text().replace("wide <= 0,", "wide <= 0.0,"))
    _, standing = found(own)
    assert standing[NAME].levels["cpu"] == 0 and standing[NAME].stale == 4
    assert all("the source has changed since" in each.stale[0] for each in standing[NAME].standings)
    assert standing[DEPENDENT].levels["cpu"] == 1  # types do not depend on another room's source
    assert any(f"{NAME} has changed since, on which it depends" in why
               for each in standing[DEPENDENT].standings for why in each.stale)  # fmt: skip


def test_a_changed_contract_makes_its_obligation_stale(own: Path) -> None:
    contract = own / "rooms" / NAME / "contract.yaml"
    contract.write_text(contract.read_text().replace("what is not positive gives +0", "negatives give +0"))
    _, standing = found(own)
    by_id = {each.obligation: each for each in standing[NAME].standings}
    assert by_id["SQ-OB1"].level == 1 and "the contract has changed since" in by_id["SQ-OB1"].stale[0]
    assert by_id["SQ-OB3"].level == 4  # another obligation's words
    assert standing[DEPENDENT].stale  # but whoever depends on the contract must look again


def receipt() -> Receipt:
    return Receipt(contract="c", obligation="C-OB1", backend="cpu", level=2, method="examples", by="batch", holds=True,
                   obligation_digest="o", source_digest="s", checker_digest="k", dependencies={},
                   environment={"processor": "p", "torch": "2", "instruction sets": "a"})  # fmt: skip


def test_another_machine_is_another_matter() -> None:
    made = receipt()
    same = Now(obligation_digest="o", source_digest="s", dependencies={}, environment=made.environment)
    assert expired(made, same) == ""
    other = replace(same, environment={**made.environment, "torch": "3"})
    assert expired(made, other) == "made with torch '2', here it is '3'"
    # A GPU's receipt speaks where no GPU is, for that GPU; where there is another one it does not.
    on_gpu = replace(made, backend="triton", environment={"gpu": "H", "torch": "2", "triton": "3"})
    assert expired(on_gpu, replace(same, environment={"gpu": "none", "torch": "9"})) == ""
    both = replace(on_gpu, backend="cpu, triton")
    assert expired(both, replace(same, environment={"gpu": "none", "torch": "9"})) == ""
    assert "made with gpu 'H'" in expired(on_gpu, replace(same, environment={"gpu": "B", "torch": "2", "triton": "3"}))


def test_a_level_is_shown_by_its_own_methods() -> None:
    with pytest.raises(ValueError, match="level 4 is not shown by 'draws'"):
        replace(receipt(), level=4, method="draws")


def test_a_newer_receipt_takes_the_place_of_an_older(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write([receipt()])
    store.write([replace(receipt(), holds=False), replace(receipt(), obligation="C-OB2")])
    assert [(each.obligation, each.holds) for each in store.read("c")] == [("C-OB1", False), ("C-OB2", True)]
