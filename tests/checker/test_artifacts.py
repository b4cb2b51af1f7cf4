"""What decides bits is read from compiled kernels; atomics, ordered sums and approximations are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from samebits.checker.artifact_text import Essence, essence
from samebits.checker.artifacts import artifact_proof, recorded_digest, refusals
from samebits.checker.targets import OPERATORS
from samebits.checker.tracing import child_environment

KERNELS = Path(__file__).parent / "planted" / "traced_kernels.py"
COMPILE = """
import importlib.util, json, sys
from dataclasses import asdict
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from samebits.checker.artifact_text import essence
spec = importlib.util.spec_from_file_location("planted", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "M": "i32", "H": "i32", "BLOCK": "constexpr"}
found = {}
for kernel, warps in json.loads(sys.argv[2]):
    source = ASTSource(getattr(module, kernel), signature, {"BLOCK": 1024}, {})
    options = dict(num_warps=warps, num_stages=1, num_ctas=1, enable_fp_fusion=False)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    found[f"{kernel} {warps}"] = asdict(essence(made.asm["ttgir"], made.asm["ptx"], fusion=False))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def planted() -> dict[str, Essence]:
    """Kernels with two numbers of warps each, compiled in a process of their own."""
    asked = [("honest", 1), ("honest", 8), ("compiler_order", 1), ("compiler_order", 8), ("atomic_sum", 4)]
    finished = subprocess.run(
        [sys.executable, "-c", COMPILE, str(KERNELS), json.dumps(asked)],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(),
    )
    assert finished.returncode == 0, finished.stderr[-500:]
    return {name: Essence.of(each) for name, each in json.loads(finished.stdout).items()}


def of(planted: dict[str, Essence], kernel: str) -> dict[str, Essence]:
    return {name: each for name, each in planted.items() if name.startswith(kernel)}


def test_an_honest_kernel_has_one_essence(planted: dict[str, Essence]) -> None:
    assert not list(refusals("honest", of(planted, "honest")))
    assert planted["honest 1"].digest == planted["honest 8"].digest


def test_a_sum_ordered_by_a_layout_is_refused(planted: dict[str, Essence]) -> None:
    """tl.sum of a row with 1 and with 8 warps: two layouts, two orders."""
    found = of(planted, "compiler_order")
    assert any("the compiler orders arith.addf" in line for line in refusals("compiler_order", found))
    assert found["compiler_order 1"].digest != found["compiler_order 8"].digest


def test_a_float_atomic_is_refused(planted: dict[str, Essence]) -> None:
    lines = list(refusals("atomic_sum", of(planted, "atomic_sum")))
    assert any("float atomics" in line for line in lines)


@pytest.mark.parametrize(
    ("instruction", "approximate"),
    [("ex2.approx.ftz.f32", True), ("div.full.f32", True), ("rcp.approx.f32", True), ("div.rn.f32", False)],
)
def test_approximate_instructions_are_declared_or_refused(instruction: str, approximate: bool) -> None:
    found = essence("", f"\t{instruction} \t%f1, %f2;\n", fusion=False)
    assert bool(list(refusals("some_kernel", {"one": found}))) == approximate
    assert not list(refusals("some_kernel", {"one": found}, frozenset({instruction})))


def test_contraction_is_refused() -> None:
    assert list(refusals("any", {"one": essence("", "", fusion=True)}))


def test_matrix_units_are_told_apart_by_depth_not_by_tile() -> None:
    """m64n64k16 and m16n8k16 add the same groups; k8 does not."""
    wide, narrow, shallow = (
        essence("", f"\t{name};\n", fusion=False)
        for name in (
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16",
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32",
        )
    )
    assert wide.digest == narrow.digest != shallow.digest


def test_an_operator_is_proved_and_a_changed_record_is_noticed(tmp_path: Path) -> None:
    swiglu = OPERATORS.components()["swiglu"]
    proof = artifact_proof(swiglu)
    assert proof.proved, str(proof)
    elsewhere = replace(swiglu, folder=tmp_path)
    with pytest.raises(RuntimeError, match=r"artifacts\.json is missing; write it with `python -m"):
        recorded_digest(elsewhere)
    (tmp_path / "artifacts.json").write_text(json.dumps({"digest": "0" * 64}))
    assert "has changed" in artifact_proof(elsewhere).witness
