"""The portable goldens in float32 on CUDA: the digests that every CPU gives."""

from __future__ import annotations

import pytest

from samebits.parity import portable

torch = pytest.importorskip("torch", reason="needs torch with CUDA")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")


@needs_gpu
@pytest.mark.parametrize("group", portable.groups_of("triton"))
def test_cuda_gives_the_record(group: str) -> None:
    """digests(group on CUDA) == goldens/portable.json."""
    found = portable.compare(group, portable.read()[group], portable.digests_of(group, "triton"))
    assert found.equal, f"{group}: {found.differing[:5]}"
