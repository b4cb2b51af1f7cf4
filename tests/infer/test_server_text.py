"""An answer's text as it grows: nothing of a stop string, whole characters. Bodies, read strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.infer.serving import tokenizer

from samebits.infer.request import Event, bits
from samebits.infer.server.answers import IMPOSSIBLE, Heading, Scored
from samebits.infer.server.limits import Limits, RefusedError
from samebits.infer.server.schema import CHAT, COMPLETION, chat, completion, parse
from samebits.infer.server.text import Writer

WORDS = tokenizer()
# Bytes of a few letters and of halves of characters: stop strings are met often, and characters cut.
TOKENS = [WORDS.encode(each)[0] for each in (b"a", b"b", b"\n", b"\xe2", b"\x82", b"\xac", b"\xff")]


def plain(tokens: list[int], stops: list[str]) -> tuple[str, str]:
    """What should be written, said plainly: the first tokens whose text has a stop string, cut before it."""
    for count in range(1, len(tokens) + 1):
        # Bytes at the end that may still become a character are no text yet, unless all is said.
        text = WORDS.text(tokens) if count == len(tokens) else whole_characters(tokens[:count])
        found = [text.find(stop) for stop in stops if stop in text]
        if found:
            return text[: min(found)], "stop"
    return WORDS.text(tokens), "length"


def whole_characters(tokens: list[int]) -> str:
    """The longest text that more bytes cannot change."""
    raw = WORDS.decode(tokens)
    kept = {raw[:end].decode("utf-8", "replace") for end in range(max(0, len(raw) - 3), len(raw) + 1)}
    sure = [each for each in kept if all((raw + more).decode("utf-8", "replace").startswith(each) for more in MORE)]
    return max(sure, key=len)


MORE = [b"a", b"\x82a", b"\xaca", b"\x82\xaca", b"\xe2\x82\xac", b"\xff"]


def events(tokens: list[int]) -> list[Event]:
    last = len(tokens) - 1
    return [Event(0, token, -1.0, n, (), "length" if n == last else None) for n, token in enumerate(tokens)]


def written(tokens: list[int], stops: list[str], writer: Writer | None = None) -> tuple[list[str], str | None]:
    writer = writer or Writer(WORDS, stops, frozenset())
    pieces = []
    for event in events(tokens):
        pieces.append(writer.feed(event))
        if writer.finish is not None:
            break
    return pieces, writer.finish


STOPS = st.lists(st.text("ab\n€�", min_size=1, max_size=3), max_size=3)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=14), STOPS)
def test_pieces_make_up_the_text(tokens: list[int], stops: list[str]) -> None:
    pieces, finish = written(tokens, stops)
    assert ("".join(pieces), finish) == plain(tokens, stops)


def test_a_writer_that_holds_nothing_back_is_noticed() -> None:
    """Planted fault: text goes out as soon as it is known, with the beginning of a stop string in it."""

    class Hasty(Writer):
        def _certain(self) -> int:
            return len(self._held)

    tokens = WORDS.encode(b"b") + WORDS.encode(b"a") + WORDS.encode(b"b")
    assert written(tokens, ["ab"]) == (["b", "", ""], "stop")
    assert "".join(written(tokens, ["ab"], Hasty(WORDS, ["ab"], frozenset()))[0]) != plain(tokens, ["ab"])[0]


def test_a_character_comes_whole() -> None:
    tokens = [WORDS.encode(bytes([byte]))[0] for byte in "€".encode()]
    assert written(tokens, []) == (["", "", "€"], "length")
    assert written(tokens[:2], []) == (["", "�"], "length")


def test_offsets_are_where_text_begins() -> None:
    writer, found = Writer(WORDS, ["aab"], frozenset()), []
    for event in events([TOKENS[0]] * 4):
        found.append(writer.offset)
        writer.feed(event)
    assert found == [0, 1, 2, 3] and writer.written == 4


def test_bits_and_values_of_logprobs() -> None:
    """-0 is not 0; what JSON cannot say is said as OpenAI does, and its bits are there."""
    assert (bits(-0.0), bits(0.0), bits(-1.0), bits(float("-inf"))) == ("80000000", "00000000", "bf800000", "ff800000")
    heading = Heading(id="x", created=0, model="m", chat=True, tokenizer=WORDS)
    (found,) = heading.logprobs([Scored(token=TOKENS[0], logprob=float("-inf"))])["content"]
    assert found["logprob"] == IMPOSSIBLE and found["samebits"] == {"id": TOKENS[0], "bits": "ff800000"}


PLAIN_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    PLAIN_VALUES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
NESTED = st.recursive(
    st.text('[]{}"\\', max_size=4) | st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=12
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(VALUES, st.sampled_from([*COMPLETION, *CHAT]))
def test_any_value_anywhere_is_read_or_refused(value: Any, key: str) -> None:
    """No value of any key leads to another error than a refusal of one line."""
    base: dict[str, Any] = {"model": "m", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    for kind, other in ((completion, "messages"), (chat, "prompt")):
        body = {name: each for name, each in base.items() if name != other} | {key: value}
        try:
            asked = kind(body, Limits())
        except RefusedError as refused:
            assert refused.status == 400 and "\n" not in refused.message and len(refused.message) < 1000
        else:
            assert asked.n * max(1, len(asked.prompts)) <= Limits().choices


@settings(max_examples=300, deadline=None, derandomize=True)
@given(NESTED)
def test_depth_is_that_of_the_parsed_value(value: Any) -> None:
    def depth(each: Any) -> int:
        return 1 + max(map(depth, each), default=0) if isinstance(each, list) else 0

    body, found = json.dumps({"x": [value]}).encode(), 2 + depth(value)
    assert parse(body, Limits(depth=found)) == {"x": [value]}
    with pytest.raises(RefusedError, match=f"depth of the body's JSON is {found}; allowed: at most {found - 1}"):
        parse(body, Limits(depth=found - 1))
