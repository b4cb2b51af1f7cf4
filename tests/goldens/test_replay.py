"""What an H200 computed is replayed here, bit for bit, by the simulator of its adder."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from samebits.contracts.orders import declared_order
from samebits.numerics.adder import HOPPER, AdderModel, fused_chain
from samebits.numerics.bits import compare, to_bfloat16
from samebits.numerics.order import digest

GOLDENS = Path(__file__).resolve().parents[2] / "goldens"
FOLDER = GOLDENS / "h200"


def recorder() -> ModuleType:
    """The script that recorded the goldens: it alone says how their inputs are made."""
    spec = importlib.util.spec_from_file_location("goldens_record", GOLDENS / "record.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RECORD = recorder()
RECORDED = np.load(FOLDER / "matmul_bfloat16.npz")


def replayed(recipe: str, model: AdderModel) -> dict[str, np.ndarray]:
    """Forward, dX and dW by the model, from the same inputs."""
    x, weight, dy = (RECORD.inputs(recipe)[name] for name in ("x", "weight", "dy"))
    accumulator = fused_chain(dy.T.contiguous(), x, model)
    y, dx = fused_chain(x, weight.T.contiguous(), model), fused_chain(dy, weight, model)
    return {
        "y": to_bfloat16(y),
        "dx": to_bfloat16(dx),
        "dweight": to_bfloat16(accumulator),
        "accumulator": accumulator.view(np.uint32),
    }


def differences(recipe: str, model: AdderModel) -> dict[str, str]:
    found = {}
    for name, values in replayed(recipe, model).items():
        recorded = RECORDED[f"{recipe}.{name}"]
        if name == "accumulator":
            difference = compare(recorded.view(np.float32), values.view(np.float32))
        else:
            difference = compare(recorded.view(np.uint16), values, format="bfloat16")
        if difference is not None:
            found[name] = str(difference)
    return found


@pytest.mark.parametrize("recipe", RECORD.RECIPES)
def test_the_simulator_is_the_hardware(recipe: str) -> None:
    """simulate(order, inputs) == what the H200 wrote: forward, dX, dW and its float32 accumulator."""
    assert not differences(recipe, HOPPER)


@pytest.mark.parametrize("fault", [{"fraction_bits": 24}, {"fraction_bits": 26}, {"width": 8}], ids=str)
def test_another_adder_is_noticed(fault: dict[str, int]) -> None:
    """Planted faults: one bit less, one more, half the width."""
    assert "accumulator" in differences("cancelling", replace(HOPPER, **fault))


def test_the_record_says_where_it_comes_from() -> None:
    facts = json.loads((FOLDER / "matmul_bfloat16.json").read_text())
    assert "H200" in facts["device"]
    assert facts["order_digest"] == digest(declared_order("chain-16", RECORD.DEPTH))
    assert set(facts["outputs"]) == set(RECORDED.files)


def finite(name: str) -> int:
    return int(np.isfinite(RECORDED[name].view(np.float32)).sum())


def test_the_data_is_not_trivial() -> None:
    """Infinities, NaNs and finite sums all occur. Of the subnormal recipe only some sums stay finite: its large ones
    lift most of them beyond float32, so it says little of sums that are themselves subnormal."""
    infinite = torch.from_numpy(RECORDED["infinite.accumulator"].view(np.float32))
    assert bool(infinite.isinf().any()) and bool(infinite.isnan().any()) and bool(infinite.isfinite().any())
    assert finite("subnormal.accumulator") >= 500
    for recipe in ("normal", "wide", "cancelling"):
        assert finite(f"{recipe}.accumulator") == RECORDED[f"{recipe}.accumulator"].size
