"""Invariant mode on the GPU: unmodified transformers models in float32 and bfloat16, and where values lie in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.invariant.conftest import Make, ids_of, in_parts, make, padded
from tests.invariant.families import FAMILIES, KEPT, judge, verdict
from tests.invariant.test_attention import NAME, beside_noise, run, sequence
from tests.invariant.test_places import OPERATIONS, dependent_on_place
from torch import Tensor, nn

from samebits.invariant import invariant_mode
from samebits.numerics.bits import same_bits

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU, none is visible")
__all__ = ["make"]  # the fixture
LENGTHS = [23, 5, 41, 17, 1, 33, 12, 28] * 4
aten = torch.ops.aten
ONE_FORM: dict[str, Callable[..., Tensor]] = {
    **OPERATIONS,
    **{name: getattr(aten, name) for name in ("sinh", "cosh", "mish", "elu", "softplus", "atan2", "logaddexp")},
    "mish backward": aten.mish_backward,
    "softplus backward": lambda x, y: aten.softplus_backward(x, y, 1, 20),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_sequence_keeps_its_bits_in_every_form(make: Make, kind: str, dtype: torch.dtype) -> None:
    """Logits and input gradients alone and in a ragged batch of 32; logits in chunks and token by token."""
    model: nn.Module = make(kind).to("cuda", dtype)
    sequences = [ids_of(1, length, 100 + row)[0].cuda() for row, length in enumerate(LENGTHS)]
    row = 3

    def run(ids: Tensor, row: int, place: slice, **options: Tensor) -> list[Tensor]:
        rows = model.get_input_embeddings()(ids).detach().requires_grad_()
        logits = model(inputs_embeds=rows, use_cache=False, **options).logits[row, place]
        chosen = torch.log_softmax(logits[:-1].float(), -1).gather(-1, ids[row, place][1:, None])
        (gradient,) = torch.autograd.grad(chosen.mean(), rows)
        return [logits.detach(), chosen.detach(), gradient[row, place]]

    with invariant_mode() as mode:
        alone = run(sequences[row][None], 0, slice(None))
        for side in ("left", "right"):
            ids, mask, positions, places = padded([each.cpu() for each in sequences], side)
            found = run(ids.cuda(), row, places[row], attention_mask=mask.cuda(), position_ids=positions.cuda())
            assert all(same_bits(a, b) for a, b in zip(alone, found, strict=True))
        with torch.no_grad():
            for sizes in ((5, 1, 9, 2), (1,) * 17):
                assert same_bits(in_parts(model, sequences[row], sizes), alone[0])
    assert mode.routed and not mode.unverified


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_values_bits_do_not_depend_on_its_place(dtype: torch.dtype) -> None:
    """Off the CPU invariant mode leaves elementwise functions to torch: there must be one form of each."""
    found = {name: dependent_on_place(each, dtype, invariant_mode, "cuda") for name, each in ONE_FORM.items()}
    assert not {name: places for name, places in found.items() if places}


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["float32", "bfloat16", "float16"]
)
def test_attention_is_the_same_alone_and_padded(dtype: torch.dtype) -> None:
    """scaled_dot_product_attention itself, with gradients; backward runs in a thread of torch's own there."""
    parts = [each.cuda() for each in sequence(dtype, length=37)]
    with invariant_mode() as mode:
        alone = run(*parts, is_causal=True)
        for before, after in ((0, 5), (7, 0), (70, 3)):
            total = before + 37 + after
            seen = torch.ones(total, total, dtype=torch.bool, device="cuda").tril()
            seen &= torch.arange(total, device="cuda") >= before
            whole = run(*(each.cuda() for each in beside_noise(parts, before, after)), attn_mask=seen)
            assert all(same_bits(a[0], b[1, :, before : before + 37]) for a, b in zip(alone, whole, strict=True))
    assert mode.routed[NAME] == 4 and not mode.unverified


@pytest.mark.parametrize("name", FAMILIES)
def test_default_models_keep_their_bits(name: str) -> None:
    """No word about attention: whatever transformers picks on the GPU."""
    assert verdict(judge(name, torch.float32, "cuda")) == KEPT


@pytest.mark.parametrize("name", FAMILIES)
def test_default_models_keep_their_logits_in_16_bits(name: str) -> None:
    """Weight gradients under padding on the left are not promised there: a chain takes 16 rows at a time."""
    found = judge(name, torch.bfloat16, "cuda")
    assert not isinstance(found, str), found
    assert not {form: names for form, names in found.items() if {"logits", "input"} & set(names)}
    assert not any(names for form, names in found.items() if form != "left")
