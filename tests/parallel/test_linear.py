"""Linear layers over real ranks: forward and every gradient == one device, bit for bit; planted faults are seen."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch
from tests.parallel.comparing import chain_bytes, differing, drawn, own, same, wanted
from tests.parallel.faulty_chains import Chain, finished_everywhere, last_first, native_chain
from tests.parallel.ranks import on_ranks

from samebits import ops
from samebits.ops.accumulation import linear_into
from samebits.parallel import collectives, linear
from samebits.parallel.linear import check_cuts, column_parallel, gathered_linear, row_parallel
from samebits.parallel.world import World

SIZES = (1, 2, 3, 4, 8)
DTYPES = (torch.float32, torch.bfloat16)
# More rows than a tile that travels has, in leading axes; outputs of up to three weights that meet one input.
ROWS, INPUTS, OUTPUTS = (3, 50), 40, (24, 7, 33)


def ways(length: int, size: int) -> dict[str, list[int]]:
    """Cuts of a length: even; growing, with borders anywhere; the first rank with nothing; one rank with everything."""
    growing = [min(place * place, length) for place in range(size)]
    return {
        "even": collectives.even_cuts(length, size),
        "uneven": [*growing, length],
        "first empty": [0, *collectives.even_cuts(length, size - 1)] if size > 1 else [0, length],
        "one has all": [0] * ((size + 1) // 2) + [length] * (size + 1 - (size + 1) // 2),
    }


def column_differences(world: World, dtype: torch.dtype, count: int, way: str, *, resumed: bool) -> list[str]:
    """What of a column-parallel layer with `count` weights is not what one device gives."""
    group, found = world.group, []
    x, weights = wanted(drawn((*ROWS, INPUTS), 1, dtype)), []
    for number, outputs in enumerate(OUTPUTS[:count]):
        weights.append((drawn((outputs, INPUTS), 10 + number, dtype), drawn((outputs,), 20 + number, dtype)))
    cuts = [ways(outputs, group.size)[way] for outputs in OUTPUTS[:count]]
    wholes = [(wanted(weight), wanted(bias)) for weight, bias in weights]
    parts = [[own(each, cut, group) for each in whole] for whole, cut in zip(wholes, cuts, strict=True)]
    sums = [torch.zeros_like(whole[0], dtype=torch.float32) for whole in wholes] if resumed else None
    part_sums = [torch.zeros_like(part[0], dtype=torch.float32) for part in parts] if resumed else None
    own_x = wanted(x)
    for micro in range(2 if resumed else 1):
        cotangents = [drawn((*ROWS, n), 30 + 10 * micro + i, dtype) for i, n in enumerate(OUTPUTS[:count])]
        if sums is None or part_sums is None:
            ys = [ops.linear(x, *whole) for whole in wholes]
            own_ys = column_parallel(own_x, [w for w, _ in parts], group, biases=[b for _, b in parts])
        else:
            ys = [linear_into(x, whole[0], sum_NK) for whole, sum_NK in zip(wholes, sums, strict=True)]
            own_ys = column_parallel(own_x, [w for w, _ in parts], group, sums=part_sums)
        found += [f"output {i}" for i, y in enumerate(ys) if not same(own(y, cuts[i], group, -1), own_ys[i])]
        torch.autograd.backward(ys, cotangents)
        torch.autograd.backward(own_ys, [own(each, cuts[i], group, -1) for i, each in enumerate(cotangents)])
        sent = world.sent.pop("column-parallel input gradient", 0)
        if sent != chain_bytes(group, own_x[..., 0].numel(), INPUTS, dtype, count):
            found.append(f"{sent} bytes")
        if not same(x.grad, own_x.grad):
            found.append("dx")
    for i, (whole, part) in enumerate(zip(wholes, parts, strict=True)):
        if sums is not None and part_sums is not None:
            pairs = [("dweight", sums[i], part_sums[i])]
        else:
            pairs = [("dweight", whole[0].grad, part[0].grad), ("dbias", whole[1].grad, part[1].grad)]
        found += [f"{name} {i}" for name, a, b in pairs if a is None or not same(own(a, cuts[i], group), b)]
    return [f"{dtype} {count} {way} {'resumed ' * resumed}{each}" for each in found]


def row_differences(world: World, dtype: torch.dtype, biased: bool, way: str, *, resumed: bool) -> list[str]:
    """What of a row-parallel layer is not what one device gives."""
    group, outputs, found = world.group, OUTPUTS[0], []
    cuts = ways(INPUTS, group.size)[way]
    x, weight, bias = (
        wanted(drawn(shape, 40 + i, dtype)) for i, shape in enumerate([(*ROWS, INPUTS), (outputs, INPUTS), (outputs,)])
    )
    own_x, own_weight, own_bias = own(x, cuts, group, -1), own(weight, cuts, group, 1), wanted(bias)
    sums = torch.zeros_like(weight, dtype=torch.float32)
    own_sums = torch.zeros_like(own_weight, dtype=torch.float32)
    for micro in range(2 if resumed else 1):
        cotangent = drawn((*ROWS, outputs), 50 + micro, dtype)
        if resumed:
            y, own_y = linear_into(x, weight, sums), row_parallel(own_x, own_weight, group, sums=own_sums)
        else:
            y = ops.linear(x, weight, bias if biased else None)
            own_y = row_parallel(own_x, own_weight, group, bias=own_bias if biased else None)
        y.backward(cotangent)
        own_y.backward(cotangent)
        sent = world.sent.pop("row-parallel output", 0)
        if sent != chain_bytes(group, y[..., 0].numel(), outputs, dtype):
            found.append(f"{sent} bytes")
        if not same(y, own_y):
            found.append("output")
    assert x.grad is not None
    pairs = {"dx": (own(x.grad, cuts, group, -1), own_x.grad)}
    if biased:
        pairs["dbias"] = (bias.grad, own_bias.grad)
    whole = sums if resumed else weight.grad
    assert whole is not None
    pairs["dweight"] = (own(whole, cuts, group, 1), own_sums if resumed else own_weight.grad)
    found += differing(pairs)
    return [f"{dtype} bias={biased} {way} {'resumed ' * resumed}{each}" for each in found]


def all_differences(world: World) -> list[str]:
    found = []
    for dtype, way in product(DTYPES, ways(1, 1)):
        for count, resumed in ((1, False), (2, True), (3, False), (3, True)):
            found += column_differences(world, dtype, count, way, resumed=resumed)
        for biased, resumed in ((False, False), (True, False), (False, True)):
            found += row_differences(world, dtype, biased, way, resumed=resumed)
    return found


@pytest.mark.parametrize("size", SIZES)
def test_layers_are_those_of_one_device(size: int) -> None:
    assert on_ranks(size, all_differences) == [[]] * size


def gathered_differences(world: World) -> list[str]:
    """Gather mode, against one device; and what it sends: this rank's columns to every other."""
    group, found = world.group, []
    for dtype, (way, cuts) in product(DTYPES, ways(OUTPUTS[0], group.size).items()):
        shapes = ((*ROWS, INPUTS), (OUTPUTS[0], INPUTS), (OUTPUTS[0],))
        x, weight, bias = (drawn(shape, 60 + i, dtype) for i, shape in enumerate(shapes))
        widths = [end - start for start, end in pairwise(cuts)]
        world.sent.clear()
        y = gathered_linear(x, own(weight, cuts, group), group, widths, bias=own(bias, cuts, group))
        if world.sent.total() != (group.size - 1) * ROWS[0] * ROWS[1] * widths[group.place] * dtype.itemsize:
            found.append(f"{dtype} {way} {dict(world.sent)}")
        found += differing({f"{dtype} {way}": (y, ops.linear(x, weight, bias))})
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_gathered_outputs_are_those_of_one_device(size: int) -> None:
    assert on_ranks(size, gathered_differences) == [[]] * size


