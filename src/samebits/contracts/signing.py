"""Signatures over a folder of receipts, by an ssh key and offline: who stands behind them, beside what replaying finds.

The signed text is one line, the digest of the folder. Uses ssh-keygen, and says so where there is none."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from samebits.contracts.store import folder_digest
from samebits.records.durable import put_in_one_move
from samebits.records.report import UnjudgedError

NAMESPACE: Final = "samebits"
SIGNATURE: Final = "receipts.sig"


def statement(folder: Path) -> bytes:
    """What is signed."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; pass a folder of receipts")
    return f"samebits receipts {folder_digest(folder)}\n".encode()


def _tool() -> str:
    found = shutil.which("ssh-keygen")
    if found is None:
        raise UnjudgedError("signatures need ssh-keygen, which is not here; install OpenSSH")
    return found


def sign(folder: Path, key: Path) -> Path:
    """Writes a detached signature beside the receipts; asks for the key's passphrase where it has one."""
    if not key.is_file():
        raise ValueError(f"--key {key} is not a file; pass a private ssh key")
    tool, said = _tool(), statement(folder)
    with tempfile.TemporaryDirectory(prefix="samebits-sign-") as place:
        text = Path(place) / "statement"
        text.write_bytes(said)
        done = subprocess.run(
            [tool, "-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE, str(text)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ValueError(f"--key {key} cannot sign: {' '.join((done.stderr or done.stdout).split())}")
        put_in_one_move(folder / SIGNATURE, text.with_suffix(".sig").read_bytes())
    return folder / SIGNATURE


def verify(folder: Path, allowed: Path) -> str:
    """Who of the allowed signers signed the receipts as they lie here; "" where nobody did."""
    if not allowed.is_file():
        raise ValueError(
            f"--allowed-signers {allowed} is not a file; pass one with lines like `name ssh-ed25519 AAAA...`"
        )
    tool, said = _tool(), statement(folder)
    signature = folder / SIGNATURE
    if not signature.is_file():
        raise UnjudgedError(f"{signature} is missing: the receipts are not signed")
    found = subprocess.run(
        [tool, "-Y", "find-principals", "-s", str(signature), "-f", str(allowed)],
        capture_output=True,
        text=True,
        check=False,
    )
    for name in found.stdout.splitlines() if found.returncode == 0 else ():
        done = subprocess.run(
            [tool, "-Y", "verify", "-f", str(allowed), "-I", name, "-n", NAMESPACE, "-s", str(signature)],
            input=said,
            capture_output=True,
            check=False,
        )
        if done.returncode == 0:
            return name
    return ""
