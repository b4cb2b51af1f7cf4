"""What a matrix product must be, whatever it is built of: predicates that its contract names and the checker executes.

Each takes a call that happened and says in one line what is wrong, or nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference, not_refused
from samebits.ops.rounding import allowed_error

# Rows, depth and columns that no tile divides, and two that tiles do.
SHAPES = ((2, 3, 5), (7, 11, 13), (17, 19, 23), (29, 31, 37), (3, 41, 2), (43, 5, 47), (16, 64, 32), (64, 16, 8))


def _tame(values: Tensor, largest: float, step: float) -> Tensor:
    """Multiples of `step` up to `largest`: few enough bits for sums that are exact."""
    return (values.float().nan_to_num().clamp(-largest, largest) / step).round().mul(step).to(values.dtype)


def _product(call: Call, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(found, exact, allowed) of one product."""
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    terms = a.shape[1]
    return call.again(a=a, b=b), exact, allowed_error(exact, magnitude, call.sum_error(terms), terms, 0, a.dtype)


def rows_by_columns(call: Call, tolerance: Tolerance) -> str:
    """(M, K) times (K, N) is (M, N); leading axes stay, and no axis but the last is left of a vector."""
    a, b, y = call.arguments["a"], call.arguments["b"], call.output
    if tuple(y.shape) != (a.shape[0], b.shape[1]) or y.dtype != a.dtype:
        return f"shape {list(y.shape)} {y.dtype}; allowed: {[a.shape[0], b.shape[1]]} {a.dtype}"
    stacked = difference(call.again(a=a[None]), y[None], tolerance, words="one batch more")
    return stacked or difference(call.again(a=a[-1]), y[-1], tolerance, words="the last row as a vector")


def associates_and_distributes(call: Call, tolerance: Tolerance) -> str:
    """(AB)C = A(BC) and A(B + C) = AB + AC within the bounds of all products together."""
    a, b = (call.arguments[name].float().nan_to_num().clamp(-1, 1).to(call.output.dtype) for name in ("a", "b"))
    c = b.T.contiguous()
    left, right = _chained(call, a, b, c), _chained(call, a, b, c, last_first=True)
    differs = difference(left[0].double(), right[0].double(), tolerance, allowed=left[1] + right[1], words="(AB)C")
    if differs:
        return differs
    # B and C in sixteenths: their sum is exact.
    b, c = _tame(b, 1, 1 / 16), _tame(b.flip(0), 1, 1 / 16)
    (ab, _, of_ab), (ac, _, of_ac), (both, _, of_both) = (_product(call, a, each) for each in (b, c, b + c))
    allowed = of_ab + of_ac + of_both
    return difference(both.double(), ab.double() + ac.double(), tolerance, allowed=allowed, words="A(B + C)")


def _chained(call: Call, a: Tensor, b: Tensor, c: Tensor, *, last_first: bool = False) -> tuple[Tensor, Tensor]:
    """((AB)C or A(BC), how far it may be from the exact ABC): the outer product multiplies what the inner is off by."""
    if last_first:
        inner, _, off = _product(call, b, c)
        (found, _, allowed), carried = _product(call, a, inner), a.double().abs() @ off
    else:
        inner, _, off = _product(call, a, b)
        (found, _, allowed), carried = _product(call, inner, c), off @ c.double().abs()
    return found, allowed + carried * (1 + torch.finfo(a.dtype).eps)


def whole_numbers_are_exact(call: Call, tolerance: Tolerance) -> str:
    """Whole numbers whose products add to less than 2^24: exact in any order, then rounded once to the format."""
    a, b = _tame(call.arguments["a"], 64, 1), _tame(call.arguments["b"], 64, 1)
    assert a.shape[1] * 64 * 64 <= 2**24
    exact = (a.double() @ b.double()).to(torch.float32).to(a.dtype)
    # A sum that is zero may have either sign.
    return difference(call.again(a=a, b=b) + 0.0, exact + 0.0, tolerance, words="whole numbers")


def identity_changes_nothing(call: Call, tolerance: Tolerance) -> str:
    """A I = A and I B = B, but for the sign of a zero: every bit of an operand counts."""
    a, b = call.arguments["a"].nan_to_num(), call.arguments["b"].nan_to_num()
    identity = torch.eye(a.shape[1], dtype=a.dtype, device=a.device)
    right = difference(call.again(a=a, b=identity) + 0.0, a + 0.0, tolerance, words="A I")
    return right or difference(call.again(a=identity, b=b) + 0.0, b + 0.0, tolerance, words="I B")


