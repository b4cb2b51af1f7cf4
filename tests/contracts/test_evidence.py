"""Everything that decides a verdict is noticed when it changes, by the right backend and with a line that says so.

A copy of the package is changed, one thing a row; receipts of softmax on the CPU and on Triton are held against it.
The table is printed: `pytest -s tests/contracts/test_evidence.py`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.contracts.evidence import made_at, receipts_of

from samebits import native
from samebits.checker import environment
from samebits.checker.present import Present
from samebits.checker.proving import tasks
from samebits.checker.replaying import candidates, replay, sampled
from samebits.checker.targets import OPERATORS
from samebits.contracts import registry
from samebits.contracts.receipts import ELSEWHERE, FALSE, FRESH, STALE, Receipt, compared
from samebits.contracts.registry import Component, components
from samebits.contracts.store import Store
from samebits.native import sources
from samebits.records.shipped import PACKAGE

CHUNK = "SM-OB104"
"""An obligation that checker/promises/rows.py judges."""
REPEAT = "SM-OB101"
"""One that is judged in a fresh process too, which could import every operator."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy of the package whose files may be changed, and receipts of one obligation made before."""

    package: Path
    component: Component
    receipts: dict[str, Receipt]
    patch: pytest.MonkeyPatch

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.package / file
        text = path.read_text()
        assert old in text, f"{file} has no {old!r} to change"
        path.write_text(text.replace(old, new, 1))
        registry._loaded.cache_clear()

    def standings(self) -> dict[str, tuple[str, str]]:
        """Backend to how its receipt stands now, and why."""
        present = Present({self.component.name: self.component}, self.package)
        now = {backend: compared(each, present.of(each)) for backend, each in self.receipts.items()}
        return {backend: (each.standing, "; ".join(each.reasons)) for backend, each in now.items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "samebits"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.so", "model", "infer", "train"))
    return folder


@pytest.fixture
def copied(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Copied]:
    package = tmp_path / "samebits"
    shutil.copytree(original, package)
    monkeypatch.setattr(environment, "gpu", lambda: "NVIDIA H200 (compute capability 9.0)")
    component = components(package / "ops", "samebits.ops")["softmax"]
    present = Present({"softmax": component}, package)
    yield Copied(package, component, made(component, present, CHUNK), monkeypatch)


def made(component: Component, present: Present, obligation: str) -> dict[str, Receipt]:
    """Backend to receipt."""
    listed = [task for task in tasks(component, (2,)) if task.name == obligation]
    receipts = {each.backend: each for task in listed for each in receipts_of(task, present)}
    assert set(receipts) == {"cpu", "triton"}
    return receipts


def other_version(package: str) -> Callable[[Copied], None]:
    known = environment.installed
    return lambda copied: copied.patch.setattr(
        environment, "installed", lambda name: "9.9" if name == package else known(name)
    )


def other_flag(copied: Copied) -> None:
    flags = tuple(each.replace("contract=off", "contract=fast") for each in sources.BIT_FLAGS)
    assert flags != sources.BIT_FLAGS
    copied.patch.setattr(sources, "BIT_FLAGS", flags)


# A macro that is defined only where the library is compiled for this processor, and one that never is there.
HERE_AND_NOT = {"aarch64": ("__aarch64__", "__x86_64__"), "x86-64": ("__x86_64__", "SAMEBITS_NEON")}


def guarded(file: str, *, here: bool) -> Callable[[Copied], None]:
    """A line in C++ that only this architecture's compiler is given, or only another's."""
    macro = HERE_AND_NOT[environment.architecture()][0 if here else 1]
    return edited(file, "#include", f"#if defined({macro})\n#define EXTRA 1\n#endif\n#include")


def other_machine(copied: Copied) -> None:
    copied.patch.setattr(environment, "processor", lambda: "Another 9000")
    copied.patch.setattr(environment, "gpu", lambda: "NVIDIA B300 (compute capability 10.3)")


def edited(file: str, old: str, new: str) -> Callable[[Copied], None]:
    return lambda copied: copied.edit(file, old, new)


# What changed: how, and how the receipts of the CPU and of Triton stand then, with words of the line that says so.
SAME = (FRESH, "")
ROWS: dict[str, tuple[Callable[[Copied], None], tuple[str, str], tuple[str, str]]] = {
    "nothing": (lambda copied: None, SAME, SAME),
    "a comment in C++": (edited("ops/softmax/cpu_kernel.cpp", "#include", "// a comment\n#include"), SAME, SAME),
    "a docstring of a check": (edited("checker/promises/rows.py", '"""What', '"""Here is what'), SAME, SAME),
    "the promise's check": (
        edited("checker/promises/rows.py", "BUCKETS = (8, 16, 64)", "BUCKETS = (8,)"),
        (STALE, "promise: the check"),
        (STALE, "promise: the check"),
    ),
    "another promise's check": (
        edited("checker/promises/sums.py", "def micro(", "EXTRA = 1\n\n\ndef micro("),
        SAME,
        SAME,
    ),
    "a planted fault": (
        edited("contracts/standard_faults.py", "FEW_ROWS: Final = 2", "FEW_ROWS: Final = 3"),
        (STALE, "promise: "),
        (STALE, "promise: "),
    ),
    "-ffp-contract": (other_flag, (STALE, "flags: the compiler's flags changed"), SAME),
    "the compiler": (
        lambda copied: copied.patch.setattr(native, "compiler", lambda: "Clang 18.1"),
        (ELSEWHERE, "there, Clang 18.1 here"),
        SAME,
    ),
    "the library": (
        lambda copied: copied.patch.setattr(native, "library_digests", lambda: ("s", "0" * 64)),
        (ELSEWHERE, "library "),
        SAME,
    ),
    "a library that is behind its sources": (
        lambda copied: copied.patch.setattr(environment, "native_problem", lambda: "is stale"),
        (ELSEWHERE, "instruction sets "),
        SAME,
    ),
    "thread code": (
        edited("native/threads.cpp", "#include", "#define EXTRA 1\n#include"),
        (STALE, "headers: shared C++ or thread code changed"),
        SAME,
    ),
    "a shared header": (
        edited("ops/_cpu/rows.h", "#pragma once", "#pragma once\n#define EXTRA 1"),
        (STALE, "headers: "),
        SAME,
    ),
    "thread code of another architecture": (guarded("native/threads.cpp", here=False), SAME, SAME),
    "thread code of this architecture": (guarded("native/threads.cpp", here=True), (STALE, "headers: "), SAME),
    "the kernel's C++ of another architecture": (guarded("ops/softmax/cpu_kernel.cpp", here=False), SAME, SAME),
    "the kernel's C++ of this architecture": (
        guarded("ops/softmax/cpu_kernel.cpp", here=True),
        (STALE, "kernel: the code of the kernel changed"),
        SAME,
    ),
    "the generator of inputs": (
        edited("numerics/recipes.py", "import numpy as np", "import numpy as np\n\nEXTRA = 1"),
        (STALE, "generator: the generator of inputs changed"),
        (STALE, "generator: "),
    ),
    "the driver of checks": (
        edited("checker/outcome.py", "def outcome(", "EXTRA = 1\n\n\ndef outcome("),
        (STALE, "checker: the checker changed"),
        (STALE, "checker: the checker changed"),
    ),
    "the kernel in C++": (
        edited("ops/softmax/cpu_kernel.cpp", "#include", "#define EXTRA 1\n#include"),
        (STALE, "kernel: the code of the kernel changed"),
        SAME,
    ),
    "the kernel in Triton": (
        edited("ops/softmax/triton_forward.py", "import triton", "import triton\n\nEXTRA = 1"),
        SAME,
        (STALE, "kernel: the code of the kernel changed"),
    ),
    "what both kernels are reached by": (
        edited("ops/softmax/__init__.py", "import torch", "import torch\n\nEXTRA = 1"),
        (STALE, "kernel: "),
        (STALE, "kernel: "),
    ),
    "another operator": (edited("ops/gelu/cpu_kernel.cpp", "#include", "#define EXTRA 1\n#include"), SAME, SAME),
    "the contract's words": (
        edited("ops/softmax/contract.yaml", "chunk: SM-D1", "chunk: SM-D2"),
        (STALE, "contract: the contract's words changed"),
        (STALE, "contract: "),
    ),
    "torch": (other_version("torch"), (ELSEWHERE, "torch "), (ELSEWHERE, "torch ")),
    "Triton": (other_version("triton"), SAME, (ELSEWHERE, "there, 9.9 here")),
    "the machine": (other_machine, (ELSEWHERE, "processor "), (ELSEWHERE, "gpu NVIDIA H200")),
}


@pytest.mark.parametrize("changed", ROWS)
def test_what_changes_is_noticed(copied: Copied, changed: str) -> None:
    change, cpu, triton = ROWS[changed]
    change(copied)
    found = copied.standings()
    for backend, (standing, words) in (("cpu", cpu), ("triton", triton)):
        print(f"{changed:<34} {backend:<7} {found[backend][0]:<16} {found[backend][1][:90]}")
        assert found[backend][0] == standing and words in found[backend][1], (backend, found[backend])


@pytest.mark.parametrize(
    ("file", "stale"),
    [
        ("simd_neon.h", {"aarch64"}),
        ("simd_avx2.h", {"x86-64"}),
        ("simd_avx512.h", {"x86-64"}),
        ("simd_baseline.h", {"aarch64", "x86-64"}),
    ],
)
def test_a_receipt_is_held_against_what_its_own_architecture_compiles(
    copied: Copied, file: str, stale: set[str]
) -> None:
    """Wherever the receipts are looked at: those of x86-64 on an ARM machine too."""
    present = Present({"softmax": copied.component}, copied.package)
    shown = {name: made_at(copied.receipts["cpu"], present, architecture=name) for name in ("aarch64", "x86-64")}
    copied.edit(f"native/include/samebits/{file}", "#pragma once", "#pragma once\n#define EXTRA 1")
    after = Present({"softmax": copied.component}, copied.package)
    assert {name for name, each in shown.items() if not compared(each, after.of(each)).counts} == stale


@pytest.mark.parametrize(
    ("change", "standing"),
    [
        (edited("ops/gelu/triton_kernel.py", "import triton", "import triton\n\nEXTRA = 1"), FRESH),
        (edited("ops/gelu/check.py", "import torch", "import torch\n\nEXTRA = 1"), FRESH),
        (edited("checker/fresh_process.py", "import json", "import json\n\nEXTRA = 1"), STALE),
    ],
    ids=["the kernel of another operator", "the check of another operator", "the fresh process"],
)
def test_what_runs_in_a_fresh_process(copied: Copied, change: Callable[[Copied], None], standing: str) -> None:
    receipts = made(copied.component, Present({"softmax": copied.component}, copied.package), REPEAT)
    change(copied)
    found = replace(copied, receipts=receipts).standings()
    assert {backend: each[0] for backend, each in found.items()} == {"cpu": standing, "triton": standing}, found


def test_a_changed_cmake_file_is_another_build(tmp_path: Path) -> None:
    recipe = tmp_path / "CMakeLists.txt"
    recipe.write_text("# words\nproject(a)\nset(B  c)\n")
    first = sources.build_digest(tmp_path)
    recipe.write_text("project(a)\n\nset(B c)\n")
    assert sources.build_digest(tmp_path) == first
    recipe.write_text("project(a)\nset(B d)\n")
    assert sources.build_digest(tmp_path) not in (first, None)
    assert sources.build_digest(tmp_path / "nowhere") is None


def test_a_forged_receipt_is_found_by_replaying_it(tmp_path: Path) -> None:
    """The forger recomputes the id, so that only a run can tell; the honest one beside it is reproduced."""
    home = OPERATORS.components()
    present = Present({"softmax": home["softmax"]})
    (task,) = (each for each in tasks(home["softmax"], (2,), "cpu") if each.name == "SM-OB10")
    (forged,) = receipts_of(task, present)
    store = Store(tmp_path)
    store.write([forged])
    (believed,) = store.read("softmax")
    beside = compared(believed, present.of(believed))
    assert beside.standing == FRESH, "nothing but a replay can tell"
    chosen = sampled(candidates(home, [beside]), "seed", None, 60)
    (found,) = replay(chosen, home, 60)
    print(f"forged, with an id that fits: {found}")
    assert found.verdict == FALSE and "in the receipt and" in found.detail
    # The honest one: what a run gives. A second run gives it again.
    from samebits.checker.proving import prove

    (honest,) = prove(task, home)
    assert isinstance(honest, Receipt)
    (again,) = replay(sampled(candidates(home, [compared(honest, present.of(honest))]), "s", None, 60), home, 60)
    assert again.verdict == "reproduced" and not again.detail
    # Planted fault: everything right but one bit of the outputs' digest.
    wrong = replace(honest, result="0" + honest.result[1:] if honest.result[0] != "0" else "1" + honest.result[1:])
    (caught,) = replay(sampled(candidates(home, [compared(wrong, present.of(wrong))]), "s", None, 60), home, 60)
    assert caught.verdict == FALSE and caught.detail.startswith("result is ")
