"""The requests of lm-evaluation-harness (`local-completions`), played and read as it does, alone and by sixteen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from tests.infer.serving import NAME, PATIENCE, model, offline, serving, tokenizer

from samebits.infer.server.answers import Heading, Scored
from samebits.model import Batch
from samebits.model.tokenizer import Tokenizer

CONTEXTS = ["Why is the sky", "The same", "whatever the batch, the", "The number of ranks. Why"]
ENDINGS = [" blue?", " bits", " split", " of ranks"]


@pytest.fixture(scope="module")
def web() -> Iterator[httpx.Client]:
    with serving() as running, httpx.Client(base_url=running.url, timeout=PATIENCE) as made:
        yield made


def post(web: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    answer = web.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return sorted(answer.json()["choices"], key=lambda choice: choice["index"])


def loglikelihoods(web: httpx.Client, batch: int, asked: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
    """As the harness asks and reads: the sum of the ending's logprobs, and whether each was the likeliest."""
    found = []
    for start in range(0, len(asked), batch):
        part = asked[start : start + batch]
        body = {
            "model": NAME,
            "prompt": [[*a, *b] for a, b in part],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
        }
        for choice, (context, _) in zip(post(web, body), part, strict=True):
            logprobs = choice["logprobs"]["token_logprobs"][len(context) : -1]
            tops = choice["logprobs"]["top_logprobs"][len(context) : -1]
            greedy = all(own == max(top.values()) for own, top in zip(logprobs, tops, strict=True))
            found.append((sum(logprobs), greedy))
    return found


def generations(web: httpx.Client, batch: int) -> list[str]:
    found = []
    prompts = [tokenizer().encode(each) for each in CONTEXTS * 4]
    for start in range(0, len(prompts), batch):
        body = {
            "model": NAME,
            "prompt": prompts[start : start + batch],
            "max_tokens": 12,
            "temperature": 0,
            "stop": ["\n\n", "Q:", "</s>", "Question:", "\nclass", "<|endoftext|>"],
            "seed": 1234,
        }
        found += [choice["text"] for choice in post(web, body)]
    return found


def likeliest(context: list[int], count: int) -> list[int]:
    """What the model itself goes on with, by the training forward."""
    ids = list(context)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model().logits(model().hidden(Batch.of([ids]))[-1:]).argmax()))
    return ids[len(context) :]


def test_loglikelihoods_one_by_one_and_sixteen_at_once(web: httpx.Client) -> None:
    """Bit for bit, and greedy exactly where the ending is what the model says itself."""
    contexts = [tokenizer().encode(each) for each in CONTEXTS]
    asked = [(a, tokenizer().encode(b)) for a in contexts for b in ENDINGS[:3]]
    asked += [(each, likeliest(each, 3)) for each in contexts]
    alone, crowd = loglikelihoods(web, 1, asked), loglikelihoods(web, 16, asked)
    assert alone == crowd and len(alone) == 16
    assert [greedy for _, greedy in alone] == [b == likeliest(a, len(b)) for a, b in asked]
    assert [greedy for _, greedy in alone[-4:]] == [True] * 4 and not all(greedy for _, greedy in alone)


def test_generations_one_by_one_and_sixteen_at_once(web: httpx.Client) -> None:
    alone = generations(web, 1)
    assert alone == generations(web, 16) and any(alone)


@pytest.mark.parametrize("batch_tokens", [64, 256])
def test_a_scored_prompt_lists_the_likeliest(batch_tokens: int) -> None:
    """First null, then for each token the five likeliest in its place: bits of the training forward, in any chunks."""
    text = "The same bits, whatever the batch. " * 6
    ids = tokenizer().encode(text)
    with serving(batch_tokens=batch_tokens) as running:
        body = {"model": NAME, "prompt": text, "echo": True, "logprobs": 5, "max_tokens": 0, "seed": 1}
        (choice,) = post(httpx.Client(base_url=running.url, timeout=PATIENCE), body)
    with torch.no_grad():
        hidden = model().hidden(Batch.of([ids]))
        order = model().logits(hidden).sort(descending=True, stable=True).indices[:, :5]
        wanted = [
            model().logprobs(hidden[place].expand(5, -1).contiguous(), order[place]).tolist()
            for place in range(len(ids))
        ]
    tops = choice["logprobs"]["top_logprobs"]
    assert tops[0] is None and len(tops) == len(ids) > 64
    assert [list(top.values()) for top in tops[1:]] == wanted[:-1]
    assert choice["logprobs"]["samebits"]["bits"] == [None, *offline(ids)]


def test_tokens_of_equal_text_have_names_of_their_own() -> None:
    """Halves of characters, ids that no token has, and a token that is spelt as another is called."""
    words = Tokenizer.of_bytes()
    heading = Heading(id="x", created=0, model="m", chat=False, tokenizer=words)
    ids = [0xE2, 0x82, 0xFF, 300, 301, ord("a")]
    (top,) = heading.logprobs([Scored(token=1, logprob=-1.0, top=tuple((token, -1.0) for token in ids))])[
        "top_logprobs"
    ]
    assert list(top) == ["bytes:\\xe2", "bytes:\\x82", "bytes:\\xff", "token_id:300", "token_id:301", "a"]
    twice = ((ord("a"), -1.0), (ord("a"), -2.0))
    (top,) = heading.logprobs([Scored(token=1, logprob=-1.0, top=twice)])["top_logprobs"]
    assert top == {"a": -1.0, "token_id:97": -2.0}


def test_likeliest_tokens_that_are_left_out_are_noticed(web: httpx.Client) -> None:
    """Planted fault: an answer as it was, without the prompt's likeliest tokens. The harness cannot read it."""
    body = {"model": NAME, "prompt": [[1, 2, 3]], "max_tokens": 1, "logprobs": 0, "echo": True, "seed": 1}
    (choice,) = post(web, body)
    with pytest.raises(AttributeError):
        max(choice["logprobs"]["top_logprobs"][1].values())
