"""The shapes of OpenAI's answers: choices, chunks, logprobs and usage, with the bits of each logprob beside its value.

Values in, dictionaries out. `samebits` is the one key that OpenAI's shapes do not have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from samebits.infer.request import bits
from samebits.model.tokenizer import Tokenizer

# JSON has no -inf; this is what OpenAI writes for a token that cannot come.
IMPOSSIBLE: Final = -9999.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """A token of an answer, or of its prompt, with what is known of it."""

    token: int
    logprob: float | None
    """None for the first token of a prompt, which comes after nothing."""
    top: tuple[tuple[int, float], ...] = ()
    offset: int = 0
    """Where its text begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heading:
    """What all parts of one answer have in common."""

    id: str
    created: int
    model: str
    chat: bool
    tokenizer: Tokenizer

    def document(self, choices: list[dict[str, Any]], *, chunk: bool, usage: dict[str, Any] | None) -> dict[str, Any]:
        kind = ("chat.completion.chunk" if chunk else "chat.completion") if self.chat else "text_completion"
        found = {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}
        return found if usage is None else {**found, "usage": usage}

    def choice(self, index: int, text: str, scored: Sequence[Scored] | None, finish: str | None) -> dict[str, Any]:
        """A whole choice of an answer that is not streamed."""
        logprobs = None if scored is None else self.logprobs(scored)
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": finish}

    def piece(
        self, index: int, text: str, scored: Sequence[Scored] | None, finish: str | None, *, first: bool
    ) -> dict[str, Any]:
        """A choice of a chunk."""
        logprobs = None if scored is None else self.logprobs(scored)
        role = {"role": "assistant"} if first else {}
        said: dict[str, Any] = {"delta": {**role, "content": text}} if self.chat else {"text": text}
        return {"index": index, **said, "logprobs": logprobs, "finish_reason": finish}

    def logprobs(self, scored: Sequence[Scored]) -> dict[str, Any]:
        if self.chat:
            return {"content": [self._content(each) for each in scored], "refusal": None}
        return {
            "tokens": [self._name(each.token) for each in scored],
            "token_logprobs": [None if each.logprob is None else _value(each.logprob) for each in scored],
            "top_logprobs": [self._top(each) for each in scored],
            "text_offset": [each.offset for each in scored],
            "samebits": {
                "ids": [each.token for each in scored],
                "bits": [None if each.logprob is None else bits(each.logprob) for each in scored],
            },
        }

    def _content(self, each: Scored) -> dict[str, Any]:
        assert each.logprob is not None
        top = [self._token(token, logprob) for token, logprob in each.top]
        return {**self._token(each.token, each.logprob), "top_logprobs": top}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self.tokenizer.decode([token])
        return {
            "token": self.tokenizer.text([token]),
            "logprob": _value(logprob),
            "bytes": list(raw),
            "samebits": {"id": token, "bits": bits(logprob)},
        }

    def _top(self, each: Scored) -> dict[str, float | None] | None:
        """By name, as OpenAI has it; of tokens that have one name all but the likeliest go by their number."""
        if not each.top:
            return None
        found: dict[str, float | None] = {}
        for token, logprob in each.top:
            name = self._name(token)
            found[f"token_id:{token}" if name in found else name] = _value(logprob)
        return found

    def _name(self, token: int) -> str:
        """Its text; where that would tell too little, as OpenAI and vLLM do, the bytes of it or its number."""
        raw = self.tokenizer.decode([token])
        if not raw:
            return f"token_id:{token}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def usage(prompts: Sequence[int], completion_tokens: int, cached: int) -> dict[str, Any]:
    """Each prompt counts once, however many answers it gets."""
    prompt = sum(prompts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _value(logprob: float) -> float | None:
    """The value itself: a float32 survives JSON's decimals bit for bit."""
    if math.isnan(logprob):
        return None
    return logprob if logprob > -math.inf else IMPOSSIBLE
