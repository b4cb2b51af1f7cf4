"""What attention must be, whatever it is built of: predicates that its contract names and the checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing. Weights are seen through values that are
one in one place. Causal, unless a predicate says otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.ops.attention.cache import PAGE_MULTIPLE, Cache, DenseCache, PagedCache
from samebits.ops.attention.forms import BLOCK_KEYS, SPLIT_KEYS, WEIGHT_LANES, rescalings
from samebits.ops.rounding import FLOAT32_ROUNDOFF


def share_error(call: Call) -> float:
    """How far the weights that values meet may add up from 1: a chain and a fold of the same numbers, apart by these.

    Weights are rounded to the dtype for the values and not for their sum; a block is rescaled by one product and one
    addition, a split by one more; eight lanes and a block's 64 are folded; a reciprocal, a product and the last
    rounding follow."""
    keys, information = call.arguments["k"].shape[1], torch.finfo(call.output.dtype)
    narrow = call.output.dtype != torch.float32
    steps, folds = 3 * rescalings(keys) + keys // SPLIT_KEYS, (BLOCK_KEYS * WEIGHT_LANES).bit_length()
    stored = information.eps / 2 + keys * information.smallest_normal * information.eps if narrow else 0.0
    return (call.sum_error(keys) + (steps + folds + 3) * FLOAT32_ROUNDOFF + 2 * stored) * (1 + information.eps)


def ones_come_back(call: Call, tolerance: Tolerance) -> str:
    """Weights of a row add up to 1: values of one give one."""
    ones = torch.ones_like(call.arguments["v"])
    return difference(call.again(v=ones), torch.ones_like(call.output), tolerance, allowed=share_error(call))


def _weights(call: Call, **changed: Tensor) -> Tensor:
    """(B, S, H, keys): what each key weighs, asked for a head's length of keys at a time."""
    v = call.arguments["v"]
    parts = []
    for first in range(0, v.shape[1], v.shape[3]):
        shown, count = torch.zeros_like(v), min(v.shape[3], v.shape[1] - first)
        places = torch.arange(count, device=v.device)
        shown[:, first + places, :, places] = 1
        parts.append(call.again(None, v=shown, **changed)[..., :count])
    return torch.cat(parts, -1)


def _later(call: Call) -> Tensor:
    """(S, 1, keys): keys that come after the query."""
    tokens = call.arguments["k"].shape[1]
    return torch.ones(tokens, tokens, dtype=torch.bool, device=call.output.device).triu(1)[:, None]


def weights_are_shares(call: Call, tolerance: Tolerance) -> str:
    """Every weight lies in 0 to 1 without slack, and that of a later key is +0."""
    weights = _weights(call)
    outside = ~((weights >= 0) & (weights <= 1))
    if bool(outside.any()):
        return f"{int(outside.sum())} of {weights.numel()} outside 0 to 1; first {float(weights[outside][0])}"
    later = weights.masked_fill(~_later(call), 0.0)
    return difference(later, torch.zeros_like(later), tolerance, words="weights of later keys")


def every_visible_key_counts_once(call: Call, tolerance: Tolerance) -> str:
    """A query of zeros sees all its keys alike: each weighs 1/n, rounded to float32 and to the dtype; others +0."""
    weights = _weights(call, q=torch.zeros_like(call.arguments["q"]))
    seen = torch.arange(1, weights.shape[1] + 1, device=weights.device, dtype=torch.float32)
    share = (1 / seen).to(weights.dtype)[:, None, None].expand(weights.shape[1:])
    expected = share.masked_fill(_later(call), 0.0).expand(weights.shape)
    return difference(weights, expected.contiguous(), tolerance, words="equal weights")


