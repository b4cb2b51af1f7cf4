"""The square root on the GPU: the correctly rounded instruction, and the bits of the CPU."""

from __future__ import annotations

import re

import pytest

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
triton = pytest.importorskip("triton", reason="needs Triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from samebits.ops._triton.roots import square_root_elements  # noqa: E402
from samebits.ops.roots import square_root  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")
CHUNK = 1 << 26


def test_the_instruction_rounds_to_nearest() -> None:
    """sqrt.rn without a flush of subnormals, as compiled for sm_90."""
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "N": "i64", "BLOCK": "constexpr", "ALIGNED": "constexpr"}
    source = ASTSource(fn=square_root_elements, signature=signature, constexprs={(3,): 1024, (4,): False})
    options = {"num_warps": 4, "enable_fp_fusion": False}
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    assert set(re.findall(r"\bsqrt\S*", text)) == {"sqrt.rn.f32"}
    assert not re.search(r"\.(ftz|approx)", text)


@needs_gpu
def test_every_positive_number_has_the_root_of_the_cpu() -> None:
    for first in range(0, 0x7F800000, CHUNK):
        x = torch.arange(first, min(first + CHUNK, 0x7F800001), dtype=torch.int32).view(torch.float32)
        wrong = int((square_root(x).view(torch.int32) != square_root(x.cuda()).cpu().view(torch.int32)).sum())
        assert wrong == 0, f"{wrong} of {len(x)} from {first:#x} on"
