"""What stands beside a tokenizer.json: the signs that begin and end a text, and the chat template.

Reads files of a folder in Hugging Face's layout; what each may say is checked here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from samebits.model.json_file import read_json
from samebits.model.template import Template
from samebits.model.tokenizer_file import Parts

SETTINGS: Final = "tokenizer_config.json"
GENERATION: Final = "generation_config.json"
SIGNS: Final = "special_tokens_map.json"
TEMPLATE_FILE: Final = "chat_template.jinja"


def sign_of(value: Any, parts: Parts, name: str) -> int | None:
    """The id of a sign in tokenizer_config.json, given as a text or as an object with its content."""
    content = value.get("content") if isinstance(value, dict) else value
    if content is None:
        return None
    if not isinstance(content, str) or content not in parts.added:
        raise ValueError(f"{name}: a special token is {content!r:.60}; allowed: one of the added tokens, or null")
    return parts.added[content]


def ends_of(folder: Path) -> tuple[int, ...]:
    """The ids at which a generation ends, one or several."""
    found = read_json(folder / GENERATION).get("eos_token_id")
    listed = found if isinstance(found, list) else [] if found is None else [found]
    if len(listed) > 64 or not all(type(each) is int for each in listed):
        raise ValueError(f"{folder / GENERATION}: eos_token_id is {found!r:.60}; allowed: ids, at most 64")
    return tuple(listed)


def template_of(settings: Mapping[str, Any], folder: Path) -> str | None:
    """The chat template: a text, the default one of several, or a file of its own."""
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    if found is None and (folder / TEMPLATE_FILE).is_file():
        with (folder / TEMPLATE_FILE).open("rb") as file:
            found = file.read(Template.LONGEST + 1).decode("utf-8", "replace")
    if found is not None and not isinstance(found, str):
        raise ValueError(f"{folder / SETTINGS}: chat_template is a {type(found).__name__}; allowed: a text")
    return found
