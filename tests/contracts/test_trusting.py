"""What a contract may name: modules of samebits and of folders that the user trusts; nothing else is ever imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from samebits.cli import main
from samebits.contracts.registry import CONTRACT_FILE
from samebits.contracts.trust import refusal
from samebits.native.sources import PACKAGE

SOFTMAX = PACKAGE / "ops" / "softmax" / CONTRACT_FILE


def planted(folder: Path) -> tuple[Path, Path]:
    """A contract of softmax whose reference is a module that leaves a mark when it is imported; and the mark."""
    folder.mkdir()
    mark = folder / "imported"
    (folder / "stranger.py").write_text(f"open({str(mark)!r}, 'w').close()\ndef softmax64(x): return x\n")
    text = SOFTMAX.read_text().replace("samebits.ops.softmax.reference:", "stranger:")
    assert "stranger:" in text
    (folder / CONTRACT_FILE).write_text(text)
    return folder / CONTRACT_FILE, mark


def validated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    sys.modules.pop("stranger", None)
    with pytest.raises(SystemExit) as ended:
        main(("contract", "validate", "--deep", *words))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out + err


def test_a_file_cannot_have_code_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the command is run lies the module: it is found, and not imported. With --trust it is."""
    file, mark = planted(tmp_path / "theirs")
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, said = validated(capsys, str(file))
    assert code == 1 and f"would import 'stranger' from {file.parent}/stranger.py; allowed: modules of samebits" in said
    assert not mark.exists()
    validated(capsys, str(file), "--trust", str(file.parent))
    assert mark.exists()


def test_components_of_a_folder_name_only_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").mkdir()
    file, mark = planted(tmp_path / "components_of_mine")
    inside = file.parent / "softmax"
    inside.mkdir()
    file.rename(inside / CONTRACT_FILE)
    (file.parent / "stranger.py").rename(tmp_path / "outside" / "stranger.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "outside"), *sys.path])
    sys.modules.pop("stranger", None)
    for command in ("audit", "status", "prove", "graph"):
        with pytest.raises(SystemExit) as ended:
            main(("contract", command, "--components", str(file.parent)))
        error = capsys.readouterr().err
        assert ended.value.code == 2 and error.count("\n") == 1 and "would import 'stranger' from" in error, command
    assert not mark.exists()


@pytest.mark.parametrize(
    ("target", "trusted", "said"),
    [
        ("samebits.ops.softmax:softmax", False, ""),
        ("os:system", False, "would import 'os' from"),
        ("os:system", True, "would import 'os' from"),
        ("sys:exit", True, "would import 'sys' from"),
        ("no_such_module_here:f", True, "cannot be imported: no module named 'no_such_module_here'"),
        ("..x:f", True, "cannot be imported: no module named ''"),
        ("stranger:f", False, "would import 'stranger' from"),
        ("stranger:f", True, ""),
    ],
)
def test_where_a_module_comes_from_decides(
    target: str, trusted: bool, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger.py").write_text("raise SystemExit\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    sys.modules.pop("stranger", None)
    found = refusal(target, [tmp_path] if trusted else [])
    assert said in found and bool(found) == bool(said) and "stranger" not in sys.modules


def test_our_own_contracts_are_validated_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = validated(capsys, str(SOFTMAX))
    assert code == 0, said
