"""A new component is complete, passes as nothing until every text is written, and is written whole or not at all."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from samebits.contracts.loading import load_contract
from samebits.contracts.scaffold import FILES, scaffold
from samebits.contracts.strict_yaml import ContractError
from samebits.contracts.validating import validate

# What a person writes, in the order in which the loader asks for it.
FILLED = {
    "work:": 'work: "A work"',
    "locator:": "locator: page 1",
    "fused:": "fused: none",
    "text:": 'text: "y = x"',
    "cpu:": "cpu: {float32: chain-1}",
    "shapes:": "shapes: [[1, 1], [5, 7]]",
    "sizes:": 'sizes: ["1..33", "1..9"]',
    "tolerance:": "tolerance: {kind: bitwise}",
    "prediction:": "prediction: one",
    "if_fails:": "if_fails: other",
    "examples:": "examples: [5x7 normal float32 seed 1]",
}


def test_a_component_is_complete(tmp_path: Path) -> None:
    component = scaffold("silu", "SI", tmp_path)
    assert component == tmp_path / "silu"
    assert sorted(file.name for file in component.iterdir()) == sorted(FILES)
    assert {"__init__.py", "reference.py", "contract.yaml", "check.py", "faults.py"} <= set(FILES)
    for file in component.glob("*.py"):
        tree = ast.parse(file.read_text())
        assert ast.get_docstring(tree)
        for function in (node for node in tree.body if isinstance(node, ast.FunctionDef)):
            assert isinstance(function.body[-1], ast.Raise), f"{file.name}: {function.name} does something"
    assert list(tmp_path.iterdir()) == [component]


def test_it_is_refused_until_all_is_written(tmp_path: Path) -> None:
    """One text after the other: each time the error names a line that is still empty and says what goes there."""
    path = scaffold("silu", "SI", tmp_path) / "contract.yaml"
    left = dict(FILLED)
    while left:
        with pytest.raises(ContractError) as caught:
            load_contract(path)
        (problem,) = validate([tmp_path])
        assert str(caught.value) == str(problem)
        lines = path.read_text().splitlines()
        wrong = lines[problem.line - 1]
        key = next(key for key in left if key in wrong)
        assert "#" in wrong and key.rstrip(":") in problem.message + wrong
        lines[problem.line - 1] = re.sub(rf"{key}.*", left.pop(key), wrong)
        path.write_text("\n".join(lines) + "\n")
    assert load_contract(path).contract == "silu"
    assert validate([tmp_path]) == []
    # It loads now, and still nothing of it can be called.
    assert validate([tmp_path], deep=True)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """Planted faults: a folder, an empty one, a file and a dead link of that name."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "contract.yaml").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    for name in ("full", "empty", "file", "link"):
        with pytest.raises(ValueError, match=f"{name} exists; a new component needs a name that is free"):
            scaffold(name, "XX", tmp_path)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    assert (tmp_path / "full" / "contract.yaml").read_text() == (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "prefix", "package"),
    [
        ("Silu", "SI", "a"),
        ("../x", "SI", "a"),
        ("class", "SI", "a"),
        ("", "SI", "a"),
        ("silu", "si", "a"),
        ("silu", "", "a"),
        ("silu", "SI", "a:b"),
        ("silu", "SI", "a..b"),
    ],
)
def test_names_that_cannot_be(name: str, prefix: str, package: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="allowed"):
        scaffold(name, prefix, tmp_path, package)
    assert list(tmp_path.iterdir()) == []


def test_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the disk is full at the fourth file."""
    real, written = Path.write_text, []

    def full(self: Path, text: str, encoding: str | None = None) -> int:
        written.append(self)
        if len(written) == 4:
            raise OSError(28, "No space left on device")
        return real(self, text, encoding)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ValueError, match="cannot be written: No space left on device"):
        scaffold("silu", "SI", tmp_path)
    assert len(written) == 4 and list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="is not a folder"):
        scaffold("silu", "SI", tmp_path / "absent")
