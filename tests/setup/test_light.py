"""What must start at once loads nothing heavy: `import samebits`, the help of every command; no run a compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "numpy",
    "triton",
    "transformers",
    "tokenizers",
    "safetensors",
    "hypothesis",
    "z3",
    "starlette",
    "uvicorn",
    "jinja2",
    "pyarrow",
    "samebits.ops",
    "samebits.checker",
    "samebits.model",
}
HELP = """
import contextlib, io
from samebits.cli import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main({words!r})
"""


def loaded_after(code: str) -> set[str]:
    whole = f"{code}\nimport sys\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True)
    return set(ran.stdout.split())


def heavy_after(code: str) -> set[str]:
    return HEAVY & loaded_after(code)


def test_import_samebits_is_light() -> None:
    assert heavy_after("import samebits") == set()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["check", "--help"], ["contract", "prove", "--help"]])
def test_help_is_light(words: list[str]) -> None:
    assert heavy_after(HELP.format(words=words)) == set()


def test_what_is_heavy_is_noticed() -> None:
    """Planted fault: an operator is named."""
    assert {"torch", "numpy", "samebits.ops"} <= heavy_after("import samebits as sb; sb.ops.matmul")


# torch imports its compiler, which takes as long as torch itself, for calls as plain as an optimizer's first.
COMPILER = "torch._dynamo"
RUN = """
import torch
from samebits.infer import Engine, Request
from samebits.model.contracts import small_model
from samebits.train.contracts.train_stable import run_of
text, weights = small_model.make_text(10, 1), small_model.make_weights(1, "normal", "float32", 1)
model = small_model.model_of(weights)
Engine(model, pages=4, batch_tokens=16, batch_requests=2).generate([Request(prompt=(1, 2), max_tokens=3)])
run_of(text, weights, torch.tensor([0.01]), torch.tensor([1])).step()
"""


def test_no_run_needs_a_compiler() -> None:
    assert COMPILER not in loaded_after(RUN)


def test_a_compiler_is_noticed() -> None:
    """Planted fault: what torch draws for a weight that is nowhere."""
    assert COMPILER in loaded_after("import torch; torch.nn.Embedding(2, 2, device='meta')")


def test_names_are_there_before_they_are_loaded() -> None:
    code = """
import samebits as sb
assert {"ops", "check", "reveal", "invariant_mode", "__version__"} <= set(dir(sb))
from samebits import ops
assert sb.ops is ops and callable(sb.ops.matmul) and callable(sb.check)
try:
    sb.opps
except AttributeError as error:
    assert "has no attribute 'opps'; it has: check, invariant_mode, launch_in_cpp, nn, ops, reveal" in str(error)
else:
    raise AssertionError("a wrong name was found")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
