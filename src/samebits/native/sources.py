"""Which files and flags the native library is made of, and the digest that ties a built library to them.

Read by the build (which stamps the digest into the library) and by the loader (which refuses a stale one)."""

from __future__ import annotations

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent

# These decide bits: the compiler may fuse no multiply-add and reorder no sum.
BIT_FLAGS = ("-O3", "-std=c++17", "-ffp-contract=off", "-fno-fast-math", "-fno-unsafe-math-optimizations")
# By architecture, narrowest first; any other architecture has the baseline alone. The baseline is plain C++ everywhere.
INSTRUCTION_SETS: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "baseline": (),
        "avx2": ("-mavx2", "-mfma", "-mf16c"),
        "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c", "-mavx2"),
    },
    "aarch64": {
        "baseline": (),
        "neon": ("-DSAMEBITS_NEON",),  # every aarch64 CPU has it: only the code differs
    },
}


def once_sources() -> list[Path]:
    """Compiled once, for any CPU."""
    return sorted((PACKAGE / "native").glob("*.cpp"))


def kernel_sources() -> list[Path]:
    """Compiled once per instruction set: every file named like a kernel, so a new operator joins by existing."""
    return sorted([*PACKAGE.glob("numerics/**/*kernel.cpp"), *PACKAGE.glob("ops/*/cpu_kernel.cpp")])


def headers() -> list[Path]:
    return sorted(
        [*PACKAGE.glob("native/include/**/*.h"), *PACKAGE.glob("numerics/**/*.h"), *PACKAGE.glob("ops/**/*.h")]
    )


def source_digest() -> str | None:
    """SHA-256 over names, contents and flags; None where the package was installed without its sources."""
    files = [*once_sources(), *kernel_sources(), *headers()]
    if not once_sources():
        return None
    digest = hashlib.sha256(repr((BIT_FLAGS, INSTRUCTION_SETS)).encode())
    for file in files:
        digest.update(file.relative_to(PACKAGE).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def build_digest(project: Path = PACKAGE.parent.parent) -> str | None:
    """SHA-256 of how the library is built: the flags above and CMakeLists.txt without comments and layout.

    None where the package was installed without it; the library says what it was built with."""
    recipe = project / "CMakeLists.txt"
    if not recipe.is_file():
        return None
    lines = (" ".join(line.split()) for line in recipe.read_text().splitlines())
    told = [line for line in lines if line and not line.startswith("#")]
    return hashlib.sha256(repr((BIT_FLAGS, INSTRUCTION_SETS, told)).encode()).hexdigest()


def cmake_lists() -> str:
    """The lists above as CMake variables, so that flags and globs are written down once."""

    def joined(items: list[Path] | tuple[str, ...]) -> str:
        return ";".join(str(item) for item in items)

    lines = [
        f'set(SAMEBITS_ONCE "{joined(once_sources())}")',
        f'set(SAMEBITS_KERNELS "{joined(kernel_sources())}")',
        f'set(SAMEBITS_BIT_FLAGS "{joined(BIT_FLAGS)}")',
        f'set(SAMEBITS_DIGEST "{source_digest()}")',
        f'set(SAMEBITS_BUILD_DIGEST "{build_digest()}")',
    ]
    for architecture, sets in INSTRUCTION_SETS.items():
        lines.append(f'set(SAMEBITS_INSTRUCTION_SETS_{architecture} "{joined(tuple(sets))}")')
        lines += [f'set(SAMEBITS_FLAGS_{architecture}_{name} "{joined(flags)}")' for name, flags in sets.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(cmake_lists(), end="")
