"""The native floor: errors reach Python, every task runs, a forked child works, stale libraries are refused."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from samebits import native
from samebits.native import build, sources
from samebits.numerics.elementary import elementary, evaluate


def test_errors_reach_python() -> None:
    """Whatever is thrown in C++ arrives as a status and a text, never as a crash."""
    library = native.library()
    for how, text in ((1, "refused on purpose"), (2, "out of memory"), (3, "unknown failure")):
        assert library.samebits_fail(ctypes.c_int32(how)) == how
        assert library.samebits_last_error().decode() == text
    assert library.samebits_fail(ctypes.c_int32(0)) == 0


def test_a_wrong_call_is_one_line() -> None:
    values = np.zeros(3, np.float32)
    with pytest.raises(native.NativeError, match="elementary: threads must be at least 1, got 0"):
        elementary("exp", values, threads=0)
    with pytest.raises(ValueError, match="instruction_set='sse9' cannot run on this CPU; allowed: baseline"):
        elementary("exp", values, instruction_set="sse9")


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_every_task_runs(threads: int) -> None:
    values = np.linspace(-80, 80, 100_003, dtype=np.float32)
    assert np.array_equal(elementary("exp", values, threads=threads), evaluate("exp", values))


def test_two_python_threads_at_once() -> None:
    values = np.linspace(-80, 80, 200_001, dtype=np.float32)
    expected, wrong = elementary("exp", values), []

    def work() -> None:
        for _ in range(20):
            if not np.array_equal(elementary("exp", values, threads=2), expected):
                wrong.append(1)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_a_forked_child_works() -> None:
    """The child has no pool threads; it must start its own instead of waiting for ever."""
    values = np.linspace(-80, 80, 100_003, dtype=np.float32)
    expected = elementary("exp", values, threads=2)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(elementary("exp", values, threads=2), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_contraction_is_off() -> None:
    """The flags that decide bits are the ones the library was built with, and none of them relaxes arithmetic."""
    assert "-ffp-contract=off" in native.compiler()
    assert "-fno-fast-math" in native.compiler()
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations"} & set(native.compiler().split())


def test_a_stale_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: sources that changed after the build."""
    monkeypatch.setattr(native, "source_digest", lambda: "0" * 64)
    native.library.cache_clear()
    with pytest.raises(native.NativeError, match=r"is stale: built from .*, sources are 000000000000; rebuild with"):
        native.library()
    monkeypatch.undo()
    native.library.cache_clear()
    assert native.library()


def test_the_digest_covers_flags_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources.source_digest()
    monkeypatch.setattr(sources, "BIT_FLAGS", (*sources.BIT_FLAGS, "-ffp-contract=fast"))
    assert sources.source_digest() != before


def test_a_library_is_built_where_it_is_loaded_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editable install has it among the installed packages, before the folder of its sources."""
    apart, beside = tmp_path / "installed", tmp_path / "sources"
    for folder in (apart, beside):
        folder.mkdir()
    monkeypatch.setattr(native, "__path__", [str(apart), str(beside)])
    assert build.loaded_from() == sources.PACKAGE / "native"
    (beside / native.LIBRARY_NAME).touch()
    assert build.loaded_from() == beside
    (apart / native.LIBRARY_NAME).touch()
    assert build.loaded_from() == apart
