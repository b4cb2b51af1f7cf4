"""Operators whose calls on a GPU are launched in C++ are the operators: their signatures, bits, errors, and no more.

No GPU is needed: the stub's build of the C++ stands for the real one, CPU tensors for a GPU's."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import samebits
from samebits import ops
from samebits.cli.commands.contract_components import launch_by_python
from samebits.nn import Linear
from samebits.ops.contracts.host_launch import attaching, building, triton_calls

NAMES = [name for name in ops.__all__ if hasattr(triton_calls, name)]
ROWS = torch.ones(16, 64)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has needed the C++ so far."""
    monkeypatch.setattr(triton_calls, "_built", triton_calls._Built())


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU look like a GPU's."""
    monkeypatch.setattr(triton_calls, "_on_gpu", lambda *arguments: True)


class Counted:
    """In the place of what C++ makes of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.count = function, 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.count += 1
        return self.function(*given, **named)

    def counted(self) -> tuple[int, int]:
        return self.count, 0


def double(x: Any, *, by: int = 2) -> Any:
    """Of x."""
    return x * by


def test_the_functions_are_those_that_were_meant() -> None:
    wanted = "add_rmsnorm gelu layernorm linear log_softmax matmul rmsnorm softmax swiglu"
    assert wanted.split() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_function_looks_as_it_did(name: str) -> None:
    """To a reader, to `inspect` and to `pickle`."""
    now = getattr(triton_calls, name)
    before = now.__wrapped__
    assert before.__module__.startswith("samebits.ops.") and now.__module__ == triton_calls.__name__
    assert inspect.signature(now) == inspect.signature(before)
    assert (now.__name__, now.__doc__) == (before.__name__, before.__doc__)
    assert pickle.loads(pickle.dumps(now)) is now


def test_a_call_on_a_cpu_builds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "lacks", str)
    monkeypatch.setattr(building, "module", lambda: pytest.fail("something was built"))
    for _ in range(4):
        assert torch.equal(triton_calls.gelu(ROWS), ops.gelu(ROWS))
    assert triton_calls.state() == "no call on a GPU so far; the first one builds the C++ that launches such calls"


def test_what_a_build_would_lack_is_said_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert triton_calls.state() == (
        "no call on a GPU so far; C++ cannot launch any: no compiler 'no-such-compiler'; CXX names another"
    )
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(building, "driver_headers", lambda: Path("nowhere"))
    assert triton_calls.state() == "no call on a GPU so far; C++ cannot launch any: no cuda.h in nowhere"


def test_triton_is_not_loaded() -> None:
    code = """
import sys, torch, samebits as sb
assert "torch" in sys.modules
sb.launch_in_cpp()
sb.ops.linear(torch.ones(2, 8), torch.ones(3, 8))
assert "samebits.ops.contracts.host_launch.triton_calls" in sys.modules
print("triton" in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_where_nothing_can_be_built_python_launches_and_says_why(
    monkeypatch: pytest.MonkeyPatch, on_gpu: None, tmp_path: Any
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    call = triton_calls.in_cpp(ops.gelu)
    for _ in range(4):
        assert torch.equal(call(ROWS), ops.gelu(ROWS))
    state = triton_calls.state()
    assert state.startswith("calls on a GPU are launched by Python, slower, with the same bits: ")
    assert "no-such-compiler" in state and "\n" not in state


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, on_gpu: None, tmp_path: Any) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert triton_calls.in_cpp(double)(3) == 6
    assert "host_launch: false cannot build host_launch.cpp" in triton_calls.state()
    assert list(tmp_path.rglob("*.so")) == []


def test_threads_that_race_build_once(monkeypatch: pytest.MonkeyPatch, on_gpu: None) -> None:
    built = []

    def attached() -> Any:
        built.append(1)
        time.sleep(0.2)
        return SimpleNamespace()

    monkeypatch.setattr(attaching, "attached", attached)
    monkeypatch.setattr(attaching, "calls_of", lambda module, function: Counted(function))
    call = triton_calls.in_cpp(double)
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(call, range(8))) == [2 * each for each in range(8)]
    assert len(built) == 1
    assert triton_calls.state() == "calls on a GPU are launched in C++: 8 were, 0 by Python"


