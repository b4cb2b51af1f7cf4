"""Proofs about the SwiGLU: every finite bfloat16 and float16 gate with up = 1, which makes it the SiLU. On the CPU.

Each is a function without arguments, named by the contract."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from samebits.contracts.loading import load_contract
from samebits.contracts.proof import Proof
from samebits.contracts.spec import Arguments
from samebits.ops.elements import every_number
from samebits.ops.swiglu.check import SPECS

CONTRACT = load_contract(Path(__file__).with_name("contract.yaml"))


def _beside_ones(numbers: Tensor) -> Arguments:
    return {"gate": numbers, "up": torch.ones_like(numbers)}


def every_gate() -> Proof:
    """What a SiLU must be."""
    return every_number(CONTRACT, SPECS["swiglu"], CONTRACT.proofs["SG-PR1"].obligations, _beside_ones)
