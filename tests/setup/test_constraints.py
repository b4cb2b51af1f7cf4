"""Every pin of constraints.txt has a wheel for a fresh Debian 12, on x86-64 and on aarch64; nothing is built there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.setup.index import PLATFORMS, File, Platform, files, has_wheel, index, listed, pins, without_wheel

ROOT = Path(__file__).resolve().parents[2]
PINS = pins(ROOT / "constraints.txt")
# No wheel of it runs with glibc 2.36 on aarch64; its source wants a CMake that Debian 12 has not.
PLANTED = {"z3-solver": "5.4.0.0"}


@pytest.fixture(scope="module")
def offered() -> dict[str, list[File]]:
    """torch is looked for like the others: where pip's own configuration names a build for CPUs, that is one more."""
    try:
        return files(PINS)
    except OSError as error:
        pytest.skip(f"could not be judged: {index()} cannot be reached: {error}")


@pytest.mark.parametrize("platform", PLATFORMS, ids=str)
def test_every_pin_has_a_wheel(platform: Platform, offered: dict[str, list[File]]) -> None:
    assert without_wheel(PINS, offered, platform) == []


@pytest.mark.parametrize("python", [(3, 11), (3, 12)], ids=str)
def test_a_pin_without_a_wheel_is_found(python: tuple[int, int], offered: dict[str, list[File]]) -> None:
    """Planted fault: the version that stopped fresh machines."""
    assert any("5.4.0.0" in file.name for file in offered["z3-solver"])
    assert without_wheel(PLANTED, offered, Platform("aarch64", python)) == ["z3-solver==5.4.0.0"]


@pytest.mark.parametrize(
    ("file", "runs"),
    [
        (File("a-1.0-py3-none-any.whl"), True),
        (File("a-1.0-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl"), True),
        (File("a-1.0-cp38-abi3-manylinux_2_36_aarch64.whl", ">=3.8"), True),
        (File("a-1.0-cp311-cp311-manylinux_2_37_aarch64.whl"), False),
        (File("a-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"), False),
        (File("a-1.0-cp311-cp311-musllinux_1_2_aarch64.whl"), False),
        (File("a-1.0-cp312-cp312-manylinux_2_17_aarch64.whl"), False),
        (File("a-1.1-py3-none-any.whl"), False),
        (File("a-1.0-py3-none-any.whl", ">=3.12"), False),
        (File("a-1.0.tar.gz"), False),
    ],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_what_a_wheel_runs_on(file: File, runs: bool) -> None:
    assert has_wheel([file], "1.0", Platform("aarch64", (3, 11))) is runs


def test_both_forms_of_a_page_are_read() -> None:
    name = "a-1.0-py3-none-any.whl"
    older = f'<body><a href="x" data-requires-python="&gt;=3.8">{name}</a><br/><a href="y">a-1.0.tar.gz</a></body>'
    newer = f'{{"files": [{{"filename": "{name}", "requires-python": ">=3.8"}}, {{"filename": "a-1.0.tar.gz"}}]}}'
    both = [listed(older, "text/html"), listed(newer, "application/vnd.pypi.simple.v1+json")]
    assert both == [[File(name, ">=3.8"), File("a-1.0.tar.gz")]] * 2


def test_make_installs_wheels_only() -> None:
    """Every install but that of samebits itself, which is compiled here, goes by the one line that says so."""
    text = (ROOT / "Makefile").read_text()
    assert "INSTALL := $(BIN)/pip install --quiet --only-binary :all: --constraint constraints.txt" in text
    others = [line for line in re.findall(r".*pip install.*", text) if not line.startswith("INSTALL :=")]
    assert len(others) == 1 and "--no-build-isolation --editable ." in others[0]
