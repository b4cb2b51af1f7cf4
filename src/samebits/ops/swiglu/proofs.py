"""Proofs about the SwiGLU: every finite bfloat16 and float16 gate with up = 1, which makes it the SiLU. On the CPU."""

from pathlib import Path

import torch

from samebits.contracts.loading import load_contract
from samebits.contracts.proof import Proof
from samebits.ops.elements import every_number
from samebits.ops.swiglu.check import SPECS


def every_gate() -> Proof:
    """What a SiLU must be."""
    contract = load_contract(Path(__file__).with_name("contract.yaml"))
    obligations = contract.proofs["SG-PR1"].obligations
    return every_number(contract, SPECS["swiglu"], obligations, lambda x: {"gate": x, "up": torch.ones_like(x)})
