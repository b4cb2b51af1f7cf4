"""Pages under random use: none is lost, none is given twice, and what is kept is the most recent."""

from __future__ import annotations

import random

import pytest
import torch
from tests.infer.load import SMALL, arrivals, drive

from samebits.infer import Engine, Request
from samebits.infer.pages import ROOT, LayerCache, PagePool, Tables, chain_key, places
from samebits.infer.scheduler import Job, Scheduler
from samebits.model import Model
from samebits.ops.attention import PagedCache


def shuffled(seed: int, steps: int) -> tuple[PagePool, list[list[int]], list[str]]:
    """Tables that grow, share and go, at random."""
    dice, pool, found = random.Random(seed), PagePool(12), []
    tables: list[list[int]] = []
    for _ in range(steps):
        what = dice.random()
        if what < 0.25:
            tables.append([])
        elif what < 0.6 and tables:
            available = pool.available
            page = pool.take()
            assert (page is None) == (available == 0)
            if page is not None:
                dice.choice(tables).append(page)
                pool.name(page, bytes([dice.randrange(20)]))
        elif what < 0.8 and tables:
            page = pool.share(bytes([dice.randrange(20)]))
            if page is not None:
                dice.choice(tables).append(page)
        elif tables:
            pool.release(tables.pop(dice.randrange(len(tables))))
        found.extend(pool.problems(tables))
    return pool, tables, found


@pytest.mark.parametrize("seed", range(5))
def test_pages_add_up_under_random_use(seed: int) -> None:
    pool, tables, found = shuffled(seed, 400)
    assert found == []
    for table in tables:
        pool.release(table)
    assert pool.available == pool.count and pool.problems([]) == []


def test_a_leak_and_a_double_free_are_noticed() -> None:
    pool = PagePool(4)
    table = [pool.take(), pool.take()]
    assert pool.problems([]) == ["page 0 is in 0 tables and 1 hold it", "page 1 is in 0 tables and 1 hold it"]
    assert pool.problems([[0, 1, 1]]) == ["page 1 is in 2 tables and 1 hold it"]
    pool.release([0, 1])
    with pytest.raises(ValueError, match="page 1 is released and 0 hold it; allowed: once each"):
        pool.release([0, 1])
    assert table == [0, 1] and pool.available == 4
    pool._free.append(2)
    assert pool.problems([]) == ["page 2 is free, kept or held in 2 ways; it must be 1"]


def test_an_engine_that_loses_pages_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: whoever leaves keeps the first of its pages."""

    def leaky(self: Scheduler, job: Job) -> None:
        self.pool.release(job.table[1:])
        job.table, job.computed = [], 0

    monkeypatch.setattr(Scheduler, "_drop", leaky)
    load = [each for each in arrivals(4, 1) if each.cancelled_after is None]
    engine = Engine(Model.new(SMALL, 1), pages=32)
    outcome = drive(engine, load)
    assert any("0 tables and 1 hold it" in problem for problem in outcome.problems)
    assert engine.statistics()["pages_used"] > 0


def test_the_least_recently_used_page_goes_first_and_a_beginning_last() -> None:
    pool = PagePool(3)
    table = [pool.take() for _ in range(3)]
    for page in table:
        pool.name(page, bytes([page]))
    pool.release(table)
    assert pool.kept == 3 and pool.share(bytes([2])) == 2
    pool.release([2])
    assert [pool.take() for _ in range(4)] == [1, 0, 2, None]
    assert pool.share(bytes([0])) is None


def test_forgotten_pages_are_shared_no_more_and_come_back() -> None:
    pool = PagePool(2)
    held, kept = pool.take(), pool.take()
    pool.name(held, b"held")
    pool.name(kept, b"kept")
    pool.release([kept])
    pool.forget()
    assert pool.share(b"held") is None and pool.share(b"kept") is None
    assert pool.problems([[held]]) == []
    pool.release([held])
    assert pool.available == 2 and pool.kept == 0


def test_a_name_says_all_that_came_before() -> None:
    first, other = chain_key(ROOT, range(16)), chain_key(ROOT, range(1, 17))
    assert first != other and chain_key(first, range(16)) != chain_key(other, range(16)) != first
    assert chain_key(ROOT, [1, 2]) != chain_key(ROOT, [1, 2, 0])


def test_a_layer_reads_and_writes_where_a_paged_cache_does() -> None:
    """Two sequences, 20 and 3 keys held, 5 and 14 more: against `PagedCache`, row for row."""
    tables, held, counts = [[3, 0], [4, 2]], [20, 3], [5, 14]
    k, v = (torch.randn(19, 2, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    plain = PagedCache.empty(tables, 2, 8, pages=6, page_size=16)
    plain.lengths = list(held)
    plain.append(k, v, cu_seqlens=[0, 5, 19])
    layer = LayerCache(6, 16, 2, 8, dtype=torch.float32, device=torch.device("cpu"))
    layer.at(Tables.of(tables, held, counts, 16, torch.device("cpu")))
    layer.append(k, v, cu_seqlens=[0, 5, 19])
    assert torch.equal(layer.k, plain.k) and torch.equal(layer.v, plain.v) and layer.lengths == plain.lengths
    assert torch.equal(layer.pages, plain.pages) and layer.capacity == plain.capacity
    one, other = layer.spread(), plain.spread()
    assert torch.equal(one.length, other.length) and one.longest == other.longest
    assert layer.places(1, 2, 17).tolist() == plain.places(1, 2, 17).tolist() == places(tables[1], 2, 17, 16)
    with pytest.raises(ValueError, match="19 keys are added, the step is for 19, once"):
        layer.append(k, v, cu_seqlens=[0, 5, 19])


def test_who_arrives_first_keeps_its_pages() -> None:
    """Two requests that cannot both be held: the younger gives way, both end, nothing is computed for nothing twice."""
    engine = Engine(Model.new(SMALL, 1), pages=4, batch_tokens=64, batch_requests=2)
    tickets = [engine.submit(Request(prompt=(seed,) * 20, max_tokens=30)) for seed in (1, 2)]
    ended = []
    while not engine.idle:
        ended.extend(event.ticket for event in engine.step() if event.finished)
        assert engine.problems() == []
    assert ended == tickets and engine.statistics()["preemptions"] == 1
