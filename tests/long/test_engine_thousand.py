"""A thousand requests through one engine with few pages: every logprob is the training forward's, bit for bit."""

from __future__ import annotations

from dataclasses import replace

from tests.infer.load import Judgement, arrivals, drive, judge_all

from samebits.infer import Engine
from samebits.model import PRESETS, Model
from samebits.nn.strategy import Operators
from samebits.parity.stock import STOCK

COUNT = 1000
TINY = replace(PRESETS["tiny"], max_position_embeddings=128)


def thousand(operators: Operators) -> tuple[Judgement, dict[str, int], list[str]]:
    model = replace(Model.new(TINY, 3), operators=operators)
    load, engine = arrivals(COUNT, 11, TINY), Engine(model, pages=24, batch_tokens=48, batch_requests=16)
    outcome = drive(engine, load)
    return judge_all(model, load, outcome), engine.statistics(), outcome.problems


def test_a_thousand_requests_keep_their_bits() -> None:
    judgement, counted, problems = thousand(Operators())
    print(judgement, counted)
    assert judgement.wrong_logprobs == 0 and judgement.wrong_tokens == 0 and judgement.tokens > 5 * COUNT
    assert counted["requests"] == COUNT and counted["pages_used"] == 0 and problems == []
    assert min(counted[each] for each in ("prefix_hits", "preemptions", "cancellations")) > 50


def test_a_thousand_requests_on_stock_operators_do_not() -> None:
    """Negative control: the same load, the same engine, stock torch's operators."""
    judgement, counted, _ = thousand(STOCK)
    print(judgement, counted)
    assert counted["requests"] == COUNT and judgement.wrong_logprobs > 0
