"""The engine's spec: what it answers, what it refuses, and that what happens beside a request cannot reach it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.infer.load import SMALL, bits, judge

from samebits import ops
from samebits.infer import Engine, Request, Sampling
from samebits.infer.drawing import NotFiniteError, draw
from samebits.infer.scheduler import Job, Scheduler
from samebits.model import Batch, Model
from samebits.nn.strategy import Operators

MODEL = Model.new(SMALL, 3)
PROMPT = tuple(range(10, 50))


def scored(model: Model, prompt: tuple[int, ...] = PROMPT, **options: object) -> int:
    """How many logprobs of an answer are wrong."""
    request = Request(prompt=prompt, max_tokens=8, **options)  # type: ignore[arg-type]
    (completion,) = Engine(model, pages=8, batch_tokens=16, batch_requests=2).generate([request])
    assert len(completion.tokens) == 8
    return judge(model, request, completion).wrong_logprobs


@pytest.mark.parametrize(
    "config",
    [
        replace(SMALL, tie_word_embeddings=False),
        replace(SMALL, use_qk_norm=True, head_dim=24, rope_theta=1e6),
        replace(SMALL, rope_scaling=ops.RopeScaling(kind="llama3", factor=8, original_max_position_embeddings=64)),
        # More than one block of the vocabulary, the last of them not whole.
        replace(SMALL, vocab_size=700),
    ],
    ids=["untied", "qwen3", "llama3 scaling", "wide vocabulary"],
)
def test_every_shape_keeps_its_bits(config: object) -> None:
    assert scored(Model.new(config, 1), score_prompt=True) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_numbers_keep_their_bits(dtype: torch.dtype) -> None:
    assert scored(deepcopy(MODEL).to(dtype=dtype), score_prompt=True) == 0


def test_a_model_with_sums_is_served_without_them() -> None:
    """The trainer's own model, whose weights require gradients."""
    assert scored(MODEL.with_sums()) == 0


def test_a_logprob_without_the_heads_weight_is_the_operators() -> None:
    """selected_logprob(identity, logits^T) == selected_logprob(hidden, weight). Planted: rounded logits."""
    for rows, scale in ((1, 1.0), (7, 30.0), (16, 1e-3)):
        hidden = torch.randn(rows, 48, generator=torch.Generator().manual_seed(rows)) * scale
        ids = torch.arange(rows) * 29 % SMALL.vocab_size
        direct, logits = MODEL.logprobs(hidden, ids), MODEL.logits(hidden)
        assert torch.equal(bits(direct), bits(ops.selected_logprob(torch.eye(rows), logits.T, ids)))
        rounded = logits.bfloat16().float()
        assert not torch.equal(bits(direct), bits(ops.selected_logprob(torch.eye(rows), rounded.T, ids)))


def test_a_second_request_with_the_same_beginning_computes_less_and_says_the_same() -> None:
    engine, request = Engine(MODEL, pages=16), Request(prompt=PROMPT, max_tokens=8)
    first, second = engine.generate([request]), engine.generate([request])
    assert (first[0].cached_tokens, second[0].cached_tokens) == (0, 32)
    assert first[0].tokens == second[0].tokens and torch.equal(bits(first[0].logprobs), bits(second[0].logprobs))
    # A prompt that is to be scored is computed, all of it.
    (whole,) = engine.generate([replace(request, score_prompt=True)])
    assert whole.cached_tokens == 0 and whole.prompt_logprobs is not None
    assert len(whole.prompt_logprobs) == len(PROMPT) - 1 and whole.tokens == first[0].tokens


def test_the_number_keys_the_draw_and_without_one_the_prompt_does() -> None:
    request = Request(prompt=PROMPT, max_tokens=12, sampling=Sampling(seed=9))
    engine = Engine(MODEL, pages=32)
    plain, again, one, two, other_seed = engine.generate(
        [
            request,
            request,
            replace(request, number=1),
            replace(request, number=2),
            replace(request, sampling=Sampling(seed=10)),
        ]
    )
    assert plain.tokens == again.tokens
    assert len({plain.tokens, one.tokens, two.tokens, other_seed.tokens}) == 4


def test_the_likeliest_tokens_are_told_with_their_logprobs() -> None:
    engine = Engine(MODEL, pages=8)
    engine.submit(Request(prompt=PROMPT, max_tokens=3, sampling=Sampling(0.0), top_logprobs=4))
    events = [event for _ in range(3) for event in engine.step()]
    text = [*PROMPT, *(event.token for event in events)]
    with torch.no_grad():
        hidden = MODEL.hidden(Batch.of([text]))[len(PROMPT) - 1 : -1]
    for row, event in zip(hidden, events, strict=True):
        order = MODEL.logits(row[None])[0].sort(descending=True, stable=True).indices[:4]
        assert [token for token, _ in event.top] == order.tolist()
        told = MODEL.logprobs(row.expand(4, -1), order)
        assert torch.equal(bits([value for _, value in event.top]), bits(told))
        assert event.top[0] == (event.token, event.logprob)