def order_depends_on_depth_alone(call: Call, tolerance: Tolerance) -> str:
    """An output's bits depend on its row, its column and K: not on M, N, its place, or how memory lies."""
    a, b, y = call.arguments["a"], call.arguments["b"], call.output
    columns = torch.arange(b.shape[1] - 1, -1, -2, device=b.device)
    rows = torch.arange(a.shape[0] - 1, -1, -3, device=a.device)
    others = {
        "every second column, backwards": (call.again(b=b[:, columns]), y[:, columns]),
        "every third row, backwards": (call.again(a=a[rows]), y[rows]),
        "the last column alone": (call.again(b=b[:, -1:]), y[:, -1:]),
        "B in columns": (call.again(b=b.T.contiguous().T), y),
    }
    found = (difference(part, whole, tolerance, words=words) for words, (part, whole) in others.items())
    return next(filter(None, found), "")


def every_term_once(call: Call, tolerance: Tolerance) -> str:
    """Ones count K; a one in a row picks its row of B; and what lies around the operands in memory is never read."""
    a, b = call.arguments["a"].nan_to_num(), call.arguments["b"].nan_to_num()
    depth = a.shape[1]
    counted = call.again(a=torch.ones_like(a), b=torch.ones_like(b))
    differs = difference(counted, torch.full_like(counted, depth), tolerance, words="ones")
    picks = torch.zeros_like(a)
    places = torch.arange(a.shape[0], device=a.device) % depth
    picks[torch.arange(a.shape[0], device=a.device), places] = 1.0
    differs = differs or difference(call.again(a=picks, b=b) + 0.0, b[places] + 0.0, tolerance, words="rows picked")
    framed = call.again(a=_framed(a), b=_framed(b))
    return differs or difference(framed, call.again(a=a, b=b), tolerance, words="within a frame of NaN")


def _framed(values: Tensor) -> Tensor:
    """The same numbers as a view into memory that is NaN all around."""
    frame = values.new_full((values.shape[0] + 2, values.shape[1] + 16), torch.nan)
    frame[1:-1, 8:-8] = values
    return frame[1:-1, 8:-8]


def generic_is_as_good_as_specialised(call: Call, tolerance: Tolerance) -> str:
    """Beside the library's product, which picks a kernel for the size: relative to the sum of the terms' magnitudes."""
    a, b = call.arguments["a"], call.arguments["b"]
    magnitude = a.double().abs() @ b.double().abs()
    return difference(call.output, a @ b, tolerance, allowed=magnitude, words="against a kernel chosen by size")


def one_binary_for_all_shapes(call: Call, tolerance: Tolerance) -> str:
    """M, K and N arrive at launch: over all SHAPES one binary is loaded, and it runs for every one of them."""
    given = [(_filled(call.arguments["a"], m, k), _filled(call.arguments["b"], k, n)) for m, k, n in SHAPES]
    loaded, ran = _counted_on_cpu(call, given) if call.backend == "cpu" else _counted_by_triton(call, given)
    if loaded != 1 or ran < len(SHAPES):
        return f"{loaded} binaries and {ran} launches for {len(SHAPES)} shapes; allowed: 1, and one launch a shape"
    return ""


def _filled(values: Tensor, rows: int, columns: int) -> Tensor:
    """The numbers over and over, in another shape."""
    flat = values.flatten()
    return flat.repeat(-(-rows * columns // flat.numel()))[: rows * columns].view(rows, columns)


def _counted_on_cpu(call: Call, given: list[tuple[Tensor, Tensor]]) -> tuple[int, int]:
    from samebits.ops._cpu import launches

    before = launches()
    for a, b in given:
        call.again(a=a, b=b)
    used = launches() - before
    return len(used), used.total()


def _counted_by_triton(call: Call, given: list[tuple[Tensor, Tensor]]) -> tuple[int, int]:
    """One row of the launch table; the first call may compile it, the others may compile nothing."""
    from samebits.native.launch_numbers import launching
    from samebits.ops._triton.launch import compiled_count, launch_count
    from samebits.ops.matmul.launch_table import FLOAT32_SMALL, UNALIGNED

    with launching(launch=FLOAT32_SMALL if call.format == "float32" else UNALIGNED):
        call.again(a=given[0][0], b=given[0][1])
        compiled, launched = compiled_count(), launch_count()
        for a, b in given:
            call.again(a=a, b=b)
    return 1 + compiled_count() - compiled, launch_count() - launched


def refuses_bad_input(call: Call, tolerance: Tolerance) -> str:
    """A wrong dtype, sizes that do not meet, a b of one axis: one line each, and no output."""
    a, b = call.arguments["a"], call.arguments["b"]
    answers = {
        "both in float64": call.refusal(a=a.double(), b=b.double()),
        "b of another dtype": call.refusal(b=b.double()),
        "whole numbers": call.refusal(a=a.nan_to_num().int(), b=b.nan_to_num().int()),
        "b with one row more": call.refusal(b=torch.cat([b, b[:1]])),
        "b of one axis": call.refusal(b=b[:, 0]),
    }
    return not_refused(answers)
