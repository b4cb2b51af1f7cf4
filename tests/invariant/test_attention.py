"""`scaled_dot_product_attention` under invariant mode: a query's bits are its own, whatever the mask and its form."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from samebits.invariant import InvariantError, invariant_mode
from samebits.numerics.bits import same_bits
from samebits.numerics.recipes import make

attend = torch.nn.functional.scaled_dot_product_attention
FORMATS = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
NAME = "aten.scaled_dot_product_attention.default"


def normal(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.from_numpy(make("normal", shape, seed)).to(dtype)


def run(q: Tensor, k: Tensor, v: Tensor, dout: Tensor, **options: Any) -> list[Tensor]:
    """out, dq, dk, dv."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = attend(q, k, v, **options)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), dout)]


def sequence(dtype: torch.dtype, length: int = 9, heads: int = 4, key_heads: int = 4) -> list[Tensor]:
    """q, k, v, dout of one sequence."""
    counts = (heads, key_heads, key_heads, heads)
    return [normal(1, count, length, 24, seed=seed, dtype=dtype) for seed, count in enumerate(counts)]


def beside_noise(parts: list[Tensor], before: int, after: int) -> list[Tensor]:
    """The sequence with noise around it in its row, and a row of noise beside it. Noise gets no gradient."""
    found = []
    for number, part in enumerate(parts):
        _, heads, length, width = part.shape
        row = normal(2, heads, before + length + after, width, seed=50 + number, dtype=part.dtype)
        if number == 3:
            row.zero_()
        row[1, :, before : before + length] = part[0]
        found.append(row)
    return found


@FORMATS
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("form", ["boolean", "added", "smallest number"])
def test_a_causal_sequence_is_the_same_alone_and_padded(dtype: torch.dtype, grouped: bool, form: str) -> None:
    """is_causal alone; in a batch with padding on either side, as a boolean mask or as numbers that are added."""
    parts = sequence(dtype, key_heads=2 if grouped else 4)
    length = parts[0].shape[2]
    with invariant_mode() as mode:
        alone = run(*parts, is_causal=True, enable_gqa=grouped)
        for before, after in ((0, 5), (7, 0), (70, 3), (1, 300)):
            total = before + length + after
            seen = torch.ones(total, total, dtype=torch.bool).tril()
            seen = torch.stack([seen, seen & (torch.arange(total) >= before)])[:, None]
            lowest = -math.inf if form == "added" else torch.finfo(dtype).min
            mask = seen if form == "boolean" else torch.where(seen, 0.0, lowest).to(dtype)
            whole = run(*beside_noise(parts, before, after), attn_mask=mask, enable_gqa=grouped)
            for one, all_ in zip(alone, whole, strict=True):
                assert same_bits(one[0], all_[1, :, before : before + length])
    assert mode.routed[NAME] == 5


def test_keys_that_were_repeated_give_the_gradients_of_groups() -> None:
    """Libraries repeat keys when there is a mask and say enable_gqa when there is none: two forms of one thing."""
    parts = sequence(torch.bfloat16, key_heads=2)
    with invariant_mode():
        grouped = run(*parts, is_causal=True, enable_gqa=True)
        q, k, v, dout = (x.detach().requires_grad_() for x in parts)
        repeated = [x[:, :, None].expand(-1, -1, 2, -1, -1).reshape(1, 4, -1, 24) for x in (k, v)]
        out = attend(q, *repeated, is_causal=True)
        other = [out, *torch.autograd.grad(out, (q, k, v), dout)]
    assert all(same_bits(a, b.detach()) for a, b in zip(grouped, other, strict=True))


@FORMATS
def test_a_query_is_the_same_in_decode_and_behind_a_window(dtype: torch.dtype) -> None:
    """The last query against all keys; against a longer cache; against the window's keys alone."""
    q, k, v, _ = sequence(dtype, length=300)
    near = torch.arange(300) > 300 - 40
    with invariant_mode(), torch.no_grad():
        whole = attend(q, k, v, is_causal=True)[:, :, -1:]
        assert same_bits(attend(q[:, :, -1:], k, v), whole)
        longer = [torch.cat((x, torch.full_like(x, torch.nan)), 2) for x in (k, v)]
        assert same_bits(attend(q[:, :, -1:], *longer, attn_mask=torch.arange(600) < 300), whole)
        windowed = attend(q[:, :, -1:], k, v, attn_mask=near)
        assert same_bits(attend(q[:, :, -1:], k[:, :, near], v[:, :, near]), windowed)
    assert not same_bits(windowed, whole)


