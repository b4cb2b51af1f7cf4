"""Whole numbers that cross into kernels are the ones that were given, or one line says what is allowed.

ctypes keeps the low 64 bits of a number without a word, so that a window of 2^64 + 1 was one of 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from samebits import ops
from samebits.ops.arguments import check_integer
from samebits.ops.logprob import selected_logprob_weight_gradient_

ROWS, VOCABULARY = 4, 8
X = torch.randn(ROWS, 16)
WEIGHT = torch.randn(VOCABULARY, 16)
IDS = torch.arange(ROWS)
Q, K, V = torch.randn(1, 6, 2, 8), torch.randn(1, 6, 2, 8), torch.randn(1, 6, 2, 8)

CALLS: dict[str, Callable[[Any], Any]] = {
    "window": lambda n: ops.attention(Q, K, V, window=n),
    "window both ways": lambda n: ops.attention(Q, K, V, window=n, causal=False),
    "lengths": lambda n: ops.attention(Q, K, V, lengths=[n], padding="left"),
    "cu_seqlens": lambda n: ops.attention(Q[0], K[0], V[0], cu_seqlens=[0, n, 6]),
    "selected_logprob": lambda n: ops.selected_logprob(X, WEIGHT, IDS, ignore_index=n),
    "weight gradient": lambda n: selected_logprob_weight_gradient_(
        torch.zeros(VOCABULARY, 16), torch.ones(ROWS), X, WEIGHT, IDS, ignore_index=n
    ),
    "cross_entropy": lambda n: ops.linear_cross_entropy(X, WEIGHT, IDS, ignore_index=n),
    "cross_entropy rows": lambda n: ops.linear_cross_entropy(X, WEIGHT, IDS, ignore_index=n, reduction="none"),
    "distill_loss": lambda n: ops.distill_loss(X, X, IDS, alpha=0.5, ignore_index=n),
    "padding_idx": lambda n: ops.embedding(IDS, WEIGHT, n),
    "embedding gradient": lambda n: ops.embedding_gradient_(torch.zeros(VOCABULARY, 16), IDS, X, n),
    "seed": lambda n: ops.sample(X, seed=n, requests=IDS, positions=IDS),
    "top_k": lambda n: ops.sample(X, seed=1, requests=IDS, positions=IDS, top_k=n),
    "softmax": lambda n: ops.softmax(X, dim=n),
    "log_softmax": lambda n: ops.log_softmax(X, dim=n),
    "step": lambda n: ops.adamw_(X.clone(), X.clone(), torch.zeros_like(X), torch.ones_like(X), step=n, lr=0.1),
    "page": lambda n: ops.PagedCache.empty([[n]], 2, 8, pages=4),
    "length": lambda n: ops.DenseCache(K, V, [n]),
    "paged length": lambda n: ops.PagedCache(torch.zeros(1, 16, 2, 8), torch.zeros(1, 16, 2, 8), [[0]], [n]),
}


@pytest.mark.parametrize("number", [2**64 + 1, 2**65 + 2, -(2**64) - 1, 1.5, "1", True], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_what_no_kernel_can_take_is_refused(name: str, number: Any) -> None:
    """One line that names the number; never the number's low bits."""
    wrong_kind = isinstance(number, str | bool)
    with pytest.raises(TypeError if wrong_kind else ValueError, match="allowed") as refused:
        CALLS[name](number)
    assert "\n" not in str(refused.value) and repr(number)[:60] in str(refused.value)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "seed"])
def test_the_first_number_beyond_64_bits_is_refused(name: str) -> None:
    for number in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="allowed"):
            CALLS[name](number)


@pytest.mark.parametrize("name", ["selected_logprob", "weight gradient", "cross_entropy", "distill_loss"])
def test_the_last_number_within_64_bits_is_taken(name: str) -> None:
    for number in (2**63 - 1, -(2**63)):
        CALLS[name](number)


