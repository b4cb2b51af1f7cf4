"""What a tokenizer.json may say: byte-level BPE that loses no text, and nothing that the library would do besides.

Reads the parsed JSON only; the library is handed what was checked here, so a setting not known here cannot act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MOST_TOKENS: Final = 2**20
MOST_MERGES: Final = 2**21
LONGEST_TOKEN: Final = 4096
# Added tokens become one pattern to search for, so there are fewer of them.
MOST_ADDED: Final = 2**13
LONGEST_ADDED: Final = 256
ADDED_IN_ALL: Final = 2**18

# Ways in which published tokenizers cut text before the merges. A pattern is code for a matcher that can run for
# ever, so only these are taken; each keeps every character.
PATTERNS: Final = {
    "llama3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+"
    ),
}


def _alphabet() -> dict[str, int]:
    """The character that stands for each byte in the words of byte-level BPE, as GPT-2 chose them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


BYTE_OF: Final = _alphabet()
LETTER_OF: Final = {byte: letter for letter, byte in BYTE_OF.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """A byte-level BPE: its words, merges and added tokens, and how text is cut before."""

    words: dict[str, int]
    """Made of the 256 letters of BYTE_OF; added tokens are not among them."""
    merges: tuple[tuple[str, str], ...]
    added: dict[str, int]
    """Tokens matched in the text as they stand."""
    special: frozenset[str]
    """Those of `added` that are signs, not text."""
    cuts: tuple[dict[str, Any], ...]
    """The pre-tokenizers, in the library's words."""
    ignore_merges: bool = False
    dropped: tuple[str, ...] = ()
    """What the file asks for and is not done, because text would be lost."""


def check(values: Mapping[str, Any], name: str = "tokenizer.json") -> Parts:
    """The parts of a parsed tokenizer.json; a ValueError of one line says what is not allowed in it."""
    for key in ("truncation", "padding"):
        if values.get(key) is not None:
            raise ValueError(f"{name}: {key} is set, which loses or adds text; allowed: null")
    model = _field(values, "model", dict, name)
    added, special = _added(values.get("added_tokens") or [], name)
    words = _words(model, name)
    _check_ids(words, added, name)
    words = {word: number for word, number in words.items() if word not in added}
    for word in words:
        if not BYTE_OF.keys() >= set(word):
            raise ValueError(f"{name}: the word {word[:60]!r} is not byte-level; allowed: byte-level characters")
    merges = _merges(model, words, name)
    cuts = _cuts(values.get("pre_tokenizer"), name)
    ignore = model.get("ignore_merges") or False
    if not isinstance(ignore, bool):
        raise ValueError(f"{name}: ignore_merges is {ignore!r}; allowed: true, false")
    dropped = _normalizer(values.get("normalizer"), name)
    return Parts(
        words=words, merges=merges, added=added, special=special, cuts=cuts, ignore_merges=ignore, dropped=dropped
    )


def _field(values: Mapping[str, Any], key: str, kind: type, name: str) -> Any:
    found = values.get(key)
    if not isinstance(found, kind):
        raise ValueError(f"{name}: {key} is a {type(found).__name__}; allowed: a {kind.__name__}")
    return found


def _words(model: Mapping[str, Any], name: str) -> dict[str, int]:
    kind = model.get("type", "BPE")
    if kind != "BPE":
        raise ValueError(f"{name}: the model's type is {kind!r}; allowed: 'BPE'")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(key):
            raise ValueError(f"{name}: {key} is {model[key]!r}; allowed: none")
    words: dict[str, int] = _field(model, "vocab", dict, name)
    if not 1 <= len(words) <= MOST_TOKENS:
        raise ValueError(f"{name}: has {len(words)} words; allowed: 1 to {MOST_TOKENS}")
    for word, number in words.items():
        if not 1 <= len(word) <= LONGEST_TOKEN:
            raise ValueError(f"{name}: the word {word[:60]!r} has {len(word)} letters; allowed: 1 to {LONGEST_TOKEN}")
        _check_id(word, number, name)
    return words


def _check_id(word: str, number: Any, name: str) -> None:
    if type(number) is not int or not 0 <= number < MOST_TOKENS:
        raise ValueError(f"{name}: the id of {word[:60]!r} is {number!r:.40}; allowed: 0 to {MOST_TOKENS - 1}")


def _added(listed: Any, name: str) -> tuple[dict[str, int], frozenset[str]]:
    if not isinstance(listed, list) or len(listed) > MOST_ADDED:
        raise ValueError(f"{name}: added_tokens must be a list of at most {MOST_ADDED}; allowed: a list of tokens")
    added: dict[str, int] = {}
    special: set[str] = set()
    for each in listed:
        content = each.get("content") if isinstance(each, dict) else None
        if not isinstance(content, str) or not 2 <= len(content) <= LONGEST_ADDED or not _encodable(content):
            raise ValueError(f"{name}: an added token is {each!r:.80}; allowed: content of 2 to {LONGEST_ADDED} signs")
        for flag in ("lstrip", "rstrip", "single_word"):
            if each.get(flag):
                raise ValueError(f"{name}: {flag} of the token {content[:60]!r} loses text; allowed: false")
        if content in added:
            raise ValueError(f"{name}: the added token {content[:60]!r} is there twice; allowed: once")
        _check_id(content, each.get("id"), name)
        added[content] = each["id"]
        if each.get("special"):
            special.add(content)
    size = sum(map(len, added))
    if size > ADDED_IN_ALL:
        raise ValueError(f"{name}: added tokens have {size} signs in all; allowed: at most {ADDED_IN_ALL}")
    return added, frozenset(special)


def _encodable(content: str) -> bool:
    return not any("\ud800" <= sign <= "\udfff" for sign in content)


def _check_ids(words: Mapping[str, int], added: Mapping[str, int], name: str) -> None:
    """One id, one token. A word may be an added token too, under its own id."""
    holder: dict[int, str] = {}
    for word, number in (*words.items(), *added.items()):
        other = holder.setdefault(number, word)
        if other != word:
            raise ValueError(f"{name}: {other[:60]!r} and {word[:60]!r} share the id {number}; allowed: an id each")
        if word in words and words[word] != number:
            raise ValueError(f"{name}: {word[:60]!r} has the ids {words[word]} and {number}; allowed: one")


def _merges(model: Mapping[str, Any], words: Mapping[str, int], name: str) -> tuple[tuple[str, str], ...]:
    listed = _field(model, "merges", list, name)
    if len(listed) > MOST_MERGES:
        raise ValueError(f"{name}: has {len(listed)} merges; allowed: at most {MOST_MERGES}")
    merges: list[tuple[str, str]] = []
    for each in listed:
        pair = each.split(" ") if isinstance(each, str) else each
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) for part in pair):
            raise ValueError(f"{name}: a merge is {each!r:.80}; allowed: two words")
        left, right = pair
        for part in (left, right, left + right):
            if part not in words:
                raise ValueError(f"{name}: a merge makes or takes {part[:60]!r}; allowed: words of the vocabulary")
        merges.append((left, right))
    return tuple(merges)