def test_of_equal_logits_the_smaller_token_is_named_first() -> None:
    """All weights of the head are equal, so all logits are."""
    weights = MODEL.weights | {"lm_head.weight": torch.ones(211, 48)}
    equal = Model(config=replace(SMALL, tie_word_embeddings=False), weights=weights)
    engine = Engine(equal, pages=8)
    engine.submit(Request(prompt=(5,), max_tokens=1, sampling=Sampling(0.0), top_logprobs=5))
    (event,) = engine.step()
    assert [token for token, _ in event.top] == [0, 1, 2, 3, 4] and event.token == 0


def test_a_stop_token_ends_the_answer_and_is_its_last() -> None:
    engine, request = Engine(MODEL, pages=8), Request(prompt=PROMPT, max_tokens=20, number=4)
    (long,) = engine.generate([request])
    stop = long.tokens[6]
    (short,) = engine.generate([replace(request, stop=frozenset({stop}))])
    until = long.tokens.index(stop) + 1
    assert (long.finished, short.finished) == ("length", "stop")
    assert short.tokens == long.tokens[:until] and short.logprobs == long.logprobs[:until]


def test_a_long_prompt_does_not_hold_up_an_answer() -> None:
    """While 100 tokens are computed in chunks, the other request gets a token at every step."""
    engine = Engine(MODEL, pages=16, batch_tokens=16, batch_requests=2)
    talking = engine.submit(Request(prompt=(1, 2, 3), max_tokens=40))
    engine.step()
    late = engine.submit(Request(prompt=tuple(range(100)), max_tokens=1))
    told = [[event.ticket for event in engine.step()] for _ in range(7)]
    assert told == [[talking]] * 6 + [[talking, late]]


def test_cancelling_gives_the_pages_back_at_once() -> None:
    engine = Engine(MODEL, pages=8)
    running, waiting = (engine.submit(Request(prompt=PROMPT, max_tokens=30, number=n)) for n in range(2))
    engine.step()
    assert engine.statistics()["pages_used"] > 0
    for ticket in (waiting, running, running):
        engine.cancel(ticket)
    assert engine.statistics()["pages_used"] == 0 and not engine.idle
    events = engine.step()
    assert [(event.ticket, event.token, event.finished) for event in events] == [
        (waiting, -1, "cancelled"),
        (running, -1, "cancelled"),
    ]
    told = {event.ticket: event.completion for event in events}
    assert len(told[running].tokens) == 1 and engine.idle and engine.step() == []  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="engine: ticket is 2; allowed: one of the 2 that were given"):
        engine.cancel(2)


REFUSED: dict[str, dict[str, Any]] = {
    "token 1 of the prompt is 211; allowed: 0 to 210": {"prompt": (1, 211)},
    "token 0 of the prompt is -1; allowed: 0 to 210": {"prompt": (-1,)},
    "40 tokens and max_tokens 25 make 65; allowed: 64": {"prompt": PROMPT, "max_tokens": 25},
    "the prompt has 0 tokens; allowed: at least 1": {"prompt": ()},
    "max_tokens is 0; allowed: a whole number, at least 1": {"max_tokens": 0},
    "top_logprobs is 21; allowed: 0 to 20": {"top_logprobs": 21},
    "number is 9223372036854775808; allowed": {"number": 2**63},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_can_never_run_is_refused_before_anything_is_taken(message: str) -> None:
    engine = Engine(MODEL, pages=4)
    before = engine.statistics()
    with pytest.raises(ValueError, match=message) as error:
        bad: dict[str, Any] = {"prompt": (1,), "max_tokens": 1} | REFUSED[message]
        engine.generate([Request(prompt=(1,), max_tokens=2), Request(**bad)])
    assert "\n" not in str(error.value)
    assert engine.statistics() == before and engine.idle


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prompt": torch.arange(3)}, "the prompt is a Tensor; allowed: a tuple of token numbers"),
        ({"prompt": "abc"}, "the prompt is a str; allowed: a tuple of token numbers"),
        ({"stop": 5}, "stop is 5; allowed: a set of token numbers"),
        ({"stop": {"."}}, r"stop is \{'\.'\}; allowed: a set of token numbers"),
        ({"number": 1.5}, r"number is 1\.5; allowed: a whole number, -2\^63 to"),
        ({"number": "7"}, "number is '7'; allowed: a whole number, -2"),
        ({"score_prompt": "no"}, "score_prompt is 'no'; allowed: True, False"),
        ({"sampling": 0.5}, r"sampling is 0\.5; allowed: a Sampling"),
    ],
)
def test_a_request_of_another_kind_is_refused_when_it_is_made(options: dict[str, Any], said: str) -> None:
    """A stop that held nothing broke every step of the engine, for all; number 1.5 was number 1."""
    with pytest.raises((TypeError, ValueError), match=f"^request: {said}"):
        Request(**{"prompt": PROMPT, "max_tokens": 4, **options})


