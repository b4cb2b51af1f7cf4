"""`samebits generate`: text as it comes, lines with bits, one JSON document; a mistake is one line and exit 2."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable

import pytest
import torch

from samebits.model import Batch
from samebits.model.loading import load

Samebits = Callable[..., object]
ASKED = ("generate", "--model", "tiny@0", "--prompt", "def main():", "--max-tokens", "5", "--seed", "3")


def test_the_document_holds_the_bits_of_the_training_forward(samebits: Samebits) -> None:
    ran = samebits(*ASKED, "--json")
    document = json.loads(ran.out)
    assert ran.code == 0 and ran.err == "" and document["schema"] == "samebits.generate/1"
    loaded = load("tiny@0")
    prompt, tokens = loaded.tokenizer.encode("def main():"), [each["token"] for each in document["tokens"]]
    text = torch.tensor(prompt + tokens)
    with torch.no_grad():
        hidden = loaded.model.hidden(Batch.of([text[:-1]]))
        logprobs = loaded.model.logprobs(hidden, text[1:])[len(prompt) - 1 :]
    expected = [struct.pack(">f", each).hex() for each in logprobs.tolist()]
    assert [each["bits"] for each in document["tokens"]] == expected and len(expected) == 5
    assert document["prompt_tokens"] == len(prompt) and document["finished"] == "length"
    assert document["text"] == loaded.tokenizer.text(tokens)


def test_text_and_lines_say_the_same_as_the_document(samebits: Samebits) -> None:
    document = json.loads(samebits(*ASKED, "--json").out)
    assert samebits(*ASKED).out == document["text"] + "\n"
    lines = [line.split()[:3] for line in samebits(*ASKED, "--logprobs").out.splitlines()]
    assert [(int(token), bits) for token, _, bits in lines] == [
        (each["token"], each["bits"]) for each in document["tokens"]
    ]


def test_another_seed_draws_other_tokens_and_at_0_none_matters(samebits: Samebits) -> None:
    def tokens(*options: str) -> list[int]:
        return [each["token"] for each in json.loads(samebits(*ASKED, *options, "--json").out)["tokens"]]

    assert tokens() != tokens("--seed", "4")
    assert tokens("--temperature", "0") == tokens("--temperature", "0", "--seed", "4")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--prompt", ""), "the prompt has 0 tokens; allowed: at least 1"),
        (("--max-tokens", "5000000000"), "make 5000000011; allowed: 1024"),
        (("--max-tokens", "0"), "max_tokens is 0"),
        (("--top-p", "2"), "top_p is 2.0; allowed: 1.4e-45 to 1"),
        (("--model", "tniy@0"), "did you mean 'tiny@0'?"),
        (("--chat",), "has no chat_template"),
        (("--dtype", "int8"), "dtype is 'int8'"),
    ],
)
def test_a_mistake_is_one_line(samebits: Samebits, options: tuple[str, ...], message: str) -> None:
    ran = samebits(*ASKED, *options)
    assert ran.code == 2 and ran.out == ""
    assert message in ran.err and ran.err.count("\n") == 1


def test_help_has_an_example(samebits: Samebits) -> None:
    assert "Example: samebits generate" in " ".join(samebits("generate", "--help").out.split())