def _cuts(value: Any, name: str) -> tuple[dict[str, Any], ...]:
    """The pre-tokenizers that keep every character, byte-level last; others are refused."""
    steps: Sequence[Any] = [value]
    if isinstance(value, dict) and value.get("type") == "Sequence":
        steps = _field(value, "pretokenizers", list, name)
    cuts = [_cut(each, name) for each in steps[:8]]
    if len(steps) > 8 or [place for place, cut in enumerate(cuts) if cut["type"] == "ByteLevel"] != [len(cuts) - 1]:
        raise ValueError(f"{name}: pre_tokenizer has {len(steps)} steps; allowed: at most 8, ByteLevel the last")
    return tuple(cuts)


def _cut(step: Any, name: str) -> dict[str, Any]:
    kind = step.get("type") if isinstance(step, dict) else None
    if kind == "ByteLevel":
        if step.get("add_prefix_space"):
            raise ValueError(f"{name}: add_prefix_space is true, which adds text; allowed: false")
        return byte_level(step.get("use_regex") is not False)
    if kind == "Digits":
        return {"type": "Digits", "individual_digits": step.get("individual_digits") is True}
    if kind == "Split":
        pattern = step.get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        known = next((key for key, text in PATTERNS.items() if text == regex), None)
        if known is None or step.get("behavior") != "Isolated" or step.get("invert"):
            raise ValueError(
                f"{name}: splits by {regex!r:.60}; allowed: the patterns of {', '.join(PATTERNS)}, isolated"
            )
        return split(known)
    raise ValueError(f"{name}: a pre_tokenizer is {kind!r}; allowed: ByteLevel, Digits, Split, or a Sequence of these")


def byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": PATTERNS[pattern]}, "behavior": "Isolated", "invert": False}


def _normalizer(value: Any, name: str) -> tuple[str, ...]:
    """NFC, as in Qwen's files, is left out: text in that form has the same tokens without, other text its bytes."""
    if value is None:
        return ()
    kind = value.get("type") if isinstance(value, dict) else value
    if kind != "NFC":
        raise ValueError(
            f"{name}: normalizer is {kind!r:.60}, which loses text; allowed: null, or NFC, not carried out"
        )
    return ("NFC",)


def written(parts: Parts, *, bare: bool = False) -> dict[str, Any]:
    """The tokenizer.json of these parts. `bare`: without the added tokens, as text that holds none is encoded."""
    words = parts.words if bare else dict(sorted((parts.words | parts.added).items(), key=lambda item: item[1]))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": content, **flags, "special": content in parts.special}
        for content, number in sorted(parts.added.items(), key=lambda item: item[1])
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [] if bare else added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(parts.cuts)},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": parts.ignore_merges,
            "vocab": words,
            "merges": [list(each) for each in parts.merges],
        },
    }
