"""The server through OpenAI's own client: streams, logprobs, bits alone and in a crowd, scores, stops, choices."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from tests.infer.serving import NAME, PATIENCE, Serving, model, offline, serving, tokenizer

MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]
CHAT: dict[str, Any] = {"model": NAME, "messages": MESSAGES, "seed": 5, "max_tokens": 24, "logprobs": True}
PLAIN: dict[str, Any] = {"model": NAME, "prompt": "The same bits", "seed": 5, "max_tokens": 24, "logprobs": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Serving) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE) as made:
        yield made


def of_chat(answer: Any) -> tuple[list[int], list[str]]:
    """Token numbers and bits."""
    content = answer.choices[0].logprobs.content
    return [each.samebits["id"] for each in content], [each.samebits["bits"] for each in content]


def shown(token: int) -> str:
    """How a completion names a token: bytes that are no text of their own are spelt out."""
    raw = tokenizer().decode([token])
    text = raw.decode("utf-8", "replace")
    return text if text.encode() == raw else "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def scores(prompt: list[int], ids: list[int], **options: Any) -> list[str]:
    return offline([*prompt, *ids], **options)[len(prompt) - 1 :]


def test_an_answer_lists_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**CHAT, top_logprobs=3)
    (choice,) = answer.choices
    content = choice.logprobs.content
    assert len(content) == 24 == answer.usage.completion_tokens and choice.finish_reason == "length"
    assert answer.usage.prompt_tokens == len(tokenizer().conversation(MESSAGES))
    for each in content:
        assert len(each.top_logprobs) == 3 and each.bytes == list(tokenizer().decode([each.samebits["id"]]))
        assert [other.logprob for other in each.top_logprobs] == sorted(o.logprob for o in each.top_logprobs)[::-1]
        # The value itself crossed JSON bit for bit.
        assert struct.pack(">f", each.logprob).hex() == each.samebits["bits"]
    ids, _ = of_chat(answer)
    assert choice.message.content == tokenizer().text(ids) and choice.message.role == "assistant"


def test_a_stream_is_the_answer_in_pieces(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**CHAT)
    chunks = list(client.chat.completions.create(**CHAT, stream=True, stream_options={"include_usage": True}))
    *pieces, last = chunks
    assert last.usage == whole.usage.model_copy(update={"prompt_tokens_details": last.usage.prompt_tokens_details})
    assert "".join(piece.choices[0].delta.content for piece in pieces) == whole.choices[0].message.content
    content = [each for piece in pieces for each in piece.choices[0].logprobs.content]
    assert content == whole.choices[0].logprobs.content and len(pieces) == len(content) == 24
    assert pieces[0].choices[0].delta.role == "assistant" and pieces[-1].choices[0].finish_reason == "length"
    assert [piece.choices[0].finish_reason for piece in pieces[:-1]] == [None] * 23


def test_bits_alone_and_among_sixteen_are_those_of_the_trainer(client: openai.OpenAI, server: Serving) -> None:
    """server(request) alone == server(request) beside 15 others == the training forward, bit for bit."""
    asked = [
        {
            **CHAT,
            "seed": n,
            "max_tokens": 12 + 3 * n,
            "temperature": 0.5 + n / 16,
            "messages": [{"role": "user", "content": "Why is the sky blue? " * (1 + n % 5)}],
        }
        for n in range(16)
    ]
    alone = [of_chat(client.chat.completions.create(**each)) for each in asked]
    steps = server.settle()["steps"]
    with ThreadPoolExecutor(16) as pool:
        crowded = list(pool.map(lambda each: of_chat(client.chat.completions.create(**each)), asked))
    taken = server.settle()["steps"] - steps
    assert crowded == alone
    assert taken < sum(len(ids) for ids, _ in alone) / 2, "they shared no forward pass"
    for each, (ids, bits) in zip(asked, alone, strict=True):
        prompt = tokenizer().conversation(each["messages"])
        assert bits == scores(prompt, ids) and len(bits) == len(ids) > 0


def test_one_other_weight_is_noticed(client: openai.OpenAI) -> None:
    """Planted fault: offline scores by a model of which one weight is larger by one part in a thousand."""
    ids, bits = of_chat(client.chat.completions.create(**CHAT))
    weights = dict(model().weights)
    weights["model.layers.1.mlp.down_proj.weight"] = weights["model.layers.1.mlp.down_proj.weight"].clone()
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] *= 1.001
    prompt = tokenizer().conversation(MESSAGES)
    assert bits == scores(prompt, ids)
    assert bits != scores(prompt, ids, scored=replace(model(), weights=weights))


def test_completions_have_their_own_shape(client: openai.OpenAI) -> None:
    answer = client.completions.create(**PLAIN)
    (choice,) = answer.choices
    found = choice.logprobs
    ids, bits = found.samebits["ids"], found.samebits["bits"]
    assert bits == scores(tokenizer().encode(PLAIN["prompt"]), ids)
    assert found.tokens == [shown(each) for each in ids] and choice.text == tokenizer().text(ids)
    assert [struct.pack(">f", each).hex() for each in found.token_logprobs] == bits
    assert all(
        len(each) <= 2 and max(each.values()) >= own
        for each, own in zip(found.top_logprobs, found.token_logprobs, strict=True)
    )
    assert found.text_offset[0] == 0 and found.text_offset == sorted(found.text_offset)
    streamed = list(client.completions.create(**PLAIN, stream=True))
    assert "".join(piece.choices[0].text for piece in streamed) == choice.text
    assert [bit for piece in streamed for bit in piece.choices[0].logprobs.samebits["bits"]] == bits


def test_token_numbers_are_prompts_too(client: openai.OpenAI) -> None:
    ids = tokenizer().encode(PLAIN["prompt"])
    both = client.completions.create(**{**PLAIN, "prompt": [ids, [7, 8, 9]]})
    assert both.choices[0].text == client.completions.create(**PLAIN).choices[0].text
    assert both.choices[1].text == client.completions.create(**{**PLAIN, "prompt": [7, 8, 9]}).choices[0].text
    assert both.usage.prompt_tokens == len(ids) + 3


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("most", [0, 3])
def test_given_tokens_are_scored(client: openai.OpenAI, server: Serving, most: int, stream: bool) -> None:
    """echo with logprobs: each token of the prompt, bit for bit as the training forward scores it."""
    text = "The same bits, whatever the batch. " * 4
    given = tokenizer().encode(text)
    asked = {**PLAIN, "prompt": text, "echo": True, "max_tokens": most, "stream": stream}
    made: Any = client.completions.create(**asked)
    pieces = [piece.choices[0] for piece in made] if stream else [made.choices[0]]
    ids = [each for piece in pieces for each in piece.logprobs.samebits["ids"]]
    bits = [each for piece in pieces for each in piece.logprobs.samebits["bits"]]
    assert len(ids) == len(given) + most and ids[: len(given)] == given
    assert bits == [None, *offline(ids)]
    assert "".join(piece.text for piece in pieces) == text + tokenizer().text(ids[len(given) :])
    offsets = [each for piece in pieces for each in piece.logprobs.text_offset]
    assert offsets[len(given) - 1] == len(tokenizer().text(given[:-1])) and pieces[-1].finish_reason == "length"
    if not stream:
        assert made.usage.completion_tokens == most
    assert server.settle()["pages_used"] == 0


def test_several_answers_differ_and_the_first_is_the_only_one(client: openai.OpenAI) -> None:
    one = client.chat.completions.create(**CHAT)
    four = client.chat.completions.create(**CHAT, n=4)
    assert [each.index for each in four.choices] == [0, 1, 2, 3]
    assert four.choices[0].message == one.choices[0].message
    assert len({each.message.content for each in four.choices}) == 4
    streamed = ["", "", "", ""]
    for piece in client.chat.completions.create(**CHAT, n=4, stream=True):
        streamed[piece.choices[0].index] += piece.choices[0].delta.content
    assert streamed == [each.message.content for each in four.choices]
    assert four.usage.completion_tokens == 96 and four.usage.prompt_tokens == one.usage.prompt_tokens


def test_without_a_seed_answers_differ_and_greedy_ones_do_not(client: openai.OpenAI) -> None:
    free = {**CHAT, "seed": None}
    assert len({client.chat.completions.create(**free).choices[0].message.content for _ in range(3)}) == 3
    greedy = {**free, "temperature": 0}
    assert len({client.chat.completions.create(**greedy).choices[0].message.content for _ in range(3)}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_an_answer(client: openai.OpenAI, server: Serving, stream: bool) -> None:
    """The text ends before it, and the engine stops computing: the request is cancelled and its pages come back."""
    asked = {**PLAIN, "max_tokens": 200}
    whole = client.completions.create(**asked).choices[0].text
    place = next(n for n in range(20, len(whole)) if whole.find(whole[n : n + 3]) == n)
    before = server.settle()
    made: Any = client.completions.create(**asked, stop=["never this one", whole[place : place + 3]], stream=stream)
    choices = [piece.choices[0] for piece in made] if stream else [made.choices[0]]
    assert "".join(each.text for each in choices) == whole[:place] and choices[-1].finish_reason == "stop"
    after = server.settle()
    assert after["cancellations"] - before["cancellations"] == 1 and after["pages_used"] == 0
    assert after["tokens"] - before["tokens"] < 150


def test_an_end_of_text_is_scored_and_not_written(client: openai.OpenAI) -> None:
    """Seeds are tried until the model draws its end of a text; that token is listed, its name is not in the text."""
    (end,) = tokenizer().eos
    for seed in range(200):
        answer = client.completions.create(**{**PLAIN, "seed": seed, "max_tokens": 64, "temperature": 2})
        (choice,) = answer.choices
        if choice.finish_reason == "stop":
            break
    ids = choice.logprobs.samebits["ids"]
    assert choice.finish_reason == "stop" and ids[-1] == end and end not in ids[:-1]
    assert choice.text == tokenizer().text(ids[:-1]) and answer.usage.completion_tokens == len(ids)


def test_models_health_metrics_and_page(client: openai.OpenAI, server: Serving) -> None:
    (listed,) = client.models.list().data
    assert listed.id == NAME and listed.samebits["chat"] is True
    assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
    before = figures(server)
    client.completions.create(**PLAIN)
    after = figures(server)
    path = 'samebits_requests_total{path="/v1/completions",status="200"}'
    grown = {name: after[name] - before[name] for name in before}
    assert grown[path] == 1 and grown["samebits_completion_tokens_total"] == 24
    assert grown["samebits_prompt_tokens_total"] == len(tokenizer().encode(PLAIN["prompt"]))
    assert grown["samebits_time_to_first_token_seconds_count"] == 1
    assert after["samebits_engine_running"] == after["samebits_engine_waiting"] == 0
    assert after["samebits_engine_pages_free"] == 256 and grown["samebits_engine_tokens_total"] == 24
    page = httpx.get(server.url)
    assert page.headers["content-type"].startswith("text/html") and "connect-src 'self'" in str(page.headers)


def figures(server: Serving) -> dict[str, float]:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def test_a_stream_is_what_the_standard_says(server: Serving) -> None:
    """Server-sent events: each a `data:` line and an empty one, the last of them [DONE]."""
    raw = httpx.post(f"{server.url}/v1/completions", json={**PLAIN, "stream": True}, timeout=PATIENCE)
    *events, done, nothing = raw.text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "") and raw.headers["content-type"].startswith("text/event-stream")
    assert all(json.loads(each.removeprefix("data: "))["object"] == "text_completion" for each in events)


def test_no_text_ends_a_line_of_a_stream(server: Serving) -> None:
    """A client that cuts at Unicode's line ends, as httpx does, still gets whole events."""
    prompt = "one\u0085two\u2028three\u2029four\x0b\x0c\x1c\x1d\x1efive"
    asked = {**PLAIN, "prompt": prompt, "echo": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=PATIENCE) as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: {")]
    text = "".join(choice["text"] for event in events for choice in json.loads(event)["choices"])
    assert text.startswith(prompt)


def test_a_connection_is_kept_longer_than_its_client_keeps_it(server: Serving, client: openai.OpenAI) -> None:
    """Else a request can be on its way while the server hangs up, which is a reset for the client."""
    pool: Any = client._client._transport
    assert server.server.config.timeout_keep_alive > 2 * pool._pool._keepalive_expiry
