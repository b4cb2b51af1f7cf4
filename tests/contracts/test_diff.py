"""diff calls breaking whatever asks for less, and a version that does not fit what changed is a finding."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import samebits.ops
from samebits.contracts.diff import Change, diff, findings, required_version
from samebits.contracts.loading import contract_of, load_contract
from samebits.contracts.revisions import two_sides
from samebits.contracts.strict_yaml import ContractError

FILE = Path(samebits.ops.__path__[0]) / "softmax" / "contract.yaml"
GOOD = """
contract: sum
prefix: SU
version: 1.2.3
requires_level: 3
refs: [{work: "A work", locator: "page 1"}]
depends_on: [first, second]
numerics: {accumulator: float32, fused: none, flush_to_zero: false, tf32: false, atomics: false}
equations:
  SU-EQ1: {text: "y = sum x", reference: "samebits.reference:total"}
subjects:
  SU-S1: {object: "samebits.kernels:total", equation: SU-EQ1, spec: total,
          orders: {cpu: {float32: lanes-256, float16: chain-1}}}
domains:
  SU-D1: {shapes: [[1, 1], [5, 7]], recipes: [normal, wide], formats: [float32, float16], seeds: [1, 2],
          draw: {sizes: ["1..33", "16, 32"], recipes: [normal, wide], calls: 20000}}
  SU-D2: {shapes: [[1, 1]], recipes: [normal], formats: [float32], seeds: [1],
          draw: {sizes: ["1..33", "16, 32"], recipes: [normal], calls: 10000}}
obligations:
  SU-OB1: {subject: SU-S1, predicate: {name: sums_to, value: 1}, domain: SU-D1, tolerance: {kind: ulp, value: 2},
           tests: [FALSIFY-SU-001, FALSIFY-SU-002], mutants: [SU-MU1, SU-MU2]}
  SU-OB2: {subject: SU-S1, predicate: {name: matches}, domain: SU-D2,
           tolerance: {kind: rel, value: 0.5, to: sum, why: rounding}, tests: [FALSIFY-SU-003], mutants: [SU-MU1]}
  SU-OB3: {subject: SU-S1, predicate: {name: finite}, domain: SU-D1, tolerance: {kind: derived, bound: sum},
           tests: [FALSIFY-SU-004], mutants: [SU-MU2]}
tests:
  FALSIFY-SU-001: {obligation: SU-OB1, prediction: one, if_fails: lost,
                   examples: [1x1 normal float32 seed 1, 5x7 wide float32 seed 1]}
  FALSIFY-SU-002: {obligation: SU-OB1, prediction: two, if_fails: lost, examples: [1x1 normal float32 seed 1]}
  FALSIFY-SU-003: {obligation: SU-OB2, prediction: three, if_fails: lost, examples: [1x1 normal float32 seed 1]}
  FALSIFY-SU-004: {obligation: SU-OB3, prediction: four, if_fails: lost, examples: [1x1 normal float32 seed 1]}
mutants:
  SU-MU1: {of: SU-S1, object: "samebits.faults:one"}
  SU-MU2: {of: SU-S1, object: "samebits.faults:two"}
proofs:
  SU-PR1: {obligations: [SU-OB1, SU-OB2], kind: enumeration, backends: [cpu], object: "samebits.proofs:all"}
  SU-PR2: {obligations: [SU-OB1], kind: order, backends: [cpu], object: "samebits.proofs:tree"}
