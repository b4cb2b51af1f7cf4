"""The demo: stock torch against samebits on the same inputs, and a page that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from samebits.cli import demonstration
from samebits.cli.demonstration import Demonstration, demonstrate
from samebits.cli.page import render


@pytest.fixture(scope="module")
def shown() -> Demonstration:
    """The demonstration on a few sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demonstration, "BATCHES", (2, 8))
        patch.setattr(demonstration, "LINEAR_SIZES", ((64, 64),))
        patch.setattr(demonstration, "NORM_SIZES", ((64,),))
        return demonstrate()


class Reader(HTMLParser):
    """Collects what a page would load, and checks that tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attributes if name in ("src", "href", "srcset", "action")]
        self.loads += [tag] if tag in ("script", "link", "iframe", "img") else []
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_samebits_keeps_every_bit_and_one_order(shown: Demonstration) -> None:
    ours = [sweep for sweep in shown.sweeps if sweep.subject.startswith("samebits.")]
    assert len(ours) == 4 and all(sweep.changed == 0 < sweep.compared for sweep in ours)
    assert shown.kept and len(shown.orders[1].groups) == 1


def test_stock_torch_changes_a_row_on_this_machine(shown: Demonstration) -> None:
    example = shown.example
    assert example is not None and example.subject == "torch.nn.functional.linear"
    assert example.alone.pattern != example.batched.pattern and len(example.alone.pattern) == 32
    assert shown.counterpart is not None and shown.counterpart.alone == shown.counterpart.batched
    assert len(shown.orders[0].groups) > 1


def test_the_page_loads_nothing_and_shows_both_patterns(shown: Demonstration) -> None:
    page = render(shown)
    reader = Reader()
    reader.feed(page)
    assert reader.loads == [] and reader.open == []
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"} and "url(" not in page and "@import" not in page
    assert shown.example is not None and shown.example.alone.hexadecimal in page
    assert page.count("<svg ") == sum(len(orders.groups) for orders in shown.orders)
    assert "<mark>" in page and "prefers-color-scheme: dark" in page and "width=device-width" in page
    assert "samebits check torch.nn.functional.linear --promise batch --shape" in page


def test_the_page_escapes_what_the_machine_says(shown: Demonstration) -> None:
    page = render(replace(shown, machine={"processor": "<script>alert(1)</script>"}))
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_a_machine_that_keeps_its_bits_gets_an_honest_page(shown: Demonstration) -> None:
    page = render(replace(shown, example=None, counterpart=None))
    assert "stock torch kept every row" in page and "<mark>" not in page


def test_bits_that_samebits_lost_would_be_a_failure(shown: Demonstration) -> None:
    """Planted: one changed row of ours."""
    changed = [replace(each, changed=1) if each.subject.startswith("samebits.") else each for each in shown.sweeps]
    assert not replace(shown, sweeps=tuple(changed)).kept


def test_the_command_writes_the_page(
    samebits: Callable[..., object], shown: Demonstration, monkeypatch: pytest.MonkeyPatch
) -> None:
    from samebits.cli.commands import demo

    monkeypatch.setattr(demo, "demonstrate", lambda _: shown)
    ran = samebits("demo")
    assert ran.code == 0 and "written: samebits_demo.html" in ran.out and Path("samebits_demo.html").exists()
    document = json.loads(samebits("demo", "--json", "--out", "other.html").out)
    assert document["page"] == "other.html" and document["samebits_keeps_its_bits"] is True
    failed = samebits("demo", "--out", "/no/such/folder/x.html")
    assert failed.code == 2 and failed.err.startswith("samebits: --out /no/such/folder/x.html: ")