def unused_output(world: World) -> list[str]:
    """What of dx is not that of one device, where a second output is not used; every element of dx is -0."""
    group, cuts = world.group, collectives.even_cuts(OUTPUTS[0], world.size)
    # The smallest float32 times less than a half: a chain of products that underflow from below zero.
    weights = [drawn((OUTPUTS[0], INPUTS), 70 + i, torch.float32).abs().clamp(max=4) / 10 for i in range(2)]
    dy = torch.full((5, OUTPUTS[0]), -1e-45)
    x, own_x = (wanted(drawn((5, INPUTS), 72, torch.float32)) for _ in range(2))
    ops.linear(x, weights[0]).backward(dy)
    assert x.grad is not None and same(x.grad, torch.full_like(x.grad, -0.0))
    y, _ = column_parallel(own_x, [own(weight, cuts, group) for weight in weights], group)
    y.backward(own(dy, cuts, group, 1))
    return differing({"dx": (x.grad, own_x.grad)})


def test_an_unused_output_adds_nothing() -> None:
    """Not even +0, which would turn -0 into +0."""
    assert on_ranks(2, unused_output) == [[], []]


def test_cuts_within_a_step_of_matrix_units_are_refused() -> None:
    class OnCuda:
        is_cuda, dtype, device = True, torch.bfloat16, "cuda:0"

    check_cuts("layer", [0, 16, 16, 40], OnCuda())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"layer: the cuts are \[0, 20, 40\] for bfloat16 on cuda:0; allowed: mult"):
        check_cuts("layer", [0, 20, 40], OnCuda())  # type: ignore[arg-type]
    check_cuts("layer", [0, 20, 40], drawn((1,), 1, torch.bfloat16))


def with_fault(world: World, chain: Chain, dtype: torch.dtype, biased: bool) -> list[str]:
    linear.chain = chain  # type: ignore[assignment]
    found = column_differences(world, dtype, 1, "even", resumed=False)
    found += row_differences(world, dtype, biased, "even", resumed=False)
    return [each.split()[-1] for each in found if "bytes" not in each]


@pytest.mark.parametrize(
    ("chain", "dtype", "biased", "seen"),
    [
        (native_chain, torch.float32, False, {"dx", "output"}),
        (last_first, torch.float32, False, {"dx", "output"}),
        (finished_everywhere, torch.bfloat16, False, {"dx", "output"}),
        (finished_everywhere, torch.float32, True, {"output"}),
        (collectives.chain, torch.float32, True, set()),
    ],
)
def test_another_sum_is_seen(chain: Chain, dtype: torch.dtype, biased: bool, seen: set[str]) -> None:
    """Native all-reduce, order of arrival, rounding before the travel, the bias on every rank; ours as the control."""
    for found in on_ranks(3, with_fault, chain, dtype, biased):
        assert set(found) == seen