def test_the_widest_window_sees_everything() -> None:
    for causal in (True, False):
        everything = ops.attention(Q, K, V, causal=causal)
        assert torch.equal(ops.attention(Q, K, V, causal=causal, window=2**30), everything)
        with pytest.raises(ValueError, match=r"window is 1073741825; allowed: a whole number, 1 to 2\^30, or None"):
            ops.attention(Q, K, V, causal=causal, window=2**30 + 1)
    assert not torch.equal(ops.attention(Q, K, V, window=1), ops.attention(Q, K, V))


def test_numbers_of_numpy_are_numbers() -> None:
    assert torch.equal(ops.attention(Q, K, V, window=np.int64(2)), ops.attention(Q, K, V, window=2))
    assert check_integer("a", "b", np.int32(3)) == 3 and type(check_integer("a", "b", np.uint8(3))) is int


DENSE: Callable[[], Any] = lambda: ops.DenseCache(K.clone(), V.clone(), [5])  # noqa: E731
PAGED: Callable[[], Any] = lambda: ops.PagedCache(torch.ones(3, 16, 2, 8), torch.ones(3, 16, 2, 8), [[2, 0]], [5])  # noqa: E731


def decode(cache: Any) -> Any:
    return ops.attention(Q[:, :1], None, None, cache=cache)


def prefill(cache: Any) -> Any:
    return ops.attention(Q[:, :1], K[:, :1], V[:, :1], cache=cache)


@pytest.mark.parametrize("use", [decode, prefill])
@pytest.mark.parametrize("make", [DENSE, PAGED], ids=["dense", "paged"])
@pytest.mark.parametrize("length", [10**6, 33, 2**63, 2**64 + 1, -1, 1.0, None, True], ids=str)
def test_a_length_set_past_the_storage_is_refused(
    make: Callable[[], Any], use: Callable[[Any], Any], length: Any
) -> None:
    """Whole lists and single elements; before a kernel reads a key."""
    whole, element = make(), make()
    whole.lengths = [length]
    element.lengths[0] = length
    for cache in (whole, element):
        wrong = ValueError if type(length) in (int, float) else TypeError
        with pytest.raises(wrong, match=r"lengths\[0\] is .*; allowed: 0 to (6|32), the capacity of the cache"):
            use(cache)


@pytest.mark.parametrize("make", [DENSE, PAGED], ids=["dense", "paged"])
def test_a_length_within_the_storage_may_be_set(make: Callable[[], Any]) -> None:
    """To forget the last keys of a sequence."""
    cache, other = make(), make()
    cache.lengths[0] = 2
    other.lengths = [2]
    assert torch.equal(decode(cache), decode(other)) and cache.lengths == [2]


@pytest.mark.parametrize("make", [DENSE, PAGED], ids=["dense", "paged"])
def test_a_storage_that_became_smaller_is_refused(make: Callable[[], Any]) -> None:
    shorter, parted, missing = make(), make(), make()
    shorter.k = shorter.v = torch.zeros(0, 16, 2, 8)
    parted.k = parted.k[:, :-1]
    missing.lengths = []
    for cache in (shorter, parted, missing):
        with pytest.raises(ValueError, match=r"attention: .*(allowed|agree)"):
            decode(cache)


def test_pages_cannot_be_led_elsewhere() -> None:
    """The tensor of pages is a copy, a table cannot be written, and a storage with fewer pages is refused."""
    cache = PAGED()
    wanted = decode(cache)
    cache.pages.fill_(10**6)
    cache.pages.numpy()[:] = 10**6
    assert torch.equal(decode(cache), wanted)
    with pytest.raises(TypeError):
        cache.tables[0][0] = 10**6
    with pytest.raises(AttributeError):
        cache.tables = [[10**6]]
    cache.k, cache.v = torch.ones(2, 16, 2, 8), torch.ones(2, 16, 2, 8)
    with pytest.raises(ValueError, match=r"tables\[0\] names page 2; allowed: 0 to 1"):
        decode(cache)
