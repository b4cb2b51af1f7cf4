"""The pages can be read: contrast of every colour, names of pictures, what a keyboard scrolls, and a phone."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest
from tests.infer.browser import CHROMIUM, browser
from tests.train.small_run import small

from samebits.cli import graph_page
from samebits.cli.run_page import TEMPLATES, render
from samebits.contracts.graph import Graph, Node
from samebits.infer.server.app import PAGE
from samebits.train.running import run

# WCAG 2.1, 1.4.3, level AA, for text of any size.
LEAST = 4.5
PAGES = {**{name: TEMPLATES / f"{name}.html" for name in ("run", "graph", "demo")}, "chat": PAGE}
TEXT = ("ink", "soft", "bad", "good", "kept", "changed", "unjudged", "below", "above")
BARS = ("step", "block", "kernel")
INCLUDE = re.compile(r'{% include "([\w.]+)" %}')


def whole(path: Path) -> str:
    """A template with all that it includes."""
    return INCLUDE.sub(lambda found: whole(TEMPLATES / found[1]), path.read_text())


def palettes(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """Name to colour, light and dark."""
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6});", each)) for each in re.findall(r":root \{(.*?)\}", text, re.S)
    )
    return light, light | dark


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def unreadable(colours: dict[str, str]) -> list[tuple[str, str]]:
    """Text on what it may stand on."""
    grounds = [name for name in colours if name in ("paper", "card") or name.endswith("-wash")]
    pairs = [*product(TEXT, grounds), *(("ink", bar) for bar in BARS)]
    return [
        (one, on) for one, on in pairs if {one, on} <= colours.keys() and contrast(colours[one], colours[on]) < LEAST
    ]


def test_contrast_is_that_of_the_standard() -> None:
    """Its own examples: grey #767676 is the lightest that white can carry."""
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") >= LEAST > contrast("#777777", "#ffffff")


@pytest.mark.parametrize("page", PAGES)
def test_every_text_has_contrast_in_both_themes(page: str) -> None:
    for colours in palettes(PAGES[page].read_text()):
        assert {"paper", "card", "ink", "soft"} <= colours.keys() and unreadable(colours) == []
        # Planted: the soft text as pale as a line.
        assert ("soft", "card") in unreadable(colours | {"soft": colours["line"]})


@pytest.mark.parametrize("page", PAGES)
def test_every_colour_that_is_used_is_one(page: str) -> None:
    text = whole(PAGES[page])
    assert set(re.findall(r"var\(--([\w-]+)", text)) <= set(re.findall(r"--([\w-]+):", text))
    # Paper is white: a browser that prints must not come to the dark colours.
    assert page == "chat" or (
        text.count("prefers-color-scheme") == text.count("@media screen and (prefers-color-scheme")
    )


def unnamed(page: str) -> list[str]:
    """Pictures without a name, and regions to scroll in that no key comes to."""
    pictures = re.findall(r"<svg[^>]*>(?!\s*<title>)", page)
    regions = re.findall(r'<div class="[^"]*\bscroll\b[^>]*>', page)
    return [
        *(each for each in pictures if not re.search(r'role="(img|group)" aria-label="[^"]+"', each)),
        *(each for each in regions if not re.search(r'tabindex="0" role="region" aria-label="[^"]+"', each)),
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    run(small(), folder, trace_steps=4)
    path = folder / "report.html"
    path.write_text(render(folder, with_evidence=True))
    return path


def test_pictures_have_names_and_a_keyboard_reaches_what_scrolls(page: Path) -> None:
    text = page.read_text()
    nodes = [Node(name=name, kind="bound", depends_on=below) for name, below in (("a", ()), ("b", ("a",)))]
    graph = graph_page.render(Graph(nodes))
    assert text.count("<svg") >= 8 and unnamed(text) == [] and unnamed(graph) == [] and unnamed(PAGE.read_text()) == []
    # Planted, one at a time.
    assert unnamed('<svg viewBox="0 0 1 1" role="img">') and unnamed('<div class="scroll">')
    # Boxes take the focus where a script answers to it, and nowhere else.
    assert graph.count('tabindex="0" role="img"') == 2 and 'tabindex="0" role="img"' not in text


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_sticks_out_and_nothing_is_loaded(page: Path, width: int, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as tab:
        tab.picture(tmp_path / "blank.png", width, 900)
        tab.open(page.as_uri())
        tab.until("document.readyState === 'complete' && document.querySelector('svg')")
        assert tab.value("innerWidth") == width
        assert tab.value("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        assert tab.value("performance.getEntriesByType('resource').length") == 0
        # Letters beside a curve keep their size on a phone.
        assert tab.value("parseFloat(getComputedStyle(document.querySelector('.plot .scale')).fontSize)") >= 12
        # Planted: one picture wider than the page.
        tab.value("document.querySelector('.card').style.width = '200vw'")
        assert tab.value("document.documentElement.scrollWidth - document.documentElement.clientWidth") > 0
