"""Records what the GPU computed, bit for bit, so that a machine without one can replay it.

    PYTHONPATH=src python goldens/record.py --output goldens/h200

Inputs are recipes: fixed by name, shape and seed on every machine. Outputs are kept as bit patterns: forward, dX and
dW of `linear` in bfloat16, and dW's float32 accumulator, where a rounding to 8 bits hides nothing."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import numpy as np
import torch

from samebits.contracts.orders import declared_order
from samebits.numerics.bits import numpy_bits
from samebits.numerics.order import digest
from samebits.numerics.recipes import make
from samebits.ops.matmul import linear, matmul_accumulate_

RECIPES = ("normal", "wide", "cancelling", "subnormal", "infinite")
# Tails on every axis: no size is a multiple of any tile, K and M are none of 16.
ROWS, DEPTH, COLUMNS = 75, 1000, 90


def inputs(recipe: str) -> dict[str, torch.Tensor]:
    """x, weight and the cotangent dy of one recipe, on the CPU."""
    shapes = {"x": (ROWS, DEPTH), "weight": (COLUMNS, DEPTH), "dy": (ROWS, COLUMNS)}
    return {
        name: torch.from_numpy(make(recipe, shape, seed, "bfloat16")).bfloat16()
        for seed, (name, shape) in enumerate(shapes.items())
    }


def record(recipe: str) -> dict[str, np.ndarray]:
    """Bit patterns of one recipe's outputs."""
    given = {name: tensor.cuda() for name, tensor in inputs(recipe).items()}
    x, weight = given["x"].requires_grad_(), given["weight"].requires_grad_()
    y = linear(x, weight)
    dx, dweight = torch.autograd.grad(y, (x, weight), given["dy"])
    accumulator = matmul_accumulate_(torch.zeros(COLUMNS, DEPTH, device="cuda"), given["dy"].T, x.detach())
    return {
        f"{recipe}.{name}": numpy_bits(value.detach().cpu())
        for name, value in {"y": y, "dx": dx, "dweight": dweight, "accumulator": accumulator}.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    arrays = {name: array for recipe in RECIPES for name, array in record(recipe).items()}
    np.savez_compressed(output / "matmul_bfloat16.npz", **arrays)
    facts = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": __import__("triton").__version__,
        "python": platform.python_version(),
        "order": "chain-16",
        "order_digest": digest(declared_order("chain-16", DEPTH)),
        "shape": {"rows": ROWS, "depth": DEPTH, "columns": COLUMNS},
        "outputs": {name: list(array.shape) for name, array in arrays.items()},
    }
    (output / "matmul_bfloat16.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(f"recorded {len(arrays)} outputs of {', '.join(RECIPES)} in {output}")


if __name__ == "__main__":
    main()
