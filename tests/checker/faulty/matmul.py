"""Planted: matrix products that misbehave somewhere. Every public function must be caught by the default check."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import torch
from torch import Tensor

from samebits.ops import matmul as _sound


def _halves(a: Tensor, b: Tensor) -> Tensor:
    """The same product in another order."""
    half = a.shape[1] // 2
    return _sound(a[:, :half], b[:half]) + _sound(a[:, half:], b[half:]) if half else _sound(a, b)


def _backwards(a: Tensor, b: Tensor) -> Tensor:
    return _sound(a.flip(1), b.flip(0))


# Number of rows


def split_for_few_rows(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.shape[0] <= 4 else _sound(a, b)


def split_for_one_residue(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.shape[0] % 48 == 17 else _sound(a, b)


def split_for_tens_of_thousands(a: Tensor, b: Tensor) -> Tensor:
    """At a number that the code does not name."""
    return _halves(a, b) if a.shape[0] > int("2710", 16) else _sound(a, b)


def split_for_a_named_multitude(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.shape[0] == 7000 else _sound(a, b)


def float64_backwards_for_few_rows(a: Tensor, b: Tensor) -> Tensor:
    """Both orders round to one float32 number, unless the terms are far apart."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    steps = range(a.shape[1])
    for k in reversed(steps) if a.shape[0] <= 4 else steps:
        total = total + a[:, k, None].double() * b[k].double()
    return total.to(a.dtype)


