"""Words in and out: byte-level BPE in which every byte string comes back as it went in.

Rests on the `tokenizers` library for the merges alone; bytes, added tokens and the way back are handled here, because
there the library can lose text. Knows no model."""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from samebits.model.json_file import read_json, to_json
from samebits.model.template import Template
from samebits.model.tokenizer_file import BYTE_OF, LETTER_OF, Parts, byte_level, check, written
from samebits.model.tokenizer_settings import GENERATION, SETTINGS, SIGNS, ends_of, sign_of, template_of
from samebits.records.durable import put_in_one_move

END: Final = "<|endoftext|>"
# A tokenizer.json alone does not say which of its signs begin and end a text; these names do.
BEGINNINGS: Final = ("<s>", "<|begin_of_text|>", "<|startoftext|>")
ENDS: Final = (END, "</s>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>")
FILE: Final = "tokenizer.json"
# Bytes that are no UTF-8, as Python keeps them among text.
LONE_BYTES: Final = re.compile("([\udc80-\udcff]+)")
# The signs in a chat's own words are broken up with one of these, taken out again once the text is cut.
MARKS: Final = tuple(map(chr, range(0xE000, 0xF8FF)))


class TooLongError(ValueError):
    """Data with more tokens than its caller takes."""


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """decode(encode(data)) == data for every byte string; data that has no tokens is refused, never altered."""

    parts: Parts
    bos: int | None = None
    eos: tuple[int, ...] = ()
    template: str | None = None
    """A chat template in Jinja."""
    _library: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        from tokenizers import Tokenizer as Library

        library = Library.from_str(json.dumps(written(self.parts, bare=True)))
        object.__setattr__(self, "_library", library)
        for token in (*self.eos, *(() if self.bos is None else (self.bos,))):
            if not 0 <= token < self.vocabulary:
                raise ValueError(f"tokenizer: a special token is {token}; allowed: 0 to {self.vocabulary - 1}")
        if self.template is not None:
            Template.check(self.template)

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int, special: Sequence[str] = (END,)) -> Tokenizer:
        """Merges learned from texts, a function of the texts alone; fewer than asked for where they give no more."""
        from tokenizers import Tokenizer as Library
        from tokenizers import models, pre_tokenizers, trainers

        least = len(BYTE_OF) + len(special)
        if vocabulary < least:
            raise ValueError(f"tokenizer: vocabulary is {vocabulary}; allowed: at least {least}, all bytes and signs")
        library = Library(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=list(special), show_progress=False, initial_alphabet=sorted(BYTE_OF)
        )
        library.train_from_iterator(iter(texts), trainer)
        model = json.loads(library.to_str())["model"]
        # By the checks of a file, so that what is saved can be read again: signs that are words are refused there.
        added = [{"content": sign, "id": model["vocab"].get(sign), "special": True} for sign in special]
        parts = check({"model": model, "added_tokens": added, "pre_tokenizer": byte_level(use_regex=True)}, "tokenizer")
        return cls(parts=parts, **_by_name(parts))

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """From a tokenizer.json, or from a folder that has one."""
        path = Path(path)
        folder = path if path.is_dir() else None
        file = path if folder is None else folder / FILE
        parts = check(read_json(file), str(file))
        if folder is None or not (folder / SETTINGS).is_file():
            return cls(parts=parts, **_by_name(parts))
        settings = read_json(folder / SETTINGS)
        begin, end = (sign_of(settings.get(f"{key}_token"), parts, str(folder / SETTINGS)) for key in ("bos", "eos"))
        listed = ends_of(folder) if (folder / GENERATION).is_file() else ()
        eos = tuple(dict.fromkeys(() if end is None else (end,)) | dict.fromkeys(listed))
        return cls(parts=parts, bos=begin, eos=eos, template=template_of(settings, folder))

    @classmethod
    def of_bytes(cls) -> Tokenizer:
        """A token for every byte under its own number, and one more for the end of a text."""
        words = {letter: byte for byte, letter in sorted(LETTER_OF.items())}
        parts = Parts(words=words, merges=(), added={END: 256}, special=frozenset({END}), cuts=(byte_level(True),))
        return cls(parts=parts, eos=(256,))

    def save(self, path: str | Path) -> None:
        """To a tokenizer.json, or into a folder with all that belongs to it."""
        path, found = Path(path), _by_name(self.parts)
        if path.suffix != ".json":
            path.mkdir(parents=True, exist_ok=True)
            if self.eos:
                put_in_one_move(path / GENERATION, to_json({"bos_token_id": self.bos, "eos_token_id": list(self.eos)}))
            put_in_one_move(path / SETTINGS, to_json(self._settings()))
            put_in_one_move(path / SIGNS, to_json(self.signs))
            put_in_one_move(path / FILE, to_json(written(self.parts)))
            return
        if self.template is not None or (self.bos, self.eos) != (found["bos"], found["eos"]):
            raise ValueError(f"{path}: the template or the ends of a text have no place in one file; allowed: a folder")
        put_in_one_move(path, to_json(written(self.parts)))

    @property
    def signs(self) -> dict[str, str]:
        """What special_tokens_map.json says: the signs that begin and end a text."""
        return {key: sign for key, sign in self._marks.items() if sign}

    def digest(self) -> str:
        """SHA-256 of all that decides tokens, ends and chats."""
        facts = {"parts": written(self.parts), "bos": self.bos, "eos": self.eos, "template": self.template}
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _settings(self) -> dict[str, Any]:
        """What tokenizer_config.json says of it, for transformers too."""
        known = {key: value for key, value in {**self._marks, "chat_template": self.template}.items() if value}
        # Without this transformers takes out the space before a full stop when it decodes.
        return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **known}

    @property
    def vocabulary(self) -> int:
        """One more than the largest id."""
        return len(self._bytes)

    @cached_property
    def missing(self) -> frozenset[int]:
        """Bytes that no word stands for; data with one of them cannot be encoded."""
        return frozenset(byte for byte, letter in LETTER_OF.items() if letter not in self.parts.words)

    def least_tokens(self, data: bytes) -> int:
        """How many tokens the data has at the least, by a count of its bytes alone.

        A token of n bytes has none that only shorter tokens have. So where each byte counts as one part of the longest
        token that has it, no token counts for more than one."""
        counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256).tolist()
        return math.ceil(sum(Fraction(count, longest) for count, longest in zip(counts, self._longest, strict=True)))

    @cached_property
    def _longest(self) -> list[int]:
        """For each byte the length of the longest token that has it."""
        longest = [1] * 256
        for token in self._bytes:
            for byte in set(token):
                longest[byte] = max(longest[byte], len(token))
        return longest

    def _check_length(self, data: bytes, most: int | None) -> None:
        if most is not None and (least := self.least_tokens(data)) > most:
            raise TooLongError(f"tokenizer: the data has at least {least} tokens; allowed: at most {most}")

    def encode(self, data: str | bytes, *, special: bool = True, most: int | None = None) -> list[int]:
        """Ids of the data. `special`: whether text that looks like an added token is that token, or words like any.
        `most`: data that must have more tokens is refused before it is cut, by a TooLongError."""
        if not isinstance(data, str | bytes | bytearray):
            raise ValueError(f"tokenizer: the data is a {type(data).__name__}; allowed: str, bytes")
        try:
            data = data.encode() if isinstance(data, str) else bytes(data)
        except UnicodeEncodeError as error:
            raise ValueError(
                f"tokenizer: the text has half a character at {error.start}; allowed: whole ones"
            ) from None
        self._check_length(data, most)
        if self.missing and not self.missing.isdisjoint(data):
            place = next(place for place, byte in enumerate(data) if byte in self.missing)
            raise ValueError(
                f"tokenizer: byte {data[place]:#04x} at {place} has no token; allowed: all bytes but"
                f" {' '.join(f'{byte:02x}' for byte in sorted(self.missing))}"
            )
        text, ids = data.decode("utf-8", "surrogateescape"), list[int]()
        for piece, token in self._pieces(text) if special else ((text, None),):
            ids += self._plain(piece)
            ids += () if token is None else (token,)
        return ids

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of the ids. An id that no token has, as a model with a padded vocabulary may draw, is skipped."""
        return b"".join(map(self._of, ids))

    def text(self, ids: Iterable[int]) -> str:
        """The same as text; what is no UTF-8 becomes U+FFFD."""
        return self.decode(ids).decode("utf-8", "replace")

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as its template writes it, up to where the answer begins."""
        return self._chat.render(messages, **self._marks)

    def conversation(self, messages: Sequence[Mapping[str, Any]], *, most: int | None = None) -> list[int]:
        """Ids of the chat, in which only the template can write an added token: in a message it is plain words.
        `most`: as for `encode`, of the messages' texts and of what the template makes of them."""
        self._check_length("".join(_texts(messages)).encode("utf-8", "replace"), most)
        present = set(json.dumps(list(messages), ensure_ascii=False)).union(self.template or "")
        mark = next((sign for sign in MARKS if sign not in present), None)
        if mark is None:
            raise ValueError(
                "tokenizer: the messages hold every private character of Unicode; allowed: not all of them"
            )
        ids, text = list[int](), self.chat(self._broken(list(messages), mark))
        self._check_length(text.replace(mark, "").encode("utf-8", "replace"), most)
        for piece, token in self._pieces(text):
            ids += self.encode(piece.replace(mark, ""), special=False)
            ids += () if token is None else (token,)
        return ids

    def _broken(self, value: Any, mark: str) -> Any:
        """The value with every added token in its texts cut after its first character."""
        if isinstance(value, Mapping):
            return {key: self._broken(inner, mark) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._broken(inner, mark) for inner in value]
        if not isinstance(value, str) or self._signs is None:
            return value
        return self._signs.sub(lambda found: found[0][0] + mark + found[0][1:], value)

    @cached_property
    def _chat(self) -> Template:
        if self.template is None:
            raise ValueError("tokenizer has no chat_template; use /v1/completions, or a tokenizer with one")
        return Template(self.template)

    @cached_property
    def _marks(self) -> dict[str, str]:
        """The signs that begin and end a text, under the names that templates and transformers use."""
        names = {number: sign for sign, number in self.parts.added.items()}
        begin, end = -1 if self.bos is None else self.bos, next(iter(self.eos), -1)
        return {"bos_token": names.get(begin, ""), "eos_token": names.get(end, "")}

    @cached_property
    def _signs(self) -> re.Pattern[str] | None:
        longest_first = sorted(self.parts.added, key=lambda sign: (-len(sign), sign))
        return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def _pieces(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Text between added tokens, each piece with the token after it."""
        start = 0
        for found in self._signs.finditer(text) if self._signs else ():
            yield text[start : found.start()], self.parts.added[found[0]]
            start = found.end()
        yield text[start:], None

    def _plain(self, text: str) -> list[int]:
        """Text with lone bytes in it: the library sees whole characters only, each lone byte is its own word."""
        ids: list[int] = []
        for place, piece in enumerate(LONE_BYTES.split(text)):
            if place % 2:
                ids += [self.parts.words[LETTER_OF[byte]] for byte in piece.encode("utf-8", "surrogateescape")]
            elif piece:
                ids += self._library.encode(piece, add_special_tokens=False).ids
        return ids

    @cached_property
    def _bytes(self) -> list[bytes]:
        """The bytes of each id."""
        table = [b""] * (1 + max((*self.parts.words.values(), *self.parts.added.values())))
        for word, number in self.parts.words.items():
            table[number] = bytes(BYTE_OF[letter] for letter in word)
        for sign, number in self.parts.added.items():
            table[number] = sign.encode()
        return table

    def _of(self, token: int) -> bytes:
        if token < 0:
            raise ValueError(f"tokenizer: an id is {token}; allowed: at least 0")
        return self._bytes[token] if token < len(self._bytes) else b""


class Stream:
    """Text from ids as they come: whole characters only, in the end the text of all of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        """What became certain with this id; empty inside a character."""
        return self._decoder.decode(self._tokenizer.decode((token,)))

    def finish(self) -> str:
        """What is left where the ids end inside a character."""
        return self._decoder.decode(b"", final=True)


def _texts(value: Any) -> Iterator[str]:
    """The texts in a message, or in a list of them, without their keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _by_name(parts: Parts) -> dict[str, Any]:
    """Where a text begins and ends, by the well-known names of signs."""
    begin = next((parts.added[sign] for sign in BEGINNINGS if sign in parts.special), None)
    return {"bos": begin, "eos": tuple(parts.added[sign] for sign in ENDS if sign in parts.special)}
