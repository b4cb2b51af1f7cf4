"""Rotation as transformers writes it: which modules' is known, and the bits of the kernel that does it on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers.models.glm4.modeling_glm4 as glm4
import transformers.models.llama.modeling_llama as llama
import transformers.models.qwen3.modeling_qwen3 as qwen3

from samebits.invariant import invariant_mode
from samebits.invariant.rotation import NAME, rotate_half, written
from samebits.invariant.same_code import same_code
from samebits.numerics.bits import same_bits

PROGRAM = Path(__file__).with_name("interpreted_rotation.py")


def test_the_kernel_has_the_bits_of_the_operations() -> None:
    """Forward and back; heads that fill no program, odd sizes, angles of one sequence and of each. Planted: the one in
    the other's place differs."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    for forward, back, planted in json.loads(done.stdout.splitlines()[-1]):
        assert forward == back == 0 and planted > 0


@pytest.mark.parametrize(
    ("module", "known"), [(llama, True), (qwen3, True), (glm4, False)], ids=lambda each: str(each)[-30:]
)
def test_a_module_is_known_by_its_code(module: ModuleType, known: bool) -> None:
    """glm's rotates neighbours, and is left alone."""
    with invariant_mode():
        pass
    found = getattr(module, NAME)
    stock = getattr(found, "__wrapped__", found)
    assert hasattr(found, "__wrapped__") == known
    assert (same_code(stock, written) and same_code(module.rotate_half, rotate_half)) == known


def test_on_a_cpu_and_outside_of_blocks_it_is_the_modules_own() -> None:
    drawn = torch.Generator().manual_seed(1)
    q, k = (torch.randn(2, 3, 5, 16, generator=drawn).bfloat16() for _ in range(2))
    cos, sin = (torch.randn(1, 5, 16, generator=drawn).bfloat16() for _ in range(2))
    with invariant_mode():
        inside = qwen3.apply_rotary_pos_emb(q, k, cos, sin)
    outside = qwen3.apply_rotary_pos_emb(q, k, cos, sin)
    stock = qwen3.apply_rotary_pos_emb.__wrapped__(q, k, cos, sin)
    for each in (inside, outside):
        assert all(same_bits(a, b) for a, b in zip(each, stock, strict=True))
