"""Elementary functions on the GPU: Triton(x) == C++(x) for every float32 x, bit for bit, with fp_fusion left on."""

import re

import numpy as np
import pytest

from samebits.numerics.elementary import FUNCTIONS, elementary, philox_uint32_native
from samebits.numerics.elementary.functions import PROGRAMS

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
triton = pytest.importorskip("triton", reason="needs Triton")
import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from samebits.numerics.elementary import triton_generated as device  # noqa: E402
from samebits.ops._triton.exponential import exp_up_to_zero  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")

CHUNK = 1 << 26
BLOCK = 1024


@triton.jit
def evaluate_patterns(out, first_pattern, name: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] = bits of name(float of pattern first_pattern + i)."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = (first_pattern + index).to(tl.int32).to(tl.float32, bitcast=True)
    tl.store(out + index, device.apply(x, name).to(tl.int32, bitcast=True))


@triton.jit
def evaluate_up_to_zero(out, first_pattern, BLOCK: tl.constexpr):
    """out[i] = bits of the shorter exponential, of the float of pattern first_pattern + i."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = (first_pattern + index).to(tl.int32).to(tl.float32, bitcast=True)
    tl.store(out + index, exp_up_to_zero(x).to(tl.int32, bitcast=True))


@triton.jit
def evaluate_and_add(x, out, name: tl.constexpr, BLOCK: tl.constexpr):
    """A caller whose addition could be fused with a product, if the function ended in one."""
    index = tl.arange(0, BLOCK)
    tl.store(out + index, device.apply(tl.load(x + index), name) + 1.0)


@triton.jit
def fill_philox(out, seed_low, seed_high, stream, BLOCK: tl.constexpr):
    block = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.uint32)
    zero = tl.zeros_like(block)
    key_low, key_high = (zero + seed_low).to(tl.uint32), (zero + seed_high).to(tl.uint32)
    a, b, c, d = device.philox(block, zero, (zero + stream).to(tl.uint32), zero, key_low, key_high)
    tl.store(out + block * 4, a.to(tl.int32, bitcast=True))
    tl.store(out + block * 4 + 1, b.to(tl.int32, bitcast=True))
    tl.store(out + block * 4 + 2, c.to(tl.int32, bitcast=True))
    tl.store(out + block * 4 + 3, d.to(tl.int32, bitcast=True))


def mismatches(name: str, first_pattern: int, shift: int = 0) -> int:
    """Patterns of one chunk on which GPU and CPU differ; a shift compares with the neighbouring inputs instead."""
    patterns = np.arange(CHUNK, dtype=np.uint32) + np.uint32(first_pattern + shift)
    expected = torch.from_numpy(elementary(name, patterns.view(np.float32)).view(np.int32)).cuda()
    actual = torch.full((CHUNK,), 85, dtype=torch.int32, device="cuda")
    evaluate_patterns[(CHUNK // BLOCK,)](actual, first_pattern, name, BLOCK)
    return int((actual != expected).sum())


@needs_gpu
@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_input_has_the_bits_of_the_cpu(name: str) -> None:
    wrong = sum(mismatches(name, first) for first in range(0, 1 << 32, CHUNK))
    assert wrong == 0, f"{name}: {wrong} of {1 << 32} differ between Triton and C++"


@needs_gpu
def test_the_comparison_can_fail() -> None:
    """Planted fault: the neighbour's result is compared instead."""
    assert mismatches("exp", 0x3F800000, shift=1) > CHUNK // 2


@needs_gpu
def test_the_shorter_exponential_has_the_bits_of_the_cpu() -> None:
    """Of every number with a sign, of +0, and of every NaN, whose bits may be any NaN's."""
    wrong = 0
    for first in (*range(1 << 31, 1 << 32, CHUNK), 0):
        count = CHUNK if first else BLOCK
        patterns = np.arange(count, dtype=np.uint32) + np.uint32(first)
        expected = torch.from_numpy(elementary("exp", patterns.view(np.float32))).cuda()
        actual = torch.full((count,), 85, dtype=torch.int32, device="cuda")
        evaluate_up_to_zero[(count // BLOCK,)](actual, first, BLOCK, enable_fp_fusion=False)
        differ = (actual != expected.view(torch.int32)) & ~(actual.view(torch.float32).isnan() & expected.isnan())
        wrong += int((differ if first else differ[:1]).sum())
    assert wrong == 0


@needs_gpu
def test_philox_draws_the_words_of_the_cpu() -> None:
    count, seed, stream = 1 << 22, 0x0123456789ABCDEF, 7
    words = torch.full((count,), 85, dtype=torch.int32, device="cuda")
    fill_philox[(count // 4 // BLOCK,)](words, seed & 0xFFFFFFFF, seed >> 32, stream, BLOCK)
    assert np.array_equal(words.cpu().numpy().view(np.uint32), philox_uint32_native(seed, stream, count))


def instruction_counts(name: str) -> dict[str, int]:
    """Float instructions a thread runs for one element, as compiled for sm_90 with fp_fusion on."""
    source = ASTSource(
        fn=evaluate_and_add,
        signature={"x": "*fp32", "out": "*fp32", "name": "constexpr", "BLOCK": "constexpr"},
        constexprs={(2,): name, (3,): 128},
    )
    compiled = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "enable_fp_fusion": True}
    )
    text = compiled.asm["ptx"]
    assert not re.search(r"\.(ftz|approx)", text), f"{name}: approximate or flushing instruction in PTX"
    found = re.findall(r"^\s+(fma\.rn|mul|add|sub)(?:\.rn)?\.f32\s", text, re.MULTILINE)
    return {"fma": found.count("fma.rn"), "mul": found.count("mul"), "add": found.count("add") + found.count("sub")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_compiler_fuses_nothing(name: str) -> None:
    """PTX holds exactly the program's fma, mul and add, plus the caller's one addition."""
    operations = [value.operation for value in PROGRAMS[name].statements]
    declared = {
        "fma": operations.count("fma"),
        "mul": operations.count("mul"),
        "add": operations.count("add") + operations.count("sub") + 1,
    }
    assert instruction_counts(name) == declared