@pytest.mark.parametrize("options", [{"temperature": "1"}, {"temperature": True}, {"top_p": None}])
def test_so_is_a_way_to_draw(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"^sampling: \w+ is ('1'|True|None); allowed: a number$"):
        Sampling(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1e-60}, "top_p is 1e-60; allowed: 1.4e-45 to 1"),
        ({"temperature": 1e39}, "temperature is 1e[+]39; allowed: 0, or "),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
    ],
)
def test_ways_of_drawing_that_are_none(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pages": 0}, "pages is 0"),
        ({"pages": 4, "page_size": 24}, "page_size is 24; allowed: a multiple of 16"),
        ({"pages": 4, "batch_requests": 0}, "batch_requests is 0"),
        ({"pages": 4, "batch_tokens": 8}, "batch_tokens is 8, batch_requests 64"),
    ],
)
def test_an_engine_that_could_not_work(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(MODEL, **options)  # type: ignore[arg-type]


def changed(model: Model) -> None:
    with torch.no_grad():
        model.weights["model.layers.0.self_attn.k_proj.weight"].mul_(1.5)


@pytest.mark.parametrize("notices", [True, False])
def test_pages_of_old_weights_are_not_shared(monkeypatch: pytest.MonkeyPatch, notices: bool) -> None:
    """Planted: an engine that does not look takes keys that the old weights made."""
    if not notices:
        monkeypatch.setattr(Engine, "_notice_new_weights", lambda self: None)
    model, request = Model.new(SMALL, 5), Request(prompt=PROMPT, max_tokens=8)
    engine = Engine(model, pages=16)
    engine.generate([request])
    changed(model)
    (completion,) = engine.generate([request])
    assert (judge(model, request, completion).wrong_logprobs == 0) == notices
    assert (completion.cached_tokens == 0) == notices


def test_weights_that_change_in_the_middle_of_an_answer_are_refused() -> None:
    model = Model.new(SMALL, 5)
    engine = Engine(model, pages=16)
    ticket = engine.submit(Request(prompt=PROMPT, max_tokens=8))
    engine.step()
    changed(model)
    with pytest.raises(ValueError, match="the weights changed and 1 requests have begun; allowed: when none has"):
        engine.step()
    with pytest.raises(ValueError, match="1 requests have begun; allowed: other weights when none has"):
        engine.use(MODEL)
    with pytest.raises(ValueError, match="1 requests are under way; allowed: generate when idle"):
        engine.generate([])
    engine.cancel(ticket)
    assert [event.finished for event in engine.step()] == ["cancelled"]


def test_an_answer_that_lost_its_pages_is_not_ended_by_other_weights() -> None:
    """It waits, nothing runs, and what it has of an answer is the old weights'."""
    engine = Engine(MODEL, pages=4, batch_tokens=32, batch_requests=4)
    first, second = (Request(prompt=tuple(range(start, start + 20)), max_tokens=30) for start in (10, 40))
    tickets = [engine.submit(first), engine.submit(second)]
    while not engine.statistics()["preemptions"]:
        engine.step()
    engine.cancel(tickets[0])
    assert engine.statistics()["running"] == 0
    with pytest.raises(ValueError, match="1 requests have begun; allowed: other weights when none has"):
        engine.use(Model.new(SMALL, 5))
    told = [event.completion for event in engine.step()]
    while not engine.idle:
        told += [event.completion for event in engine.step()]
    assert told[-1] is not None and judge(MODEL, second, told[-1]).wrong_logprobs == 0


def test_other_weights_can_be_used() -> None:
    engine, request = Engine(Model.new(SMALL, 5), pages=16), Request(prompt=PROMPT, max_tokens=8)
    engine.generate([request])
    engine.use(MODEL)
    (completion,) = engine.generate([request])
    assert judge(MODEL, request, completion).wrong_logprobs == 0 and completion.cached_tokens == 0
    with pytest.raises(ValueError, match=r"the new model is torch\.bfloat16 on cpu, the old torch\.float32 on cpu"):
        engine.use(deepcopy(MODEL).to(dtype=torch.bfloat16))


def test_logits_that_are_no_numbers_end_their_own_request_only() -> None:
    """Token 7 has no number for an embedding: who says it fails, loudly; who shares its batch goes on."""
    model = Model.new(replace(SMALL, tie_word_embeddings=False), 3)
    model.weights["model.embed_tokens.weight"][7] = torch.nan
    engine, good = Engine(model, pages=16), Request(prompt=PROMPT, max_tokens=5, sampling=Sampling(0.0))
    bad, ticket = engine.submit(Request(prompt=(1, 7), max_tokens=5)), engine.submit(good)
    with pytest.raises(
        ArithmeticError, match="temperature, for request 0 at position 2; cancelled, the other requests continue"
    ):
        engine.step()
    found = {}
    while not engine.idle:
        found |= {event.ticket: event.completion for event in engine.step() if event.finished}
        assert engine.problems() == []
    assert found[bad].finished == "cancelled"
    assert judge(model, good, found[ticket]).wrong_logprobs == 0 and len(found[ticket].tokens) == 5


def test_logits_that_overflow_over_a_temperature_end_their_own_request_only() -> None:
    """Finite, and not over a small temperature: nobody was cancelled, and every step of all failed for ever."""
    model = Model.new(replace(SMALL, tie_word_embeddings=False), 3)
    model.weights["lm_head.weight"].mul_(1e36)
    engine, good = Engine(model, pages=16), Request(prompt=PROMPT, max_tokens=5, sampling=Sampling(0.0))
    bad = engine.submit(Request(prompt=PROMPT, max_tokens=5, sampling=Sampling(2e-6)))
    ticket = engine.submit(good)
    with pytest.raises(ArithmeticError, match=f"not over the temperature, for request {bad} at position"):
        engine.step()
    found = {}
    while not engine.idle:
        found |= {event.ticket: event.completion for event in engine.step() if event.finished}
    assert found[bad].finished == "cancelled" and len(found[ticket].tokens) == 5


def test_a_logit_of_minus_infinity_is_no_fault() -> None:
    """It ended its request where another one in the batch had failed."""
    model = Model.new(replace(SMALL, tie_word_embeddings=False), 3)
    drawn = torch.zeros(2, SMALL.vocab_size)
    drawn[0, 1:], drawn[1] = -torch.inf, torch.nan
    jobs = [Job(ticket=n, request=Request(prompt=PROMPT, max_tokens=1), number=n, tokens=list(PROMPT)) for n in (0, 1)]
    with pytest.raises(NotFiniteError) as caught:
        draw(model, drawn, jobs)
    assert caught.value.rows == [1]


def test_a_step_that_fails_can_be_tried_again() -> None:
    """An operator breaks in the middle of the third step; the answers are those of an engine where none did."""
    calls = [0]

    def breaking(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] == 6:
            raise MemoryError("planted")
        return ops.swiglu(gate, up)

    model = replace(MODEL, operators=Operators(swiglu=breaking))
    requests = [Request(prompt=PROMPT[: 9 * n], max_tokens=6, number=n) for n in (1, 2, 4)]
    engine = Engine(model, pages=16, batch_tokens=20, batch_requests=3)
    with pytest.raises(MemoryError):
        engine.generate(requests)
    assert engine.problems() == [] and not engine.idle
    found = {}
    while not engine.idle:
        found |= {event.ticket: event.completion for event in engine.step() if event.finished}
    for ticket, request in enumerate(requests):
        assert judge(MODEL, request, found[ticket]).wrong_logprobs == 0 and len(found[ticket].tokens) == 6


def test_nobody_overtakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """First tokens come in the order of arrival, whatever the lengths; planted: the shortest goes first."""

    def first_tokens() -> list[int]:
        engine = Engine(MODEL, pages=8, batch_tokens=16, batch_requests=1)
        for length in (40, 3, 20):
            engine.submit(Request(prompt=PROMPT[:length], max_tokens=2))
        told = []
        while not engine.idle:
            told.extend(event.ticket for event in engine.step() if event.index == 0)
        return told

    assert first_tokens() == [0, 1, 2]
    plan = Scheduler.plan

    def shortest_first(self: Scheduler) -> object:
        self.waiting = type(self.waiting)(sorted(self.waiting, key=lambda job: len(job.tokens)))
        return plan(self)

    monkeypatch.setattr(Scheduler, "plan", shortest_first)
    assert first_tokens() != [0, 1, 2]
