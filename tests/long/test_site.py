"""The documents as a site: built strictly, every page in the navigation, every public name in the reference."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.repository.documents import PROJECT

READERS = ("rl_engineer", "serving_engineer", "kernel_author", "evaluator", "curious_reader")


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [*command, "--site-dir", str(site)], capture_output=True, text=True, env=environment, timeout=300
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = build(PROJECT / "mkdocs.yml", folder)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def made() -> ModuleType:
    specification = importlib.util.spec_from_file_location("pages_made", PROJECT / "docs" / "pages_made.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def test_every_page_is_built(site: Path) -> None:
    written = {page.relative_to(PROJECT / "docs").with_suffix(".html") for page in (PROJECT / "docs").rglob("*.md")}
    assert all((site / page).is_file() for page in written)
    assert {page.stem for page in (site / "tutorials").iterdir()} == set(READERS)
    assert {page.stem for page in (site / "promises").iterdir()} == {
        page.stem for page in (PROJECT / "docs" / "promises").iterdir()
    }


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    pages = made()
    for package, beside in pages.API.items():
        text = (site / "api" / f"{package.rpartition('.')[2]}.html").read_text()
        names = [name for module in (package, *beside) for name in pages.public(module)]
        assert names and [name for name in names if f'id="{name}"' not in text] == []
    assert "samebits.ops.matmul.matmul" in pages.public("samebits.ops")


def test_pictures_and_records_are_those_of_now(site: Path) -> None:
    text = (site / "how_it_works.html").read_text()
    assert all(f'src="pictures/{name}.svg"' in text for name in made().PICTURES)
    records = sorted(each.name for each in (PROJECT / "benchmarks" / "results").glob("*.json"))
    found = set(re.findall(r'href="benchmarks/results/([^"]+)"', (site / "benchmarks.html").read_text()))
    assert sorted(found) == records == sorted(each.name for each in (site / "benchmarks" / "results").iterdir())


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """Read without a network: no script, style, font or image of another host."""
    loaded = re.compile(
        r'<(?:script|img|iframe)[^>]*\bsrc="(https?:[^"]+)"|<link[^>]*rel="stylesheet"[^>]*href="(https?:[^"]+)"'
    )
    for page in site.rglob("*.html"):
        assert loaded.findall(page.read_text()) == [], page.name


@pytest.mark.parametrize(
    ("text", "words"),
    [("[far](gone.md) [near](#away)", ("'gone.md'", "'#away'")), ("::: gone.function", ("gone.function",))],
    ids=["links", "name"],
)
def test_a_page_that_is_not_true_is_refused(text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """Planted faults, in a small site with the same settings."""
    settings = (PROJECT / "mkdocs.yml").read_text()
    settings = re.sub(r"(?ms)^nav:.*|^hooks:.*?$|^exclude_docs:.*?(?=^\w)", "", settings)
    for path in ("src", "docs/docstrings_plain.py"):
        settings = settings.replace(f"[{path}]", f"[{PROJECT / path}]")
    (tmp_path / "mkdocs.yml").write_text(settings)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# A page\n\n{text}\n")
    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    said = built.stdout + built.stderr
    assert built.returncode != 0 and all(each in said for each in words), said
