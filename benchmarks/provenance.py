"""Where a record comes from: the script that made it, its command, the day, the commit and the machine.

Every script of this folder puts this first into what it records, so that a figure can be measured again."""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

from samebits.checker import environment

ROOT = Path(__file__).resolve().parents[1]


def provenance(script: str, machine: str) -> dict[str, Any]:
    """The first keys of a record; `script` is the caller's `__file__`."""
    name = Path(script).resolve().relative_to(ROOT).as_posix()
    return {
        "script": name,
        "command": " ".join(["python", name, *sys.argv[1:]]),
        "date": date.today().isoformat(),
        "commit": commit(),
        "machine": machine,
        "python": platform.python_version(),
    }


def commit() -> str | None:
    """The commit that was measured, with a word if files were changed since; None where there is no git."""
    try:
        asked = ["git", "describe", "--always", "--dirty=, changed since", "--abbrev=12", "--exclude=*"]
        return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def on_arm() -> bool:
    return platform.machine() == "aarch64"


def cpu_results(name: str) -> Path:
    """The file of a record about the CPU: those of ARM are beside those of x86."""
    return ROOT / "benchmarks" / "results" / f"{'arm_' if on_arm() else ''}{name}"


def processor() -> str:
    """The CPU's name; with the architecture where that is not the usual one."""
    return f"ARM {environment.processor()}" if on_arm() else environment.processor()