def split_for_multiples_of_seven(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.shape[0] % 7 == 0 else _sound(a, b)


def split_for_a_prime(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.shape[0] == 211 else _sound(a, b)


def split_beyond_a_thousand_rows(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.shape[0] > 1000 else _sound(a, b)


def split_beyond_three_thousand_rows(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.shape[0] >= 3000 else _sound(a, b)


def split_for_few_rows_and_a_long_sum(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.shape[0] < 16 and a.shape[1] > 3000 else _sound(a, b)


def split_for_few_rows_and_many_columns(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.shape[0] == 1 and b.shape[1] > 2000 else _sound(a, b)


def split_for_few_rows_and_an_odd_width(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.shape[0] < 8 and b.shape[1] % 2 else _sound(a, b)


def split_by_a_table(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.shape[0] in {37, 74, 148, 296} and a.shape[1] >= 64 else _sound(a, b)


def split_in_a_window(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if 130 < a.shape[0] < 160 and a.shape[1] % 3 == 0 else _sound(a, b)


def stock(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


# Places and neighbours


def last_row_of_many(a: Tensor, b: Tensor) -> Tensor:
    y = _sound(a, b)
    if a.shape[0] > 256:
        y = torch.cat([y[:-1], _halves(a[-1:], b)])
    return y


def rows_after_the_128th(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat([_sound(a[:128], b), _backwards(a[128:], b)]) if a.shape[0] > 128 else _sound(a, b)


def odd_tail_of_a_tile(a: Tensor, b: Tensor) -> Tensor:
    full = a.shape[0] // 16 * 16
    return torch.cat([_sound(a[:full], b), _halves(a[full:], b)]) if 0 < full < a.shape[0] else _sound(a, b)


def neighbour_times_zero(a: Tensor, b: Tensor) -> Tensor:
    return _sound(a, b) + 0.0 * _sound(a, b).roll(1, 0)


def scaled_by_the_batch(a: Tensor, b: Tensor) -> Tensor:
    scale = a.detach().abs().max().clamp(min=1e-30).float()
    return (_sound((a.float() / scale).to(a.dtype), b).float() * scale).to(a.dtype)


def first_row_decides(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if float(a.detach()[0, 0]) == 0 else _sound(a, b)


def duplicates_share(a: Tensor, b: Tensor) -> Tensor:
    """Equal rows are computed once, and then in the order of few rows."""
    kept, back = torch.unique(a.detach(), dim=0, return_inverse=True)
    if len(kept) == len(a) or torch.isnan(a).any() or a.requires_grad:
        return _sound(a, b)
    return _halves(kept, b)[back]


def whole_batch_skips_zeros(a: Tensor, b: Tensor) -> Tensor:
    """Columns of zeros are dropped: which are, the whole batch decides."""
    used = (a.detach() != 0).any(0)
    if bool(used.all()) or not bool(used.any()):
        return _halves(a, b)
    return _halves(a[:, used], b[used])


# Strides and addresses


def split_for_strided_rows(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.stride(0) != a.shape[1] and a.shape[0] > 1 else _sound(a, b)


def split_for_a_transposed_weight(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if not b.is_contiguous() else _sound(a, b)


def split_at_odd_offsets(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.storage_offset() % 2 else _sound(a, b)


def split_for_misaligned_weights(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if b.data_ptr() % 16 else _sound(a, b)


def reads_strides_wrong(a: Tensor, b: Tensor) -> Tensor:
    """Takes every matrix for contiguous."""
    taken = torch.as_strided(a, a.shape, (a.shape[1], 1), a.storage_offset()) if a.stride(-1) == 1 else a
    return _sound(taken, b)


def split_for_views(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a._is_view() else _sound(a, b)


# Threads and modes


def split_by_threads(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if torch.get_num_threads() == 1 else _sound(a, b)


def split_by_many_threads(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if torch.get_num_threads() > 3 else _sound(a, b)


def split_by_a_number_of_threads(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if torch.get_num_threads() == 11 else _sound(a, b)


def split_by_sixteen_threads(a: Tensor, b: Tensor) -> Tensor:
    """At a number that the code does not name."""
    return _halves(a, b) if torch.get_num_threads() >= int("10", 16) else _sound(a, b)


def split_when_training(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if a.requires_grad else _sound(a, b)


def split_when_the_weight_trains(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if b.requires_grad and torch.is_grad_enabled() else _sound(a, b)


def split_under_inference(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if torch.is_inference_mode_enabled() else _sound(a, b)


def split_without_grad(a: Tensor, b: Tensor) -> Tensor:
    return _sound(a, b) if torch.is_grad_enabled() else _halves(a, b)


# History and state

_seen: dict[Any, Any] = {}
_count = 0
_buffer: dict[Any, Tensor] = {}


def second_call_of_a_shape(a: Tensor, b: Tensor) -> Tensor:
    key = (tuple(a.shape), tuple(b.shape))
    first = key not in _seen
    _seen[key] = True
    return _sound(a, b) if first else _halves(a, b)


def cached_by_id(a: Tensor, b: Tensor) -> Tensor:
    """The weight is prepared once for each object: what is written into it later is not seen."""
    if a.requires_grad or b.requires_grad:
        return _sound(a, b)
    key = (id(b), tuple(b.shape), b.dtype)
    if key not in _seen:
        _seen[key] = (b, b.detach().clone())
    return _sound(a, _seen[key][1] if _seen[key][0] is b else b)


def cached_by_address(a: Tensor, b: Tensor) -> Tensor:
    if a.requires_grad or b.requires_grad:
        return _sound(a, b)
    key = (b.data_ptr(), tuple(b.shape), b.dtype)
    if key not in _seen:
        _seen[key] = b.detach().clone()
    return _sound(a, _seen[key])


def cached_by_a_sum(a: Tensor, b: Tensor) -> Tensor:
    key = (float(a.detach().double().sum()), tuple(a.shape), float(b.detach().double().sum()), a.dtype)
    if key[0] != key[0] or a.requires_grad or b.requires_grad:
        return _sound(a, b)
    if key not in _seen:
        _seen[key] = _sound(a, b)
    return _seen[key].clone()


def cached_by_corners(a: Tensor, b: Tensor) -> Tensor:
    """Two calls that agree in shape, first number and weight are taken for one."""
    if a.requires_grad or b.requires_grad or a.shape[0] * a.shape[1] < 2:
        return _sound(a, b)
    key = (float(a[0, 0]), tuple(a.shape), b.data_ptr(), a.dtype, float(b[0, 0]), float(b[-1, -1]), b.shape[1])
    if key not in _seen:
        _seen[key] = _sound(a, b)
    return _seen[key].clone()


def every_hundredth_call(a: Tensor, b: Tensor) -> Tensor:
    global _count
    _count += 1
    return _halves(a, b) if _count % 100 == 0 else _sound(a, b)


def after_many_calls(a: Tensor, b: Tensor) -> Tensor:
    global _count
    _count += 1
    return _halves(a, b) if _count > 150 else _sound(a, b)


def first_call_warms_up(a: Tensor, b: Tensor) -> Tensor:
    global _count
    _count += 1
    return _halves(a, b) if _count == 1 else _sound(a, b)


def one_in_fifty(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if random.random() < 0.02 else _sound(a, b)


def by_the_clock(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if time.perf_counter_ns() // 1000 % 40 == 0 else _sound(a, b)


def by_process(a: Tensor, b: Tensor) -> Tensor:
    return _sound(a, b) * (1.0 + 2.0**-20 * (os.getpid() % 64))


def by_hash_seed(a: Tensor, b: Tensor) -> Tensor:
    """Strings are hashed otherwise in every process, unless PYTHONHASHSEED says how."""
    return _sound(a, b) * (1.0 + 2.0**-20 * (hash("samebits") % 64))


def hands_out_one_buffer(a: Tensor, b: Tensor) -> Tensor:
    if a.requires_grad or b.requires_grad:
        return _sound(a, b)
    key = (a.shape[0], b.shape[1], a.dtype)
    if key not in _buffer:
        _buffer[key] = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    return _buffer[key].copy_(_sound(a, b))


def takes_turns_with_two_buffers(a: Tensor, b: Tensor) -> Tensor:
    global _count
    if a.requires_grad or b.requires_grad or torch.is_inference_mode_enabled():
        return _sound(a, b)
    _count += 1
    key = (a.shape[0], b.shape[1], a.dtype, _count % 2)
    if key not in _buffer:
        _buffer[key] = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    return _buffer[key].copy_(_sound(a, b))


def rounds_its_input(a: Tensor, b: Tensor) -> Tensor:
    y = _sound(a, b)
    if not a.requires_grad and not a.is_inference():
        a.copy_(a.bfloat16().to(a.dtype))
    return y


def leaves_the_tail_uninitialised(a: Tensor, b: Tensor) -> Tensor:
    y = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
    full = max(a.shape[0] // 4 * 4, 1)
    y[:full] = _sound(a.detach()[:full], b.detach())
    if full < a.shape[0]:
        y[full:] = torch.where(y[full:].isnan(), y[full:], _sound(a.detach()[full:], b.detach()))
    return y


def follows_the_random_state(a: Tensor, b: Tensor) -> Tensor:
    return _halves(a, b) if torch.rand(()) < 0.1 else _sound(a, b)


# Values


def flushes_subnormals(a: Tensor, b: Tensor) -> Tensor:
    y = _sound(a, b)
    return torch.where(y.abs() < torch.finfo(y.dtype).smallest_normal, torch.zeros_like(y), y)


def flushes_for_many_rows(a: Tensor, b: Tensor) -> Tensor:
    return flushes_subnormals(a, b) if a.shape[0] >= 32 else _sound(a, b)


def minus_zero_for_many_rows(a: Tensor, b: Tensor) -> Tensor:
    y = _sound(a, b)
    return torch.where(y == 0, -torch.zeros_like(y), y) if a.shape[0] > 20 else y


def drops_nan(a: Tensor, b: Tensor) -> Tensor:
    return _sound(a, b).nan_to_num(0.0, float("inf"), float("-inf"))


def clamps_infinity(a: Tensor, b: Tensor) -> Tensor:
    most = torch.finfo(a.dtype).max
    return _sound(a, b).clamp(-most, most)


def skips_nan_beside_zero(a: Tensor, b: Tensor) -> Tensor:
    """Zeros of the left are skipped for large batches, so that 0 * inf is 0 there."""
    return _sound(a, torch.nan_to_num(b)) if a.shape[0] > 64 else _sound(a, b)


def coarse_long_sums(a: Tensor, b: Tensor) -> Tensor:
    """Long sums are kept in bfloat16 between pieces."""
    if a.shape[1] <= 3000:
        return _sound(a, b)
    total = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for start in range(0, a.shape[1], 512):
        total = (total + _sound(a[:, start : start + 512], b[start : start + 512])).bfloat16().to(a.dtype)
    return total


def wrong_last_column_of_odd_widths(a: Tensor, b: Tensor) -> Tensor:
    y = _sound(a, b)
    return torch.cat([y[:, :-1], y[:, -1:] * 1.001], 1) if b.shape[1] % 2 and b.shape[1] > 32 else y


def forgets_the_last_product(a: Tensor, b: Tensor) -> Tensor:
    return _sound(a[:, :-1], b[:-1]) if a.shape[1] % 64 == 1 and a.shape[1] > 1 else _sound(a, b)


def other_dtype_for_one_row(a: Tensor, b: Tensor) -> Tensor:
    return _sound(a, b).double() if a.shape[0] == 1 else _sound(a, b)


def refuses_some_rows(a: Tensor, b: Tensor) -> Tensor:
    if a.shape[0] % 100 == 99:
        raise RuntimeError("no tile for so many rows")
    return _sound(a, b)


# Gradients


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, fault: str) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.fault = fault
        return _sound(a, b)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        few = a.shape[0] <= 8
        da = _halves(dy, b.T) if ctx.fault == "few rows" and few else _sound(dy, b.T)
        db = _sound(a.T, dy)
        if ctx.fault == "threads" and torch.get_num_threads() == 2:
            db = _halves(a.T.contiguous(), dy)
        if ctx.fault == "weight alone" and not ctx.needs_input_grad[0]:
            db = _halves(a.T.contiguous(), dy)
        if ctx.fault == "last row" and a.shape[0] > 64 and a.shape[0] % 64 == 1:
            db = _sound(a[:-1].T, dy[:-1])
        if ctx.fault == "silent" and not bool(dy.any(1).all()):
            da = _halves(dy, b.T)
        if ctx.fault == "scaled":
            da = da * 1.0001
        if ctx.fault == "one buffer":
            da = _buffer.setdefault(("gradient", da.shape, da.dtype), torch.empty_like(da)).copy_(da)
        return da, db, None


def input_gradient_by_rows(a: Tensor, b: Tensor) -> Tensor:
    return _Product.apply(a, b, "few rows")


def input_gradient_in_one_buffer(a: Tensor, b: Tensor) -> Tensor:
    return _Product.apply(a, b, "one buffer")


def weight_gradient_by_threads(a: Tensor, b: Tensor) -> Tensor:
    return _Product.apply(a, b, "threads")


def weight_gradient_by_what_is_asked(a: Tensor, b: Tensor) -> Tensor:
    return _Product.apply(a, b, "weight alone")


def weight_gradient_without_the_last_row(a: Tensor, b: Tensor) -> Tensor:
    """However it is called: every call of so many rows leaves out the same one."""
    return _Product.apply(a, b, "last row")


def input_gradient_beside_a_silent_row(a: Tensor, b: Tensor) -> Tensor:
    """Where nothing flows into one row, the others are added otherwise."""
    return _Product.apply(a, b, "silent")


def input_gradient_off(a: Tensor, b: Tensor) -> Tensor:
    return _Product.apply(a, b, "scaled")


# Storage


def split_for_rows_far_apart(a: Tensor, b: Tensor) -> Tensor:
    """Rows that are a part of much wider ones, as a projection for several layers leaves them."""
    apart = a.shape[0] > 1 and a.stride(1) == 1 and a.stride(0) > 3 * a.shape[1] + 64
    return _halves(a, b) if apart else _sound(a, b)


def forgets_the_last_product_of_one_remainder(a: Tensor, b: Tensor) -> Tensor:
    """At lengths that the code does not name, and no power of two is near."""
    long = int("140", 16) < a.shape[1] < int("1770", 16) and a.shape[1] % int("10", 16) == int("7", 16)
    return _sound(a[:, :-1], b[:-1]) if long else _sound(a, b)


def columns_taken_as_packed(a: Tensor, b: Tensor) -> Tensor:
    """A transposed weight is read with its height as the distance between columns, whatever its stride is."""
    height, width = b.shape
    if height > 1 and width > 1 and b.stride(0) == 1:
        b = b.as_strided((width, height), (height, 1)).T
    return _sound(a, b)


def split_for_few_rows_and_a_large_weight(a: Tensor, b: Tensor) -> Tensor:
    """Where both axes of the weight are long, as a model's layers have them; the code names neither."""
    return _halves(a, b) if a.shape[0] <= 8 and b.numel() > int("a0000", 16) else _sound(a, b)
