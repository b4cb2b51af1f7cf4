"""validate says all that is wrong with contracts, each with its file and line, and imports only when asked to."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.contracts.fuzzing import SENTINEL, damaged, sentinel

import samebits.ops
from samebits.contracts.validating import Problem, validate

OPS = Path(samebits.ops.__path__[0])
SOFTMAX = (OPS / "softmax" / "contract.yaml").read_text()


def component(folder: Path, name: str, text: str) -> Path:
    (folder / name).mkdir()
    path = folder / name / "contract.yaml"
    path.write_text(text)
    return path


def renamed(name: str, prefix: str, depends_on: str = "") -> str:
    text = SOFTMAX.replace("contract: softmax", f"contract: {name}").replace("SM-", f"{prefix}-")
    return text.replace("prefix: SM", f"prefix: {prefix}").replace("depends_on: []", f"depends_on: [{depends_on}]")


def line_of(path: Path, start: str) -> int:
    return next(number for number, line in enumerate(path.read_text().splitlines(), 1) if line.startswith(start))


def test_the_components_have_no_problem() -> None:
    assert validate([OPS], deep=True) == []


def test_every_file_is_heard(tmp_path: Path) -> None:
    """Planted faults in two files, and a third that is right."""
    first = component(tmp_path, "a", SOFTMAX.replace("version: ", "version: newest "))
    second = component(tmp_path, "b", SOFTMAX.replace("kind: ulp, value: 2", "kind: ulp"))
    component(tmp_path, "c", renamed("c", "CC"))
    problems = validate([tmp_path])
    assert [problem.path for problem in problems] == [first, second]
    assert (problems[0].line, problems[0].id) == (3, "")
    assert (problems[1].line, problems[1].id) == (line_of(second, "  SM-OB3:"), "SM-OB3")
    assert str(problems[1]) == f"{second}:{problems[1].line}: SM-OB3: a tolerance of kind ulp needs value, got nothing"


def test_nothing_is_a_problem(tmp_path: Path) -> None:
    """Zero contracts are no success."""
    assert "no contract here" in validate([tmp_path])[0].message
    assert "no contract here" in validate([])[0].message
    assert "no such file" in validate([tmp_path / "absent"])[0].message


def test_names_prefixes_and_ids_stand_once(tmp_path: Path) -> None:
    first = component(tmp_path, "a", SOFTMAX)
    second = component(tmp_path, "b", SOFTMAX)
    messages = [problem.message for problem in validate([tmp_path])]
    assert f"contract 'softmax' is in {first} as well" in messages
    assert f"prefix 'SM' is in {first} as well" in messages
    assert f"id 'FALSIFY-SM-001' is in {first} as well" in messages
    assert {problem.path for problem in validate([tmp_path])} == {second}
    assert validate([tmp_path / "a", first, tmp_path / "a"]) == []


def test_a_list_names_each_thing_once(tmp_path: Path) -> None:
    """Else a fault that is killed once would be counted twice."""
    path = component(tmp_path, "softmax", SOFTMAX.replace("mutants: [SM-MU1", "mutants: [SM-MU1, SM-MU1", 1))
    (problem,) = validate([path])
    assert (problem.id, problem.message) == ("SM-OB1", "mutants names 'SM-MU1' twice")
    assert problem.line == line_of(path, "  SM-OB1:")


def test_dependencies_lead_somewhere_and_not_back(tmp_path: Path) -> None:
    first = component(tmp_path, "a", renamed("a", "AA", "nowhere"))
    assert [str(each) for each in validate([first])] == [f"{first}:6: depends_on names 'nowhere', which is no contract"]
    assert validate([first], known=["nowhere"]) == []
    component(tmp_path, "b", renamed("b", "BB", "c"))
    component(tmp_path, "c", renamed("c", "CC", "b"))
    assert [each.message for each in validate([tmp_path], known=["nowhere"])] == ["depends_on comes back: b -> c -> b"]


FAULTS, COMPONENT = "samebits.ops.softmax.faults", "samebits.ops.softmax"
DEEP = {
    "no module": (f"{FAULTS}:loses_the_last_tile", "samebits.nowhere:x", "SM-MU2", "cannot be imported"),
    "no attribute": (f"{COMPONENT}.reference:softmax64", f"{COMPONENT}:x", "SM-EQ1", "does not exist"),
    "no function": (f"{FAULTS}:loses_the_last_tile", "math:pi", "SM-MU2", "math:pi is float; a function"),
    "no predicate": ("properties:keeps_order", "properties:keeps_odour", "SM-OB3", "does not exist"),
    "mutant is subject": (f"{FAULTS}:quick_reciprocal", "samebits.ops:softmax", "SM-MU8", "is its subject itself"),
    "reference is subject": (
        f"{COMPONENT}.reference:softmax64",
        "samebits.ops:softmax",
        "SM-EQ1",
        "is the subject SM-S1",
    ),
}


@pytest.mark.parametrize("fault", DEEP)
def test_objects_exist(fault: str, tmp_path: Path) -> None:
    """Planted faults, one each; without `deep` the file is right."""
    old, new, identifier, message = DEEP[fault]
    assert old in SOFTMAX
    path = component(tmp_path, "softmax", SOFTMAX.replace(old, new, 1))
    assert validate([path]) == []
    (problem,) = validate([path], deep=True)
    assert problem.id == identifier and message in problem.message
    assert problem.line == line_of(path, f"  {identifier}:")


def test_a_module_that_fails_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that raises or leaves is said in one line, and happens only when asked for."""
    mark = sentinel(tmp_path)
    for name, body in (("raises", "raise RuntimeError('two\\nlines')"), ("leaves", "raise SystemExit(3)")):
        (tmp_path / f"samebits_module_that_{name}.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = SOFTMAX.replace("samebits.ops.softmax.faults:loses_the_last_tile", "samebits_module_that_raises:x", 1)
    text = text.replace("samebits.ops.softmax.faults:exponent_turned_round", "samebits_module_that_leaves:x", 1)
    text = text.replace("samebits.ops.softmax.faults:quick_reciprocal", f"{SENTINEL}:run", 1)
    path = component(tmp_path, "softmax", text)
    assert validate([path]) == [] and not mark.exists()
    messages = [problem.message for problem in validate([path], deep=True)]
    assert mark.exists() and SENTINEL in sys.modules
    del sys.modules[SENTINEL]
    assert len(messages) == 2 and "RuntimeError: two lines" in messages[0] and "SystemExit: 3" in messages[1]


def test_damaged_files_crash_nothing(tmp_path: Path) -> None:
    """Many at once: whatever loads is compared, whatever does not is a problem."""
    for number in range(120):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "contract.yaml").write_bytes(damaged(number))
    (tmp_path / "folder" / "contract.yaml").mkdir(parents=True)
    problems = validate([tmp_path])
    assert len(problems) > 100
    assert all(isinstance(each, Problem) and each.line >= 1 and str(each).isprintable() for each in problems)
