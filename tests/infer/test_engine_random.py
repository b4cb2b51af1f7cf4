"""Requests of mixed lengths that come, share, lose their pages and leave: each answer is that of a run alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.infer.load import SMALL, Arrival, arrivals, bits, drive, judge, judge_all

from samebits.infer import Engine, Request, Sampling
from samebits.infer.pages import ROOT, chain_key
from samebits.model import Model
from samebits.parity.stock import STOCK

COUNT = 150
MODEL = Model.new(SMALL, 3)


def crowded(model: Model, pages: int = 16) -> Engine:
    """Too few pages for all that could run, and chunks shorter than most prompts."""
    return Engine(model, pages=pages, batch_tokens=24, batch_requests=8)


def test_a_crowd_of_requests_gives_the_bits_of_the_training_forward() -> None:
    """logprob(engine) == logprob(Model.hidden over prompt and answer), token == sample(logits), for every token."""
    load, engine = arrivals(COUNT, 1), crowded(MODEL)
    outcome = drive(engine, load)
    judgement = judge_all(MODEL, load, outcome)
    assert judgement.wrong_logprobs == 0 and judgement.wrong_tokens == 0
    assert judgement.tokens > 5 * COUNT and judgement.logprobs > judgement.tokens
    counted = engine.statistics()
    assert counted["prefix_hits"] > 0 and counted["preemptions"] > 0 and counted["cancellations"] > 0
    assert counted["pages_used"] == 0 and outcome.problems == []
    ends = {each.finished for each in outcome.completions}
    assert ends == {"stop", "length", "cancelled"}


def test_every_request_alone_gives_the_same_answer() -> None:
    """The engine with nothing else in it, a request at a time; and in order, as events."""
    load = [replace(each, cancelled_after=None) for each in arrivals(COUNT, 1)]
    outcome = drive(crowded(MODEL), load)
    for number, arrival in enumerate(load):
        (alone,) = Engine(MODEL, pages=8).generate([arrival.request])
        among = outcome.completions[number]
        assert alone.tokens == among.tokens and alone.finished == among.finished
        assert torch.equal(bits(alone.logprobs), bits(among.logprobs))
        events = outcome.events[number]
        assert [event.index for event in events] == list(range(len(events)))
        assert tuple(event.token for event in events) == among.tokens
        assert [event.finished for event in events[:-1]] == [None] * (len(events) - 1)


def test_launch_numbers_of_the_engine_decide_nothing() -> None:
    """Pages, their size, tokens and requests a step."""
    load = [Arrival(each.request, each.step, None) for each in arrivals(24, 2)]
    told = [
        [(each.tokens, bits(each.logprobs).tolist()) for each in drive(engine, load).completions]
        for engine in (
            crowded(MODEL),
            Engine(MODEL, pages=64),
            Engine(MODEL, pages=5, page_size=32, batch_tokens=7, batch_requests=2),
            Engine(MODEL, pages=9, batch_tokens=1, batch_requests=1),
        )
    ]
    assert told[0] == told[1] == told[2] == told[3]


def test_stock_operators_in_the_same_engine_differ() -> None:
    """Negative control: the number of logprobs that are not those of the same model's forward over the whole answer."""
    wide = replace(SMALL, hidden_size=256, intermediate_size=512)
    load, model = arrivals(24, 4, wide), replace(Model.new(wide, 3), operators=STOCK)
    stock = judge_all(model, load, drive(crowded(model), load))
    own = replace(model, operators=MODEL.operators)
    kept = judge_all(own, load, drive(crowded(own), load))
    assert stock.wrong_logprobs > 0 and stock.logprobs > 0
    assert kept.wrong_logprobs == 0 and kept.logprobs > 0


def test_a_page_table_off_by_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the last key of each page goes to the next."""

    def off_by_one(table: list[int], first: int, stop: int, size: int) -> list[int]:
        return [table[min((key + 1) // size, len(table) - 1)] * size + key % size for key in range(first, stop)]

    monkeypatch.setattr("samebits.infer.pages.places", off_by_one)
    load = arrivals(12, 1)
    assert judge_all(MODEL, load, drive(crowded(MODEL), load)).wrong_logprobs > 0


def same_second_page() -> list[Request]:
    """The last prompt has the first page of one and the second page of another."""
    pages = [tuple((start + 5 * place) % SMALL.vocab_size for place in range(16)) for start in (0, 50, 100, 150)]
    prompts = [pages[0] + pages[1] + (1,), pages[2] + pages[3] + (1,), pages[2] + pages[1] + (1,)]
    return [Request(prompt=prompt, max_tokens=6, sampling=Sampling(seed=5)) for prompt in prompts]


@pytest.mark.parametrize("forgets", [False, True])
def test_a_prefix_hash_that_forgets_the_parent_is_noticed(monkeypatch: pytest.MonkeyPatch, forgets: bool) -> None:
    """Planted: a page's name says which tokens it holds and not which came before them."""
    if forgets:
        monkeypatch.setattr("samebits.infer.scheduler.chain_key", lambda _, tokens: chain_key(ROOT, tokens))
    engine, wrong = Engine(MODEL, pages=16), 0
    for request in same_second_page():
        (completion,) = engine.generate([request])
        wrong += judge(MODEL, request, completion).wrong_logprobs
    assert (wrong > 0) == forgets
    assert engine.statistics()["prefix_tokens"] == (32 if forgets else 16)
