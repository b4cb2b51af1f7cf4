"""The bodies of OpenAI's completions and chat completions, read strictly: every key is consumed or refused by name.

Knows neither tokens nor an engine: prompts leave as they came, messages as plain dictionaries."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import numpy as np

from samebits.contracts.registry import nearest
from samebits.infer.request import LEAST_TOP_P
from samebits.infer.server.limits import Limits, RefusedError
from samebits.ops.sample import LEAST_TEMPERATURE

MOST_SEED: Final = 2**63 - 1
# As OpenAI has it: what a completion gets that does not say how much it wants.
COMPLETION_TOKENS: Final = 16
ROLES: Final = ("system", "user", "assistant")
# Settings that this engine has in one form only; they may be sent in that form.
FIXED: Final[dict[str, tuple[Any, ...]]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "suffix": ("",),
    "best_of": (1,),
    "response_format": ({"type": "text"},),
    "store": (False,),
}
BOTH: Final = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "n",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "max_tokens",
    "logprobs",
    "user",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
)
COMPLETION: Final = (*BOTH, "prompt", "echo", "suffix", "best_of")
CHAT: Final = (*BOTH, "messages", "max_completion_tokens", "top_logprobs", "response_format", "store")
_STRINGS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))

Prompt = str | tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What a request asks for, of either kind."""

    model: str
    prompts: tuple[Prompt, ...] = ()
    """Of a completion."""
    messages: tuple[dict[str, str], ...] = ()
    """Of a chat completion."""
    n: int = 1
    max_tokens: int | None = None
    """None: as many as fit."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stops: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    logprobs: int | None = None
    """None: no logprobs; else how many other tokens are listed beside each."""
    echo: bool = False


def parse(body: bytes, limits: Limits) -> dict[str, Any]:
    """The JSON object of a body, whose size is known to be within its limit."""
    bare = _STRINGS.sub(b"", body)
    limits.check("items", bare.count(b","), "the number of commas in the body's JSON", None)
    limits.check("depth", _depth(bare), "the depth of the body's JSON", None)
    try:
        found = json.loads(body.decode(), object_pairs_hook=_object, parse_constant=_constant)
    except UnicodeDecodeError as error:
        raise RefusedError(400, f"the body is no UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise RefusedError(400, f"the body is no JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    except ValueError as error:
        # Python refuses to read numbers of thousands of digits.
        raise RefusedError(400, f"the body is no JSON that can be read: {error}") from None
    if type(found) is not dict:
        raise RefusedError(400, f"the body is a JSON {_kind(found)}; allowed: an object")
    return found


def _depth(bare: bytes) -> int:
    """Of brackets within brackets, in JSON without its strings."""
    brackets = np.frombuffer(bare.translate(None, _NO_BRACKETS), np.uint8)
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1)
    return int(np.cumsum(steps).max(initial=0))


def completion(values: dict[str, Any], limits: Limits) -> Asked:
    """The body of POST /v1/completions."""
    fields = _Fields(values, COMPLETION)
    logprobs = fields.whole("logprobs", 0, limits.top_logprobs)
    echo = fields.flag("echo")
    max_tokens = fields.whole("max_tokens", 0 if echo else 1, limits.max_tokens)
    prompts = _prompts(values.get("prompt"))
    limits.check("choices", len(prompts) * (fields.whole("n", 1, limits.choices) or 1), "prompts times n", "n")
    return Asked(
        prompts=prompts,
        logprobs=logprobs,
        echo=echo,
        max_tokens=COMPLETION_TOKENS if max_tokens is None else max_tokens,
        **_both(fields, limits),
    )


def chat(values: dict[str, Any], limits: Limits) -> Asked:
    """The body of POST /v1/chat/completions."""
    fields = _Fields(values, CHAT)
    given = fields.whole("max_completion_tokens", 1, limits.max_tokens)
    older = fields.whole("max_tokens", 1, limits.max_tokens)
    if given is not None and older is not None and given != older:
        raise RefusedError(
            400, f"max_completion_tokens is {given}, max_tokens is {older}; allowed: one of them", param="max_tokens"
        )
    top = fields.whole("top_logprobs", 0, limits.top_logprobs)
    wanted = fields.flag("logprobs")
    if top is not None and not wanted:
        raise RefusedError(
            400, f"top_logprobs is {top}, logprobs is false; allowed: logprobs true", param="top_logprobs"
        )
    return Asked(
        messages=_messages(values.get("messages"), limits),
        logprobs=(top or 0) if wanted else None,
        max_tokens=older if given is None else given,
        **_both(fields, limits),
    )


class _Fields:
    """The keys of a body, each read in one way; null is absent."""

    def __init__(self, values: dict[str, Any], known: Collection[str]) -> None:
        for name in values:
            if name not in known:
                shown = name if len(name) <= 64 else f"{name[:61]}..."
                raise RefusedError(400, f"unknown key {shown!r}; {nearest(shown, sorted(known))}", param=shown)
        self.values = values
        for name, allowed in FIXED.items():
            found = values.get(name)
            # In Python false is 0 and true is 1; in JSON they are not.
            if found is not None and (found not in allowed or (type(found) is bool) != (type(allowed[0]) is bool)):
                self.refuse(name, json.dumps(allowed[0]))

    def refuse(self, name: str, allowed: str) -> NoReturn:
        shown = json.dumps(self.values.get(name))
        shown = shown if len(shown) <= 64 else f"{shown[:61]}..."
        raise RefusedError(400, f"{name} is {shown}; allowed: {allowed}", param=name)

    def whole(self, name: str, least: int, most: int) -> int | None:
        value = self.values.get(name)
        if value is not None and (type(value) is not int or not least <= value <= most):
            self.refuse(name, f"a whole number, {least} to {most}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.values.get(name)
        if value is None:
            return default
        # Compared as they are: a whole number may be too large to become a float.
        if type(value) not in (int, float) or not -sys.float_info.max <= value <= sys.float_info.max:
            self.refuse(name, "a number")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if value is not None and type(value) is not bool:
            self.refuse(name, "true or false")
        return bool(value)

    def text(self, name: str, most: int) -> str | None:
        value = self.values.get(name)
        if value is not None and (type(value) is not str or len(value) > most):
            self.refuse(name, f"text of at most {most} characters")
        return value


def _both(fields: _Fields, limits: Limits) -> dict[str, Any]:
    """What both kinds of requests have."""
    model = fields.text("model", 256)
    if model is None:
        raise RefusedError(400, "model is missing; allowed: a name that /v1/models lists", param="model")
    temperature, top_p = fields.number("temperature", 1.0), fields.number("top_p", 1.0)
    if temperature != 0 and not LEAST_TEMPERATURE <= temperature <= 2:
        fields.refuse("temperature", f"0, or {LEAST_TEMPERATURE:.1e} to 2")
    if not LEAST_TOP_P <= top_p <= 1:
        fields.refuse("top_p", f"{LEAST_TOP_P:.1e} to 1")
    fields.text("user", 256)
    return {
        "model": model,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": fields.whole("top_k", 0, 2**22) or 0,
        "n": fields.whole("n", 1, limits.choices) or 1,
        "seed": fields.whole("seed", 0, MOST_SEED),
        "stops": _stops(fields, limits),
        "stream": fields.flag("stream"),
        "include_usage": _usage(fields),
    }


def _usage(fields: _Fields) -> bool:
    options = fields.values.get("stream_options")
    if options is None:
        return False
    if type(options) is not dict or options.keys() - {"include_usage"} or not fields.flag("stream"):
        fields.refuse("stream_options", '{"include_usage": true or false}, with stream')
    return _Fields(options, ("include_usage",)).flag("include_usage")


def _stops(fields: _Fields, limits: Limits) -> tuple[str, ...]:
    value = fields.values.get("stop")
    stops = () if value is None else (value,) if type(value) is str else value
    if type(stops) not in (tuple, list) or not all(type(each) is str and each for each in stops):
        fields.refuse("stop", "text that is not empty, or a list of it")
    limits.check("stops", len(stops), "the number of stop strings", "stop")
    limits.check("stop_characters", max(map(len, stops), default=0), "the length of a stop string", "stop")
    return tuple(_plain(each, "stop") for each in stops)


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """One prompt or several, each as text or as token numbers."""
    if type(value) is str:
        return (_plain(value, "prompt"),)
    if type(value) is list and value:
        if all(type(each) is int for each in value):
            return (tuple(value),)
        if all(type(each) is str for each in value):
            return tuple(_plain(each, "prompt") for each in value)
        if all(type(each) is list and each and all(type(token) is int for token in each) for each in value):
            return tuple(tuple(each) for each in value)
    allowed = "text, token numbers, or a list of one of them"
    raise RefusedError(400, f"prompt is a JSON {_kind(value)} that cannot be read; allowed: {allowed}", param="prompt")


def _messages(value: Any, limits: Limits) -> tuple[dict[str, str], ...]:
    if type(value) is not list or not value:
        raise RefusedError(400, f"messages is a JSON {_kind(value)}; allowed: a list of at least one", param="messages")
    limits.check("messages", len(value), "the number of messages", "messages")
    return tuple(_message(each, f"messages[{place}]") for place, each in enumerate(value))


def _message(value: Any, at: str) -> dict[str, str]:
    if type(value) is not dict or value.keys() != {"role", "content"}:
        keys = ", ".join(map(repr, value)) if type(value) is dict else f"a JSON {_kind(value)}"
        raise RefusedError(400, f"{at} has {keys[:128]}; allowed: role and content", param=at)
    if value["role"] not in ROLES:
        role = json.dumps(value["role"])[:64]
        raise RefusedError(400, f"{at}.role is {role}; allowed: {', '.join(ROLES)}", param=f"{at}.role")
    content = value["content"]
    if type(content) is list and all(_is_text(part) for part in content):
        content = "".join(part["text"] for part in content)
    if type(content) is not str:
        raise RefusedError(
            400,
            f"{at}.content is a JSON {_kind(content)}; allowed: text, or a list of text parts",
            param=f"{at}.content",
        )
    return {"role": value["role"], "content": _plain(content, f"{at}.content")}


def _is_text(part: Any) -> bool:
    wanted = type(part) is dict and part.keys() == {"type", "text"}
    return wanted and part["type"] == "text" and type(part["text"]) is str


def _plain(text: str, param: str) -> str:
    """JSON can spell half a character, which no UTF-8 can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(
            400, f"{param} has half a character at {error.start}; allowed: whole ones", param=param
        ) from None
    return text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise RefusedError(400, f"the key {name[:64]!r} appears twice in one object")
        found[name] = value
    return found


def _constant(name: str) -> NoReturn:
    raise RefusedError(400, f"the body has {name}, which is no JSON number")


def _kind(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