def test_arguments_and_errors_are_the_functions(monkeypatch: pytest.MonkeyPatch, on_gpu: None) -> None:
    monkeypatch.setattr(attaching, "attached", lambda: SimpleNamespace())
    monkeypatch.setattr(attaching, "calls_of", lambda module, function: Counted(function))
    call = triton_calls.in_cpp(double)
    assert call(3, by=5) == 15
    with pytest.raises(TypeError, match=r"^double\(\) got an unexpected keyword argument 'to'$"):
        call(3, to=5)


def test_a_compiled_model_sees_the_function_itself() -> None:
    compiled = torch.compile(triton_calls.gelu, fullgraph=True, backend="eager")
    assert torch.equal(compiled(ROWS), ops.gelu(ROWS))


def test_a_gradient_flows() -> None:
    x = ROWS.clone().requires_grad_()
    triton_calls.gelu(x).sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


@pytest.fixture
def switched() -> Iterator[None]:
    """As torch for CUDA has it, and put back as it was: whatever torch is installed here."""
    before = {name: getattr(ops, name) for name in ops.__all__}
    samebits.launch_in_cpp()
    yield
    for name, function in before.items():
        setattr(ops, name, function)


def test_the_operators_of_a_process_are_exchanged(monkeypatch: pytest.MonkeyPatch, switched: None) -> None:
    """All that names them by way of `samebits.ops` when it calls them."""
    assert all(getattr(ops, name) is getattr(triton_calls, name) for name in NAMES)
    layer, called = Linear(64, 32), []
    monkeypatch.setattr(triton_calls, "_on_gpu", lambda *arguments: called.append(arguments) or False)
    layer(ROWS)
    assert len(called) == 1 and called[0][0] is ROWS


def test_and_put_back(switched: None) -> None:
    samebits.launch_in_cpp()
    assert ops.linear is triton_calls.linear
    samebits.launch_in_cpp(mode=False)
    plain = [ops.linear, ops.rmsnorm, ops.gelu]
    assert [each.__module__ for each in plain] == [f"samebits.ops.{name}" for name in ("matmul", "rmsnorm", "gelu")]


def test_what_a_contract_judges_is_launched_by_python(monkeypatch: pytest.MonkeyPatch, switched: None) -> None:
    """In this process, and in those that it starts."""
    monkeypatch.setenv(samebits.LAUNCH_VARIABLE, "1")
    launch_by_python()
    assert (os.environ[samebits.LAUNCH_VARIABLE], ops.linear.__module__) == ("0", "samebits.ops.matmul")


WAYS = (
    "from samebits.ops import linear",
    "import samebits.ops; linear = samebits.ops.linear",
    "from samebits import ops; linear = ops.linear",
    "import samebits as sb; linear = sb.ops.linear",
    "import samebits.nn; from samebits.nn import layers; linear = layers.ops.linear",
)
# Every way in a process of its own, in which torch is there and nothing of samebits.
IMPORTS = """
import os, sys, torch
torch.version.cuda = {cuda!r}
for way in {ways!r}:
    if os.fork() == 0:
        exec(way)
        from samebits.ops.matmul import linear as plain
        print(linear is plain, plain.__module__, "triton" in sys.modules, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize(("cuda", "variable"), [(None, "1"), ("13.0", "1"), ("13.0", "0")])
def test_however_it_is_imported_it_is_the_quick_one_where_torch_has_cuda(cuda: str | None, variable: str) -> None:
    """Unless the environment says no. The function of an operator's own package is the plain one."""
    pytest.importorskip("triton")
    code, asked = IMPORTS.format(cuda=cuda, ways=WAYS), {**os.environ, samebits.LAUNCH_VARIABLE: variable}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=asked)
    plain = cuda is None or variable == "0"
    assert done.stdout.splitlines() == [f"{plain} samebits.ops.matmul False"] * len(WAYS)
