"""C-BUFSIZE-001 on the GPU: ten steps of 50 million weights under NVIDIA's memory checker, and faults that it must see.

`memcheck` finds reads and writes outside of buffers, `initcheck` reads of what nobody wrote. Each buffer is an
allocation of its own: torch's memory is not kept for the next one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CHECKER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible"),
    pytest.mark.skipif(CHECKER is None, reason="compute-sanitizer is not installed; it comes with the CUDA toolkit"),
]
PROGRAM = Path(__file__).with_name("memory_steps.py")


def errors(tool: str, *arguments: str) -> tuple[int, str]:
    """How many the checker counted, and all that was said."""
    command = [str(CHECKER), "--tool", tool, sys.executable, str(PROGRAM), *arguments]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)
    said = done.stdout + done.stderr
    counted = re.search(r"ERROR SUMMARY: (\d+) error", said)
    assert counted, f"{tool} came to no end: {said[-2000:]}"
    return int(counted[1]), said


@pytest.mark.parametrize("tool", ["memcheck", "initcheck"])
def test_ten_steps_have_no_error(tool: str) -> None:
    count, said = errors(tool, "steps", "10")
    print(f"{tool}: {count} errors; {said.strip().splitlines()[-2:]}")
    assert count == 0 and "10 steps, loss" in said, said[-3000:]


@pytest.mark.parametrize(("tool", "fault"), [("memcheck", "past_the_end"), ("initcheck", "not_written")])
def test_a_planted_fault_is_seen(tool: str, fault: str) -> None:
    count, said = errors(tool, fault)
    assert count > 0, said[-3000:]
