"""The components on the GPU: every promise of every contract, one kernel per row of the launch table, cuBLAS beside
ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samebits.checker import OPERATORS, reveal
from samebits.contracts.store import Store
from samebits.native.launch_numbers import launching
from samebits.numerics.adder import HOPPER, HOPPER_FLOAT16, fused_chain
from samebits.numerics.bits import compare
from samebits.numerics.recipes import make
from samebits.ops.matmul import linear, matmul, matmul_accumulate_
from samebits.ops.matmul.launch_table import TABLE
from samebits.ops.rmsnorm import rmsnorm
from samebits.parity.faults import FAULTS
from samebits.parity.gate import PROMISES, gate
from samebits.records.report import Verdict
from samebits.records.shipped import shipped

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible"),
    # One process: it begins all checks at once, on all cores.
    pytest.mark.xdist_group("operators"),
]


def tensor(recipe: str, shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(make(recipe, shape, seed, str(dtype).removeprefix("torch."))).to(dtype).cuda()


COMPONENTS = sorted(OPERATORS.components())


def promised(component: str) -> list[str]:
    """What a contract asks of Triton; what it asks of the CPU alone (bytes held, say) has no finding here."""
    contract = OPERATORS.components()[component].contract()
    obligations = contract.obligations.values()
    return sorted({each.word for each in obligations if "triton" in contract.subjects[each.subject].orders})


PROMISED = {component: promised(component) for component in COMPONENTS}
Findings = list[dict[str, Any]]


FORMATS = ("float32", "bfloat16", "float16")


def judged(component: str, promise: str, formats: Sequence[str] = FORMATS) -> Findings:
    """One promise of an operator by Triton, or `device` on both backends, in a process of its own."""
    options = [] if promise == "device" else ["--backend", "triton"]
    options += [word for each in formats for word in ("--format", each)]
    command = [sys.executable, "-m", "samebits.cli", "check", component, "--promise", promise, *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.startswith("{"), f"{component} {promise}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    findings: Findings = json.loads(done.stdout)["findings"]
    return findings


def longest_first() -> list[tuple[str, str]]:
    """Every operator with every promise, by what the receipts say it took: none is left to run alone at the end."""
    took: dict[tuple[str, str], float] = {}
    for component in COMPONENTS:
        for (_, level, by), seconds in Store(shipped("receipts")).seconds(component).items():
            pair = component, by.rpartition(":")[2]
            took[pair] = took.get(pair, 0.0) + (seconds if level == 2 else 0.0)
    pairs = [(component, promise) for component in COMPONENTS for promise in PROMISED[component]]
    return sorted(pairs, key=lambda pair: -took.get(pair, 0.0))


@pytest.fixture(scope="module")
def reports() -> Iterator[dict[tuple[str, str], list[Future[Findings]]]]:
    """All findings, on their way: compiling is most of the work, and the processor has cores for it."""
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        found: dict[tuple[str, str], list[Future[Findings]]] = {
            # Most kernels are compiled here: a process a format, and before all others.
            ("attention", "tile"): [pool.submit(judged, "attention", "tile", (each,)) for each in FORMATS]
        }
        for component, promise in longest_first():
            if (component, promise) not in found:
                found[component, promise] = [pool.submit(judged, component, promise)]
        yield found


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_promise_holds(component: str, reports: dict[tuple[str, str], list[Future[Findings]]]) -> None:
    """Every planted fault caught, too."""
    for promise in PROMISED[component]:
        findings = [finding for report in reports[component, promise] for finding in report.result()]
        lines = [
            f"{each['obligation']} {each['subject']} {promise}: {each['verdict']} {each['detail']}" for each in findings
        ]
        assert findings and all(each["verdict"] == Verdict.HOLDS for each in findings), "\n".join(lines)
        assert all(each["faults_caught"] == each["faults_planted"] >= 1 for each in findings), "\n".join(lines)


def test_the_chain_of_operators() -> None:
    """The gate on the GPU: thousands of tokens, three seeds, both formats, every planted fault caught."""
    # Faults are judged in the first format: in float32 no rounding hides another order of a row's sum.
    findings = gate(backend="triton", formats=("float32", "bfloat16"), faults=FAULTS)
    assert {finding.promise for finding in findings} == set(PROMISES)
    for finding in findings:
        assert finding.verdict is Verdict.HOLDS, f"{finding.promise}: {finding.detail}"
        assert finding.faults_caught == finding.faults_planted >= 1
        print(f"chain {finding.promise}: {finding.detail}; faults caught {finding.faults_caught}")


def test_one_kernel_per_row_of_the_table() -> None:
    """Sizes are launch arguments: a row, a dtype and a layout compile once, whatever M, N, K; and they did run."""
    from samebits.ops._triton.launch import compiled_count, launch_count

    weight = torch.randn(256, 512, device="cuda").bfloat16()
    for launch in TABLE["bfloat16"]:
        with launching(launch=launch):
            linear(torch.randn(16, 512, device="cuda").bfloat16(), weight)
            compiled, launched = compiled_count(), launch_count()
            for rows, depth, columns in product((1, 2, 16, 17, 64, 129), (64, 512), (8, 256)):
                linear(torch.randn(rows, depth, device="cuda").bfloat16(), weight[:columns, :depth])
            assert compiled_count() == compiled, launch
            assert launch_count() == launched + 24, launch


@pytest.mark.parametrize(("dtype", "model"), [(torch.bfloat16, HOPPER), (torch.float16, HOPPER_FLOAT16)])
def test_the_simulator_is_the_hardware(dtype: torch.dtype, model: object) -> None:
    """float32 accumulators of the GPU == the integer model on the CPU; ordinary, wide, cancelling, special data."""
    for recipe in ("normal", "wide", "cancelling", "subnormal", "infinite", "zeros_signed"):
        a, b = tensor(recipe, (40, 1000), 1, dtype), tensor(recipe, (1000, 48), 2, dtype)
        ours = matmul_accumulate_(torch.zeros(40, 48, device="cuda"), a, b).cpu().numpy()
        simulated = fused_chain(a.cpu(), b.cpu(), model)  # type: ignore[arg-type]
        difference = compare(ours, simulated)
        assert difference is None, f"{recipe}: {difference}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_layouts_and_alignment_do_not_matter(dtype: torch.dtype) -> None:
    """Contiguous, transposed, strided, misaligned operands: the same bits, by whichever loads."""
    a, b = tensor("cancelling", (37, 250), 1, dtype), tensor("cancelling", (250, 60), 2, dtype)
    expected = matmul(a, b)

    def shifted(matrix: torch.Tensor) -> torch.Tensor:
        storage = torch.empty(matrix.numel() + 3, dtype=dtype, device="cuda")
        return storage[3:].view(matrix.shape).copy_(matrix)

    for left in (a, a.T.contiguous().T, torch.cat([a, a], 1)[:, :250], shifted(a), torch.stack([a, a], 2)[:, :, 0]):
        for right in (b, b.T.contiguous().T, shifted(b)):
            assert compare(matmul(left, right).cpu(), expected.cpu()) is None


def test_cublas_beside_ours() -> None:
    """F.linear in bfloat16 at 1 and at 256 rows of 64 terms, replayed; ours at both is the declared chain.

    At 4096 terms a row of F.linear changes with its batch; a row of ours does not."""
    theirs = reveal(torch.nn.functional.linear, 64, rows=(1, 256), format="bfloat16", backend="triton")
    ours = reveal(linear, 64, rows=(1, 256), format="bfloat16", backend="triton")
    assert all(found.holds for found in (*ours.values(), *theirs.values()))
    assert ours[1].order == ours[256].order == theirs[256].order == HOPPER.order(64)
    x, weight = tensor("normal", (256, 4096), 1, torch.bfloat16), tensor("normal", (4096, 4096), 2, torch.bfloat16)
    assert compare(linear(x[:1], weight).cpu(), linear(x, weight)[:1].cpu()) is None
    alone, among = torch.nn.functional.linear(x[:1], weight), torch.nn.functional.linear(x, weight)[:1]
    assert compare(alone.cpu(), among.cpu()) is not None


def test_torch_accepts_the_operators() -> None:
    """opcheck, torch.compile and gradients on CUDA tensors."""
    x, weight, bias = (
        torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for shape in ((6, 64), (32, 64), (32,))
    )
    torch.library.opcheck(torch.ops.samebits.gemm.default, (x, weight.T, bias, "triton"))
    torch.library.opcheck(
        torch.ops.samebits.rmsnorm.default, (x, torch.ones_like(x[0]).requires_grad_(), 1e-6, "triton")
    )
    compiled = torch.compile(lambda given: rmsnorm(linear(given, weight, bias), bias), dynamic=True)
    for rows in (2, 5, 64):
        given = torch.randn(rows, 64, device="cuda", dtype=torch.bfloat16)
        eager = rmsnorm(linear(given, weight, bias), bias)
        assert compare(compiled(given).detach().cpu(), eager.detach().cpu()) is None  # type: ignore[union-attr]


def test_more_than_two_to_the_31_elements() -> None:
    """Offsets are 64 bits wide where they must be: an output and an input of more than 2^31 elements."""
    rows, depth, columns = 2**15 + 8, 64, 2**16 + 16
    x, weight = (torch.randn(size, depth, device="cuda").bfloat16() for size in (rows, columns))
    y = linear(x, weight)
    assert y.numel() > 2**31
    assert compare(y[-1:].cpu(), linear(x[-1:], weight).cpu()) is None
    back = matmul(y, weight)
    assert compare(back[-1:].cpu(), matmul(y[-1:], weight).cpu()) is None


def test_bad_input_is_one_line() -> None:
    cuda, cpu = torch.ones(2, 3, device="cuda"), torch.ones(3, 2)
    with pytest.raises(ValueError, match="b is on cpu, a on cuda:0; they must agree"):
        matmul(cuda, cpu)
    with pytest.raises(ValueError, match="backend='cpu' takes tensors on 'cpu', got one on 'cuda'"):
        matmul(cuda, cuda.T, backend="cpu")
    with pytest.raises(ValueError, match="a has dtype float64; allowed with backend='triton'"):
        matmul(cuda.double(), cuda.T.double())


def test_the_goldens_still_hold() -> None:
    """What was recorded is what this GPU computes now."""
    import importlib.util

    folder = Path(__file__).resolve().parents[2] / "goldens"
    spec = importlib.util.spec_from_file_location("goldens_record", folder / "record.py")
    assert spec is not None and spec.loader is not None
    record = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(record)
    recorded = np.load(folder / "h200" / "matmul_bfloat16.npz")
    assert json.loads((folder / "h200" / "matmul_bfloat16.json").read_text())["device"] == torch.cuda.get_device_name()
    for recipe in record.RECIPES:
        for name, patterns in record.record(recipe).items():
            same = recorded[name] == patterns
            wide = patterns.itemsize == 4
            floats = (recorded[name] if wide else recorded[name].astype(np.uint32) << 16).view(np.float32)
            assert bool((same | np.isnan(floats)).all()), name
