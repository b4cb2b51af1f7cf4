"""The page at / in a real browser: one prompt alone and among strangers, token by token, red where bits differ."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.infer.browser import CHROMIUM, browser
from tests.infer.serving import serving

from samebits.infer.server import answers
from samebits.infer.server.app import PAGE

LINK = "?prompt=Why%20is%20the%20sky%20blue%3F&tokens=12&strangers=4&seed=3"
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
ANSWERED = "['done', 'failed'].includes(document.body?.dataset.state)"
DATA = "({...document.body.dataset})"
VERDICT = "document.getElementById('verdict').textContent"
SHOWN = "getComputedStyle(document.getElementById('key-label')).display"
CELLS = (
    "[...document.querySelectorAll('#bits td')].map(each => each.className).filter(name => name && name !== 'place')"
)


@needs_chromium
def test_all_tokens_have_equal_bits(tmp_path: Path) -> None:
    with serving() as server, browser(tmp_path) as tab:
        tab.open(f"{server.url}/{LINK}")
        tab.until(ANSWERED)
        assert tab.value(DATA) == {"state": "done", "equal": "12", "total": "12"}
        assert tab.value(VERDICT) == "All 12 tokens have equal bits.beside 4 other requests"
        assert tab.value(CELLS) == ["same"] * 24 and tab.value(SHOWN) == "none"
        # Strangers ran beside it, and were let go of when it was done.
        after = server.settle()
        assert after["requests"] >= 6 and after["cancellations"] >= 1 and after["pages_used"] == 0


@needs_chromium
def test_one_other_bit_is_red(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the server says one wrong bit of one token when that prompt is answered again."""
    real, seen = answers.Heading.piece, list[str]()

    def piece(self: Any, *given: Any, **more: Any) -> dict[str, Any]:
        made = real(self, *given, **more)
        content = made["logprobs"]["content"][0]["samebits"]
        if seen and content["bits"] == seen[0]:
            content["bits"] = f"{int(seen[0], 16) ^ 1:08x}"
        seen.append(content["bits"])
        return made

    monkeypatch.setattr(answers.Heading, "piece", piece)
    with serving() as server, browser(tmp_path) as tab:
        tab.open(f"{server.url}/{LINK}")
        tab.until(ANSWERED)
        assert tab.value(DATA) == {"state": "done", "equal": "11", "total": "12"}
        assert tab.value(VERDICT).startswith("1 of 12 tokens have other bits.")
        assert tab.value(CELLS) == ["other"] * 2 + ["same"] * 22


@needs_chromium
def test_the_page_asks_for_the_key(tmp_path: Path) -> None:
    with serving(api_key="secret") as server, browser(tmp_path) as tab:
        tab.open(f"{server.url}/{LINK}")
        tab.until(f"document.readyState === 'complete' && ({SHOWN}) !== 'none'")
        assert tab.value(VERDICT) == "This server asks for an API key." and server.settle()["requests"] == 0
        tab.value("document.getElementById('key').value = 'wrong'; document.getElementById('go').click()")
        tab.until(ANSWERED)
        assert tab.value(VERDICT) == "That did not work.The API key is wrong."
        tab.value("document.getElementById('key').value = 'secret'; document.getElementById('go').click()")
        tab.until("document.body.dataset.state === 'done'")
        assert tab.value(DATA) == {"state": "done", "equal": "12", "total": "12"}


class _Names(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.loads += [value for name, value in attrs if name in ("src", "href") and value]


def test_the_page_loads_nothing_and_finds_what_it_names() -> None:
    text, names = PAGE.read_text(), _Names()
    names.feed(text)
    assert names.loads == ["data:,"] and not re.search(r"https?:|@import|url\(|innerHTML|eval\(", text)
    used = set(re.findall(r'by\("([\w-]+)"\)', text))
    assert used <= set(names.ids) and len(set(names.ids)) == len(names.ids)
