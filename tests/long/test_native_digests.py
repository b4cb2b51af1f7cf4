"""One result from every compiler, architecture and instruction set: digests of all kernels, without Python between.

The library is compiled again by each compiler that is here, and for the other architecture, which runs under QEMU:
x86-64 in its baseline and AVX2 (QEMU up to 9 has no AVX-512), aarch64 in its baseline and NEON."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from samebits import native
from samebits.native import build, sources

DRIVER = Path(__file__).parent / "native" / "digests.cpp"
COMPILERS = tuple(f"g++-{number}" for number in range(11, 15)) + tuple(f"clang++-{number}" for number in range(15, 20))
HERE = platform.machine()
OTHER, DEBIAN = ("x86_64", "g++-x86-64-linux-gnu") if HERE == "aarch64" else ("aarch64", "g++-aarch64-linux-gnu")
CROSS, EMULATOR = f"{OTHER}-linux-gnu-g++", f"qemu-{OTHER}"

Run = Callable[..., str]


def driver(folder: Path, compiler: str) -> Path:
    path = folder / "digests"
    subprocess.run([compiler, "-O1", "-std=c++17", str(DRIVER), "-o", str(path), "-ldl"], check=True)
    return path


def runner(program: Path, library: Path, *emulator: str) -> Run:
    """Digests of an instruction set, and of one operator alone where it is named."""

    def run(*words: str) -> str:
        done = subprocess.run([*emulator, str(program), str(library), *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def one_result(run: Run, expected: str) -> list[str]:
    """The instruction sets, whose digests are all the expected ones."""
    sets = run().split()
    for instruction_set in sets:
        got = run(instruction_set)
        differing = [line for line, other in zip(got.splitlines(), expected.splitlines(), strict=True) if line != other]
        assert not differing, f"{instruction_set} parts from here: {differing}"
    return sets


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """This machine's own library, as installed."""
    return runner(driver(tmp_path_factory.mktemp("here"), "c++"), Path(native.library()._name))


@pytest.fixture(scope="module")
def expected(here: Run) -> str:
    return here("baseline")


def test_every_instruction_set_here(here: Run, expected: str) -> None:
    assert len(expected.splitlines()) > 70
    assert one_result(here, expected) == list(native.instruction_sets())


@pytest.mark.parametrize("compiler", COMPILERS)
def test_every_compiler(compiler: str, expected: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    library = build.compiled(tmp_path / "build", f"-DCMAKE_CXX_COMPILER={compiler}")
    assert one_result(runner(driver(tmp_path, compiler), library), expected) == list(native.instruction_sets())


def test_the_other_architecture(expected: str, tmp_path: Path) -> None:
    if shutil.which(CROSS) is None or shutil.which(EMULATOR) is None:
        pytest.skip(f"needs Debian's {DEBIAN} and qemu-user")
    processor = ("-DCMAKE_SYSTEM_NAME=Linux", f"-DCMAKE_SYSTEM_PROCESSOR={OTHER}")
    library = build.compiled(tmp_path / "build", f"-DCMAKE_CXX_COMPILER={CROSS}", *processor)
    emulator = (EMULATOR, "-cpu", "max", "-L", f"/usr/{OTHER}-linux-gnu")
    ran = one_result(runner(driver(tmp_path, CROSS), library, *emulator), expected)
    assert set(ran) >= ({"baseline", "avx2"} if OTHER == "x86_64" else {"baseline", "neon"})


def test_a_contracted_sum_is_seen(here: Run, tmp_path: Path) -> None:
    """Planted fault: one kernel compiled with leave to fuse products and sums gives digests of its own."""
    name = native.instruction_sets()[-1]
    flags = [flag for flag in sources.BIT_FLAGS if not flag.startswith("-ffp-contract")]
    includes = [f"-I{sources.PACKAGE / 'native' / 'include'}", f"-I{sources.PACKAGE}"]
    subprocess.run(
        [
            "c++",
            *flags,
            "-ffp-contract=fast",
            *sources.INSTRUCTION_SETS[HERE][name],
            *includes,
            f"-DSAMEBITS_ISA={name}",
            '-DSAMEBITS_SOURCE_DIGEST=""',
            '-DSAMEBITS_BUILD_DIGEST=""',
            '-DSAMEBITS_COMPILER=""',
            "-shared",
            "-fPIC",
            "-pthread",
            *map(str, sources.once_sources()),
            str(sources.PACKAGE / "ops" / "rmsnorm" / "cpu_kernel.cpp"),
            "-o",
            str(tmp_path / "contracted.so"),
        ],
        check=True,
    )
    contracted = runner(driver(tmp_path, "c++"), tmp_path / "contracted.so")
    assert contracted(name, "rmsnorm") != here(name, "rmsnorm")
