"""The algebra of training runs: worked numbers, every obligation with a plan that breaks it, and the ten faults."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from fractions import Fraction
from itertools import pairwise

import pytest

from samebits.train import faults, plan_proofs
from samebits.train.algebra import (
    Architecture,
    Plan,
    Run,
    actual_steps,
    learning_rate,
    least_epochs,
    parameters,
    position_after,
    repeats,
    steps_per_epoch,
    tokens_per_step,
    warmup_fraction,
)
from samebits.train.plan_rules import check, check_counted, from_mapping

MODEL = Architecture(
    vocab_size=32768,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    num_key_value_heads=4,
    intermediate_size=4096,
)
V1 = Plan(
    num_sequences=22_079,
    micro_batch_size=4,
    gradient_accumulation_steps=128,
    ranks=1,
    max_length=1024,
    num_train_epochs=1,
    max_steps=5000,
    warmup_steps=2000,
    lr=3e-4,
    min_lr_ratio=0.1,
    max_repeats=4,
    architecture=MODEL,
)
V1_LONG = replace(V1, num_train_epochs=117)
V2 = replace(V1, num_sequences=67_976, gradient_accumulation_steps=1, warmup_steps=500)
V1_ENOUGH = replace(V1, num_train_epochs=177, max_steps=7601, warmup_steps=760)
V28 = replace(V1, num_sequences=4 * 1_227_172, gradient_accumulation_steps=32, max_steps=38_349, warmup_steps=93)


def broken(plan: Plan) -> set[int]:
    return {int(refusal.obligation.removeprefix("CFG-OB")) for refusal in check(plan)}


def test_the_algebra_is_proved() -> None:
    proof = plan_proofs.plans()
    assert proof.proved, proof
    assert proof.planted == proof.expected == 6


def test_parameters_are_computed() -> None:
    assert parameters(MODEL) == 33_554_432 + 24 * 15_206_400 + 1_024 == 398_509_056
    assert parameters(replace(MODEL, tie_word_embeddings=False)) == 398_509_056 + 33_554_432


@pytest.mark.parametrize(
    ("plan", "per_epoch", "dropped", "reach", "steps", "tokens", "refused"),
    [
        (V1, 43, 63, 43, 43, 22_544_384, {1, 2, 3, 4, 7}),
        (V1_LONG, 43, 63, 5_031, 5_000, 2_621_440_000, {3, 7}),
        (V2, 16_994, 0, 16_994, 5_000, 20_480_000, {6, 7}),
        (replace(V2, num_sequences=67_979), 16_994, 3, 16_994, 5_000, 20_480_000, {6, 7}),
        (V1_ENOUGH, 43, 63, 7_611, 7_601, 3_985_113_088, {7}),
        (replace(V1_ENOUGH, max_repeats=177), 43, 63, 7_611, 7_601, 3_985_113_088, set()),
        # 16 sequences are the 4 micro-batches that do not fill a step.
        (V28, 38_349, 16, 38_349, 38_349, 5_026_480_128, set()),
    ],
    ids=["v1", "v1 117 epochs", "v2", "v2 most", "v1 177 epochs", "v1 177 repeats", "v28"],
)
def test_worked_numbers(
    plan: Plan, per_epoch: int, dropped: int, reach: int, steps: int, tokens: int, refused: set[int]
) -> None:
    run = Run.of(plan)
    assert (run.per_epoch, run.dropped, run.reach, run.steps, run.tokens) == (per_epoch, dropped, reach, steps, tokens)
    assert broken(plan) == refused


def test_worked_numbers_in_the_text() -> None:
    assert 22_079 // 4 == 5_519 and Run.of(V1).per_epoch * 128 == 5_504
    assert Run.of(V1).per_step == 524_288 and Run.of(V2).per_step == 4_096
    assert least_epochs(5000, 43) == 117 and 116 * 43 == 4_988
    assert float(warmup_fraction(2000, 43)) == pytest.approx(46.5, abs=0.05)
    assert warmup_fraction(2000, 5000) == Fraction(2, 5)
    assert float(warmup_fraction(760, 7601)) == pytest.approx(0.09999, abs=5e-6)
    assert float(warmup_fraction(93, 38_349)) == pytest.approx(0.0024, abs=5e-5)
    last = learning_rate(43, lr=3e-4, warmup_steps=2000, steps=5000, min_lr_ratio=0.1)
    assert last == pytest.approx(6.45e-6, rel=1e-12)
    needed = 10 * parameters(MODEL)
    assert needed == 3_985_090_560
    assert round(needed / Run.of(V1).tokens) == 177 and round(needed / Run.of(V2).tokens) == 195
    assert round(Run.of(V1_LONG).tokens / parameters(MODEL), 1) == 6.6
    assert round(Run.of(V28).tokens / parameters(MODEL), 1) == 12.6
    assert math.floor(repeats(5000, 43)) == 116
    assert 3 not in broken(replace(V1_LONG, warmup_steps=500))
    assert math.floor(100 * math.log(32768)) == 1039


GOOD = V28


@pytest.mark.parametrize(
    ("obligation", "plan", "words"),
    [
        (1, replace(GOOD, max_steps=38_350), "38,349 steps an epoch, 38,350 asked, 2 epochs needed"),
        (
            2,
            replace(GOOD, warmup_steps=38_349),
            "warmup_steps is 38349, the run makes 38349 steps; allowed: less than its steps",
        ),
        (3, replace(GOOD, warmup_steps=3_835), "warmup_steps is 3835 of 38349 steps; allowed: at most a tenth, 3834"),
        (4, replace(GOOD, warmup_steps=38_349), "the rate ends at 0.0003 on its way up to 0.0003"),
        (
            6,
            replace(GOOD, gradient_accumulation_steps=1),
            "4096 tokens a step for 398509056 parameters; allowed: at least 65536",
        ),
        (7, replace(GOOD, max_steps=30_000), "3932160000 tokens for 398509056 parameters; allowed: at least"),
        (7, replace(GOOD, num_train_epochs=5, max_steps=None), "the data is seen 5.00 times, max_repeats is 4"),
        (
            8,
            replace(GOOD, num_sequences=3, gradient_accumulation_steps=1),
            "3 sequences make no step of 4; allowed: at least 4",
        ),
        (8, replace(GOOD, ranks=0), "ranks is 0; allowed: at least 1"),
        (
            11,
            replace(GOOD, architecture=replace(MODEL, num_attention_heads=15)),
            "num_attention_heads is 15, which must divide hidden_size 1024",
        ),
        (
            11,
            replace(GOOD, architecture=replace(MODEL, num_key_value_heads=3)),
            "num_key_value_heads is 3, which must divide num_attention_heads",
        ),
        (11, replace(GOOD, architecture=replace(MODEL, hidden_size=16)), "head size is 1; allowed: an even number"),
    ],
)
def test_what_breaks_an_obligation_is_named(obligation: int, plan: Plan, words: str) -> None:
    said = [str(refusal) for refusal in check(plan)]
    assert any(line.startswith(f"CFG-OB{obligation}: ") and words in line for line in said), said


def test_updates_are_counted() -> None:
    assert check_counted(V1, 43) == []
    assert str(check_counted(V1, 44)[0]) == "CFG-OB9: the run made 44 updates; allowed: the 43 of its plan"


def test_a_batch_of_131072_tokens_is_accepted() -> None:
    assert Run.of(GOOD).per_step == 131_072 and check(GOOD) == []


def test_a_mapping_is_read_whole() -> None:
    assert from_mapping(asdict(GOOD)) == GOOD
    with pytest.raises(
        ValueError, match=r"^CFG-OB10: plan has key 'warm_up', which nothing reads; allowed: num_sequences, "
    ):
        from_mapping({**asdict(GOOD), "warm_up": 5})
    with pytest.raises(ValueError, match=r"^CFG-OB10: architecture has key 'head'"):
        from_mapping({**asdict(GOOD), "architecture": {**asdict(MODEL), "head": 2}})
    with pytest.raises(ValueError, match=r"^plan: key 'ranks' is missing"):
        from_mapping({name: value for name, value in asdict(GOOD).items() if name != "ranks"})
    with pytest.raises(ValueError, match=r"^plan: architecture is 5; allowed: a mapping$"):
        from_mapping({**asdict(GOOD), "architecture": 5})


def test_the_learning_rate() -> None:
    rates = [learning_rate(t, lr=1.0, warmup_steps=10, steps=100, min_lr_ratio=0.1) for t in range(1, 101)]
    assert rates[0] == 0.1 and rates[9] == 1.0 and rates[8] < 1.0
    assert all(later <= earlier for earlier, later in pairwise(rates[9:]))
    assert abs(rates[-1] - 0.1) <= 2 * math.ulp(0.1) and min(rates) > 0


def test_a_run_goes_on_where_it_stopped() -> None:
    assert position_after(100, 1000, 8) == (0, 800)
    assert position_after(43, 43, 128) == (1, 0) and position_after(44, 43, 128) == (1, 128)


def refuses(check_like: object, plan: Plan, obligation: int) -> bool:
    return any(refusal.obligation == f"CFG-OB{obligation}" for refusal in check_like(plan))  # type: ignore[operator]


UNEVEN = replace(GOOD, architecture=replace(MODEL, num_attention_heads=15))


@pytest.mark.parametrize(
    ("obligation", "plan", "fault"),
    [
        (1, V1, faults.reach_not_compared),
        (2, replace(V1, warmup_steps=500), faults.warmup_against_max_steps),
        (11, UNEVEN, faults.divisibility_not_checked),
    ],
    ids=["M1", "M4", "M10"],
)
def test_a_faulty_check_is_caught(obligation: int, plan: Plan, fault: object) -> None:
    """Planted faults: the plan that must be refused is not."""
    assert refuses(check, plan, obligation) and not refuses(fault, plan, obligation)


def test_faulty_steps_are_caught() -> None:
    """M2 on v1's numbers and on two ranks, M3 on v1's."""
    assert (steps_per_epoch(22_079, 4, 128, 1), faults.ceiling_for_floor(22_079, 4, 128, 1)) == (43, 44)
    assert (steps_per_epoch(22_079, 4, 1, 2), faults.ranks_left_out(22_079, 4, 1, 2)) == (2_759, 5_519)
    assert (least_epochs(5000, 43), faults.floor_for_ceiling(5000, 43)) == (117, 116)
    assert actual_steps(5000, 116 * 43) < 5000


def test_a_horizon_that_is_never_reached_is_caught() -> None:
    """M5: 155,000 steps asked for, 38,349 made. M6: no decay."""
    rate = faults.horizon_is_max_steps(155_000)
    last = rate(38_349, lr=1.0, warmup_steps=93, steps=38_349, min_lr_ratio=0.0)
    assert math.floor(1000 * last) == 856
    plan = replace(V28, max_steps=None)
    assert check(plan) == []
    for wrong in (rate, faults.no_decay):
        assert {refusal.obligation for refusal in check(plan, rate=wrong)} == {"CFG-OB4", "CFG-OB5"}


def test_faulty_tokens_are_caught() -> None:
    """M7 on v1's numbers, M8 on the model's."""
    assert (tokens_per_step(4, 128, 1, 1024), faults.accumulation_ignored(4, 128, 1, 1024)) == (524_288, 4_096)
    assert parameters(MODEL) != faults.typed_in(MODEL)
    tokens = Run.of(replace(GOOD, max_steps=30_000)).tokens
    assert 10 * faults.typed_in(MODEL) <= tokens < 10 * parameters(MODEL)


def test_an_ignored_key_is_caught() -> None:
    """M9: a misspelt warm-up is left out, and nobody hears of it."""
    values = {**asdict(GOOD), "warm_up_steps": 2000}
    assert faults.unread_keys_ignored(values) == GOOD
    with pytest.raises(ValueError, match="CFG-OB10"):
        from_mapping(values)
