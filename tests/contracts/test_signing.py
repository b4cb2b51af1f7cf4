"""Receipts signed by an ssh key are verified offline; a changed receipt, another key, no key: each is told."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from samebits.contracts import signing
from samebits.contracts.signing import sign, verify
from samebits.contracts.store import folder_digest
from samebits.records.report import UnjudgedError

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="signatures need ssh-keygen")


def key_of(folder: Path, name: str) -> tuple[Path, str]:
    """A private key, and the line that allows it."""
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(path)], check=True)
    return path, f"{name} {path.with_suffix('.pub').read_text()}"


def test_a_signature_speaks_for_the_receipts_as_they_lie(tmp_path: Path) -> None:
    receipts = tmp_path / "receipts"
    receipts.mkdir()
    (receipts / "softmax.jsonl").write_text("{}\n")
    (mine, line), (theirs, other) = key_of(tmp_path, "me"), key_of(tmp_path, "you")
    allowed = tmp_path / "signers"
    allowed.write_text(line)
    with pytest.raises(UnjudgedError, match="receipts are not signed"):
        verify(receipts, allowed)
    sign(receipts, mine)
    assert verify(receipts, allowed) == "me"
    allowed.write_text(other)
    assert verify(receipts, allowed) == ""
    sign(receipts, theirs)
    assert verify(receipts, allowed) == "you"
    # Planted faults: a receipt changed, one added, one gone.
    (receipts / "softmax.jsonl").write_text("{} \n")
    assert verify(receipts, allowed) == ""
    sign(receipts, theirs)
    (receipts / "gelu.jsonl").write_text("{}\n")
    assert verify(receipts, allowed) == ""
    (receipts / "gelu.jsonl").unlink()
    assert verify(receipts, allowed) == "you"


def test_a_name_with_a_space_is_an_allowed_signer(tmp_path: Path) -> None:
    (tmp_path / "softmax.jsonl").write_text("{}\n")
    mine, _ = key_of(tmp_path, "me")
    sign(tmp_path, mine)
    (tmp_path / "signers").write_text(f'"Ada Lovelace" {mine.with_suffix(".pub").read_text()}')
    assert verify(tmp_path, tmp_path / "signers") == "Ada Lovelace"


def test_one_file_named_like_two_is_refused(tmp_path: Path) -> None:
    """Planted: the receipts of gelu are gone, and the other file's name has in it what they had in the statement."""
    (tmp_path / "gelu.jsonl").write_text("{}\n")
    (tmp_path / "softmax.jsonl").write_text("[]\n")
    mine, line = key_of(tmp_path, "me")
    (tmp_path / "signers").write_text(line)
    sign(tmp_path, mine)
    gone = hashlib.sha256((tmp_path / "gelu.jsonl").read_bytes()).hexdigest()
    (tmp_path / "gelu.jsonl").unlink()
    (tmp_path / "softmax.jsonl").rename(tmp_path / f"gelu.jsonl {gone}\nsoftmax.jsonl")
    with pytest.raises(ValueError, match="is no contract's file; allowed: small letters, digits and _"):
        verify(tmp_path, tmp_path / "signers")


def test_a_pipe_among_the_receipts_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "softmax.jsonl")
    with pytest.raises(ValueError, match=r"softmax\.jsonl: is .*; allowed: a plain file"):
        folder_digest(tmp_path)


def test_what_cannot_be_done_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("no key\n")
    with pytest.raises(ValueError, match="cannot sign"):
        sign(tmp_path, tmp_path / "key")
    assert not (tmp_path / signing.SIGNATURE).exists()
    with pytest.raises(ValueError, match="is not a file; pass a private ssh key"):
        sign(tmp_path, tmp_path / "none")
    with pytest.raises(ValueError, match="is not a folder"):
        sign(tmp_path / "none", tmp_path / "key")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(UnjudgedError, match="ssh-keygen, which is not here"):
        sign(tmp_path, tmp_path / "key")