"""
TREE = '\n  SU-PR2: {obligations: [SU-OB1], kind: order, backends: [cpu], object: "samebits.proofs:tree"}'
OLD = contract_of(GOOD.encode(), Path("contract.yaml"))

# What is written instead, and what that is called: kind, id, what.
CASES = {
    "id removed": ("FALSIFY-SU-001, FALSIFY-SU-002]", "FALSIFY-SU-001]", ("breaking", "SU-OB1", "fewer tests")),
    "larger tolerance": ("kind: ulp, value: 2", "kind: ulp, value: 3", ("breaking", "SU-OB1", "tolerance")),
    "smaller tolerance": ("kind: ulp, value: 2", "kind: ulp, value: 1", ("addition", "SU-OB1", "tolerance")),
    "to bitwise": ("kind: ulp, value: 2", "kind: bitwise", ("addition", "SU-OB1", "tolerance")),
    "other kind": ("kind: ulp, value: 2", "kind: abs, value: 0, why: x", ("breaking", "SU-OB1", "tolerance")),
    "relative to": ("to: sum", "to: maximum", ("breaking", "SU-OB2", "tolerance.to")),
    "why": ("why: rounding", "why: two roundings", ("text", "SU-OB2", "tolerance.why")),
    "other bound": ("bound: sum}", "bound: dot}", ("breaking", "SU-OB3", "tolerance.bound")),
    "fewer shapes": ("shapes: [[1, 1], [5, 7]]", "shapes: [[5, 7]]", ("breaking", "SU-D1", "fewer shapes")),
    "more shapes": ("[5, 7]]", "[5, 7], [2, 2]]", ("addition", "SU-D1", "more shapes")),
    "fewer recipes": (
        "recipes: [normal, wide], formats",
        "recipes: [wide], formats",
        ("breaking", "SU-D1", "fewer recipes"),
    ),
    "fewer formats": ("formats: [float32, float16]", "formats: [float32]", ("breaking", "SU-D1", "fewer formats")),
    "fewer seeds": ("seeds: [1, 2]", "seeds: [1, 3]", ("breaking", "SU-D1", "fewer seeds")),
    "narrower range": ('"1..33"', '"1..32"', ("breaking", "SU-D1", "draw.sizes of axis 0")),
    "wider range": ('"1..33"', '"1..34"', ("addition", "SU-D1", "draw.sizes of axis 0")),
    "fewer choices": ('"16, 32"', '"32"', ("breaking", "SU-D1", "draw.sizes of axis 1")),
    "fewer calls": ("calls: 20000", "calls: 10000", ("breaking", "SU-D1", "draw.calls")),
    "fewer drawn recipes": (
        "recipes: [normal, wide], calls",
        "recipes: [normal], calls",
        ("breaking", "SU-D1", "fewer draw.recipes"),
    ),
    "other predicate": ("name: finite", "name: matches", ("breaking", "SU-OB3", "predicate")),
    "other parameter": ("name: sums_to, value: 1", "name: sums_to, value: 2", ("breaking", "SU-OB1", "predicate")),
    "other reference": ("samebits.reference:total", "samebits.reference:mean", ("breaking", "SU-EQ1", "reference")),
    "other subject": ("samebits.kernels:total", "samebits.kernels:mean", ("breaking", "SU-S1", "object")),
    "other order": ("float16: chain-1", "float16: lanes-256", ("breaking", "SU-S1", "order of cpu float16")),
    "order dropped": (", float16: chain-1", "", ("breaking", "SU-S1", "order of cpu float16")),
    "order added": (
        "float16: chain-1",
        "float16: chain-1, bfloat16: chain-1",
        ("addition", "SU-S1", "order of cpu bfloat16"),
    ),
    "lower level": ("requires_level: 3", "requires_level: 2", ("breaking", "sum", "requires_level")),
    "higher level": ("requires_level: 3", "requires_level: 4", ("addition", "sum", "requires_level")),
    "level of a backend": ("requires_level: 3", "requires_level: {cpu: 4}", ("addition", "sum", "requires_level")),
    "dependency dropped": ("[first, second]", "[second]", ("breaking", "sum", "fewer dependencies")),
    "dependency added": ("[first, second]", "[first, second, third]", ("addition", "sum", "more dependencies")),
    "looser numerics": ("atomics: false", "atomics: true", ("breaking", "sum", "numerics.atomics")),
    "other accumulator": ("accumulator: float32", "accumulator: float16", ("breaking", "sum", "numerics.accumulator")),
    "example dropped": (", 5x7 wide float32 seed 1", "", ("breaking", "FALSIFY-SU-001", "fewer examples")),
    "mutant dropped": ("mutants: [SU-MU1, SU-MU2]", "mutants: [SU-MU1]", ("breaking", "SU-OB1", "fewer mutants")),
    "other mutant": ("samebits.faults:one", "samebits.faults:none", ("breaking", "SU-MU1", "object")),
    "proof dropped": (TREE, "", ("breaking", "SU-PR2", "removed from proofs")),
    "proof of less": (
        "obligations: [SU-OB1, SU-OB2]",
        "obligations: [SU-OB1]",
        ("breaking", "SU-PR1", "fewer obligations"),
    ),
    "smaller domain": ("value: 1}, domain: SU-D1", "value: 1}, domain: SU-D2", ("breaking", "SU-OB1", "domain")),
    "larger domain": ("domain: SU-D2", "domain: SU-D1", ("addition", "SU-OB2", "domain")),
    "equation's text": ("y = sum x", "y = sum of x", ("text", "SU-EQ1", "text")),
    "prediction": ("prediction: one", "prediction: once", ("text", "FALSIFY-SU-001", "prediction")),
    "refs": ("page 1", "page 2", ("text", "sum", "refs")),
}


def changed(old: str, new: str) -> list[Change]:
    """Ids that nothing uses any more go with what used them, so that the file still loads."""
    assert old in GOOD
    text = GOOD.replace(old, new, 1)
    if text.count("FALSIFY-SU-002") == 1:
        text = "\n".join(line for line in text.split("\n") if "FALSIFY-SU-002" not in line)
    if text.count("SU-D2") == 1:
        start = text.index("  SU-D2")
        text = text[:start] + text[text.index("obligations:\n") :]
    return diff(OLD, contract_of(text.encode(), Path("contract.yaml")))


@pytest.mark.parametrize("case", CASES)
def test_each_change_has_its_kind(case: str) -> None:
    old, new, expected = CASES[case]
    found = {(change.kind, change.id, change.what) for change in changed(old, new)}
    assert expected in found
    cascades = case in ("id removed", "larger domain")
    assert cascades or len(found) <= 2, found


def test_nothing_changed() -> None:
    assert diff(OLD, OLD) == [] and findings(OLD, OLD, []) == []
    assert required_version("1.2.3", []) == "1.2.3"
    for version in ("2.0.0", "1.0.0"):
        assert "but nothing changed" in findings(OLD, replace(OLD, version=version), [])[0]


@pytest.mark.parametrize(
    ("case", "fitting", "short"),
    [("larger tolerance", "2.0.0", "1.9.9"), ("smaller tolerance", "1.3.0", "1.2.4"), ("refs", "1.2.4", "1.2.3")],
)
def test_the_version_must_fit(case: str, fitting: str, short: str) -> None:
    """Planted fault: a version that grew too little."""
    changes = changed(*CASES[case][:2])
    assert required_version("1.2.3", changes) == fitting
    said = findings(OLD, replace(OLD, version=short), changes)[0]
    assert f"version is {short} after 1.2.3" in said and f"need {fitting} at least" in said
    kept = [each for each in findings(OLD, replace(OLD, version=fitting), changes) if "version is" in each]
    assert not kept


def test_what_breaks_needs_a_reason() -> None:
    changes = changed(*CASES["lower level"][:2])
    assert findings(OLD, replace(OLD, version="2.0.0"), changes) == [
        "changes has no entry for 2.0.0; what breaks needs a reason"
    ]
    entry = 'version: 2.0.0\nchanges: [{version: 2.0.0, reason: "too strong"}]'
    new = contract_of(GOOD.replace("version: 1.2.3", entry).encode(), Path("contract.yaml"))
    assert findings(OLD, new, changes) == []


def git(folder: Path, *words: str) -> None:
    options = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "init.defaultBranch=main")
    subprocess.run(["git", "-C", str(folder), *options, *words], check=True, capture_output=True)


def test_a_side_may_be_a_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "component" / "contract.yaml"
    path.parent.mkdir()
    path.write_text(GOOD)
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    path.write_text(GOOD.replace("requires_level: 3", "requires_level: 2"))
    old, new = two_sides("git:HEAD", str(path))
    assert [change.what for change in diff(old, new)] == ["requires_level"]
    assert [change.kind for change in diff(*reversed((old, new)))] == ["addition"]
    back = two_sides(str(path), "git:HEAD")
    assert (back[0].requires_level, back[1].requires_level) == (2, 3)
    for wrong in ("git:nowhere", "git:", "git:--help"):
        with pytest.raises(ValueError, match=r"git: |names no revision"):
            two_sides(wrong, str(path))
    with pytest.raises(ValueError, match="both sides are revisions"):
        two_sides("git:HEAD", "git:HEAD")
    with pytest.raises(ContractError, match="cannot be read"):
        two_sides(str(tmp_path / "absent.yaml"), str(path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="git:HEAD needs git, and there is none"):
        two_sides("git:HEAD", str(path))


def test_the_real_contract_is_compared() -> None:
    """Planted fault in a component's own file: an obligation goes, with all that was its own."""
    whole = load_contract(FILE)
    fewer = {name: each for name, each in whole.obligations.items() if name != "SM-OB1"}
    changes = diff(whole, replace(whole, obligations=fewer))
    assert [str(change) for change in changes] == ["breaking  SM-OB1  removed from obligations"]


def test_a_proof_of_fewer_backends_breaks_and_a_backend_has_its_own_level() -> None:
    both = GOOD.replace("float16: chain-1}}", "float16: chain-1}, triton: {float32: lanes-256}}").replace(
        "kind: order, backends: [cpu]", "kind: order, backends: [cpu, triton]"
    )
    less = both.replace("backends: [cpu, triton]", "backends: [triton]")
    raised = both.replace("requires_level: 3", "requires_level: {cpu: 3, triton: 4}")
    old, fewer, higher = (contract_of(text.encode(), Path("contract.yaml")) for text in (both, less, raised))
    assert [(each.kind, each.id, each.what) for each in diff(old, fewer)] == [("breaking", "SU-PR2", "fewer backends")]
    assert [(each.kind, each.what) for each in diff(old, higher)] == [("addition", "requires_level on triton")]