@FORMATS
@pytest.mark.parametrize("grad", ["grad", "no_grad", "inference_mode"])
def test_it_is_caught_however_it_is_called(dtype: torch.dtype, grad: str) -> None:
    parts = sequence(dtype)
    q, k, v = parts[:3]
    around = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}[grad]
    with invariant_mode():
        wanted = run(*parts, is_causal=True)[0]
    with around(), invariant_mode() as mode:
        for function in (
            attend,
            torch._C._nn.scaled_dot_product_attention,
            torch.ops.aten.scaled_dot_product_attention,
        ):
            assert same_bits(function(q, k, v, None, 0.0, True), wanted)
    assert mode.routed[NAME] == 3 and not mode.unverified


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputation_in_backward_is_caught(reentrant: bool) -> None:
    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.tanh(attend(q, k, v))

    *parts, dout = sequence(torch.float32)
    found = []
    with invariant_mode() as mode:
        for function in (block, lambda *x: checkpoint(block, *x, use_reentrant=reentrant)):
            leaves = [x.detach().requires_grad_() for x in parts]
            function(*leaves).backward(dout)
            found.append([leaf.grad for leaf in leaves])
    assert all(same_bits(a, b) for a, b in zip(*found, strict=True)) and mode.routed[NAME] == 3


@FORMATS
def test_torchs_own_module_uses_it(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, dtype=dtype).eval()
    x = normal(5, 7, 32, dtype=dtype)
    with torch.no_grad(), invariant_mode(), pytest.raises(InvariantError, match=r"mha\.set_fastpath_enabled\(False\)"):
        module(x)
    monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", False)
    for around in (torch.enable_grad, torch.no_grad):
        with around(), invariant_mode():
            assert same_bits(module(x)[3:4].detach(), module(x[3:4]).detach())


MASKS = {
    "none": None,
    "boolean": torch.arange(77).reshape(7, 11) % 3 > 0,
    "added": normal(3, 1, 7, 11, seed=9),
    "one row sees nothing": (torch.arange(7) != 4)[:, None].expand(7, 11),
}


@pytest.mark.parametrize("mask", MASKS)
def test_values_and_gradients_are_right(mask: str) -> None:
    """Against the formula in float64: chains of at most 24 terms in the head, 11 keys and 7 queries."""
    q, k, v, dout = normal(3, 4, 7, 24), normal(3, 2, 11, 24, seed=2), normal(3, 2, 11, 16, seed=3), normal(3, 4, 7, 16)
    given = MASKS[mask]
    added = given if given is None or given.dtype == torch.bool else given.clone().requires_grad_()
    with invariant_mode():
        out = attend(*(leaves := [x.clone().requires_grad_() for x in (q, k, v)]), added, scale=0.3, enable_gqa=True)
        asked = [*leaves, added] if added is not None and added.requires_grad else leaves
        found = [out.detach(), *torch.autograd.grad(out, asked, dout)]
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    wide = [x.repeat_interleave(2, 1) for x in exact[1:]]
    score = exact[0] @ wide[0].mT * 0.3
    if given is not None and given.dtype != torch.bool:
        exact.append(given.double().requires_grad_())
        score = score + exact[-1]
    elif given is not None:
        score = score.masked_fill(~given, -math.inf)
    weights = torch.softmax(score, -1).nan_to_num() if mask == "one row sees nothing" else torch.softmax(score, -1)
    result = weights @ wide[1]
    wanted = [result.detach(), *torch.autograd.grad(result, exact, dout.double())]
    for a, b in zip(found, wanted, strict=True):
        b = b.nan_to_num()
        assert (a - b).abs().max() <= 100 * 2**-24 * 10 * max(1.0, float(b.abs().max()))


WRONG = {
    "shapes": (lambda x: attend(x, x[..., :3], x), "q, k, v have shapes .* head size of q that of k"),
    "heads": (lambda x: attend(x, x[:, :3], x[:, :3], enable_gqa=True), "q's a multiple of the others'"),
    "mask": (lambda x: attend(x, x, x, x[0, 0, :3, :5]), "attn_mask has shape .*; allowed: what expands to"),
    "formats": (lambda x: attend(x, x.bfloat16(), x), "q, k, v are float32, bfloat16, float32; convert them to one"),
    "float64": (lambda x: attend(x.double(), x.double(), x.double()), "not float64; convert it"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_computed_is_refused_in_one_line(name: str) -> None:
    function, words = WRONG[name]
    with invariant_mode(), pytest.raises(InvariantError, match=f"^invariant_mode: {NAME} .*{words}") as raised:
        function(normal(1, 4, 9, 16))
    assert "\n" not in str(raised.value)


def test_no_keys_and_no_queries_are_no_error() -> None:
    x = normal(2, 3, 5, 8)
    with invariant_mode():
        assert attend(x[:, :, :0], x, x).shape == (2, 3, 0, 8)
        out, *gradients = run(x, x[:, :, :0], x[:, :, :0], x)
    assert not out.any() and not any(each.any() for each in gradients)


def test_outside_of_the_block_torch_is_left_as_it_was() -> None:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    with invariant_mode(), invariant_mode(strict=False):
        assert has("aten::scaled_dot_product_attention", "AutogradCPU")
    assert not has("aten::scaled_dot_product_attention", "AutogradCPU")


def test_stock_torch_does_not_keep_them() -> None:
    """The negative control: the same comparison without the mode."""
    parts = sequence(torch.float32, length=60)
    alone = run(*parts, is_causal=True)
    seen = torch.ones(130, 130, dtype=torch.bool).tril() & (torch.arange(130) >= 70)
    whole = run(*beside_noise(parts, 70, 0), attn_mask=seen)
    assert not all(same_bits(a[0], b[1, :, 70:]) for a, b in zip(alone, whole, strict=True))