def stays_within_values(call: Call, tolerance: Tolerance) -> str:
    """Each column of the output lies between the smallest and the largest value seen, but for the weights' error."""
    q, v = call.arguments["q"], call.arguments["v"].double()
    low, high, size = (
        each.repeat_interleave(q.shape[2] // v.shape[2], 2)
        for each in (v.cummin(1).values, v.cummax(1).values, v.abs().cummax(1).values)
    )
    information = torch.finfo(call.output.dtype)
    slack = share_error(call) * size + information.smallest_normal * information.eps
    out = call.output.double()
    nearest = torch.minimum(torch.maximum(out, low), high)
    return difference(out, nearest, tolerance, allowed=slack, words="output beside the values seen")


def later_keys_change_nothing(call: Call, tolerance: Tolerance) -> str:
    """NaN in the keys and values after a token leaves that token's output and all before it alone."""
    tokens = call.output.shape[1]
    for kept in sorted({1, (tokens + 1) // 2, tokens - 1} - {0}):
        changed = {name: call.arguments[name].clone() for name in ("k", "v")}
        for value in changed.values():
            value[:, kept:] = torch.nan
        found = call.again(None, **changed)[:, :kept]
        wrong = difference(found, call.output[:, :kept], tolerance, words=f"NaN from key {kept} on")
        if wrong:
            return wrong
    return ""


def no_key_gives_zero(call: Call, tolerance: Tolerance) -> str:
    """Queries before the first key, and sequences of length 0, come out as +0, never NaN."""
    tokens, keys = call.output.shape[1], call.output.shape[1] // 2
    fewer = {name: call.arguments[name][:, :keys].contiguous() for name in ("k", "v")}
    blind = call.again(None, **fewer)[:, : tokens - keys]
    nothing = torch.zeros_like(blind)
    wrong = difference(blind, nothing, tolerance, words=f"{tokens} queries and {keys} keys")
    lengths = {"lengths": [0] * len(call.output), "padding": "right"}
    empty = call.again(lengths)
    return wrong or difference(empty, torch.zeros_like(empty), tolerance, words="sequences of length 0")


def heads_share_keys(call: Call, tolerance: Tolerance, *, key_heads: str) -> str:
    """Query head h reads key head h // (H / K), as if it were alone with it. `key_heads`: given, one or all."""
    q, k, v = call.arguments.values()
    heads = q.shape[2]
    if key_heads == "one":
        k, v = k[:, :, :1], v[:, :, :1]
    elif key_heads == "all":
        k, v = (each.repeat_interleave(heads // each.shape[2], 2) for each in (k, v))
    together = call.again(k=k, v=v)
    group = heads // k.shape[2]
    alone = [
        call.again(q=q[:, :, h : h + 1], k=k[:, :, h // group, None], v=v[:, :, h // group, None]) for h in range(heads)
    ]
    return difference(together, torch.cat(alone, 2), tolerance, words=f"{heads} heads on {k.shape[2]}")


# Beside the first, two of the second change a bit and one does not; float16 has both, and twice the second over any
# number of keys.
LARGE, SMALL = 2.0**15, 2.0**-9


def splits_are_merged_in_order(call: Call, tolerance: Tolerance) -> str:
    """Keys of equal weight in four splits: what meets within a split meets first, then splits meet left to right.

    Counted from the sequence's own first key, anywhere in memory; a split that is not seen does not reach the row."""
    tail, like = call.output.shape[1], call.arguments["v"]
    keys, head = 3 * SPLIT_KEYS + tail, 8
    q, k, v = (like.new_zeros(1, tokens, 1, head) for tokens in (1, keys, keys))
    first, second, third, fourth = (number * SPLIT_KEYS for number in range(4))
    v[0, fourth, 0, :3] = -LARGE
    # The last key of the first split, and two of the second; then two of the first, and the first key of the second.
    v[0, [second - 1, second, second + 1], 0, 0] = v.new_tensor([LARGE, SMALL, SMALL])
    v[0, [second - 2, second - 1, second], 0, 1] = v.new_tensor([SMALL, SMALL, LARGE])
    v[0, [first, second, third], 0, 2] = v.new_tensor([LARGE, SMALL, SMALL])
    expected = torch.zeros_like(q)
    expected[..., :2] = (torch.ones((), device=q.device) / keys * (2 * SMALL)).to(q.dtype)
    wrong = difference(call.again(None, q=q, k=k, v=v), expected, tolerance, words=f"{keys} keys")
    packed = {"q": q[0].expand(2, 1, head), "k": k.new_zeros(tail + keys, 1, head)}
    packed["v"] = torch.cat([k.new_zeros(tail, 1, head), v[0]])
    options = {"cu_seqlens": [0, 1, 2], "cu_seqlens_k": [0, tail, tail + keys]}
    behind = call.again(options, **packed)[1:]
    wrong = wrong or difference(behind, expected[0], tolerance, words=f"{keys} keys behind {tail} others")
    window = {"window": 2 * SPLIT_KEYS + tail}
    clean = call.again(window, q=q, k=k, v=v)
    v[:, :second] = torch.nan
    return wrong or difference(call.again(window, q=q, k=k, v=v), clean, tolerance, words="NaN in an unseen split")


def _nan_caches(k: Tensor) -> Sequence[Cache]:
    """A dense and a paged cache whose storage is NaN wherever nothing has been written."""
    batch, tokens, key_heads, head = k.shape
    pages = -(-tokens // PAGE_MULTIPLE) + 1
    row = k.new_full((batch, tokens + 7, key_heads, head), torch.nan)
    page = k.new_full((batch * pages, PAGE_MULTIPLE, key_heads, head), torch.nan)
    tables = [[n + batch * number for number in range(pages)] for n in range(batch)]
    return DenseCache(row, row.clone()), PagedCache(page, page.clone(), tables)


def slots_past_the_length_change_nothing(call: Call, tolerance: Tolerance) -> str:
    """A cache that holds NaN past its length, filled at once and then by one token, gives the bits of one pass."""
    tokens = call.output.shape[1]
    for cache in _nan_caches(call.arguments["k"]):
        cuts = [cut for cut in (slice(0, tokens - 1), slice(tokens - 1, tokens)) if cut.stop > cut.start]
        parts = [
            call.again({"cache": cache}, **{name: value[:, cut] for name, value in call.arguments.items()})
            for cut in cuts
        ]
        wrong = difference(torch.cat(parts, 1), call.output, tolerance, words=type(cache).__name__)
        if wrong:
            return wrong
    return ""


def bytes_are_counted(call: Call, tolerance: Tolerance) -> str:
    """A cache of S tokens takes 2 S K D numbers a sequence, a page 2 * 16 K D; one token more takes more."""
    k, v = call.arguments["k"], call.arguments["v"]
    expected = call.reference(*call.arguments.values())
    longer = call.again(k=torch.cat([k, k[:, :1]], 1), v=torch.cat([v, v[:, :1]], 1))
    if not bool(longer[0] > call.output[0]):
        return f"{k.shape[1]} tokens take {int(call.output[0])} bytes, one more {int(longer[0])}"
    return difference(call.output, expected, tolerance, words="bytes of a dense and a paged cache")


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """Shapes and dtypes that do not agree, heads that cannot be shared out, numbers out of range: one line each."""
    q, k, v = (value.nan_to_num() for value in call.arguments.values())
    more = [each[:, :, :1].repeat(1, 1, q.shape[2] + 1, 1) for each in (k, v)]
    short = {name: value[..., :5] for name, value in call.arguments.items()}
    said = {
        f"k of {q.shape[2] + 1} heads for q of {q.shape[2]}": call.refusal(k=more[0], v=more[1]),
        "a head of 5": call.refusal(None, **short),
        "k of another dtype": call.refusal(k=k.double()),
        "float64": call.refusal(q=q.double(), k=k.double(), v=v.double()),
        "whole numbers": call.refusal(q=q.int(), k=k.int(), v=v.int()),
        "k and v of different lengths": call.refusal(v=torch.cat([v, v], 1)),
        "another batch of keys": call.refusal(k=torch.cat([k, k]), v=torch.cat([v, v])),
    }
    wrong_options = (
        {"window": 0},
        {"scale": 0.0},
        {"scale": float("inf")},
        {"softcap": -1.0},
        {"padding": "left"},
        {"lengths": [q.shape[1] + 1] * len(q), "padding": "left"},
        {"lengths": [1] * len(q), "padding": "middle"},
    )
    said |= {str(options): call.refusal(options) for options in wrong_options}
    wrong = [words for words, refusal in said.items() if not refusal or "\n" in refusal]
    return f"{wrong[0]} is not refused in one line" if wrong else ""
