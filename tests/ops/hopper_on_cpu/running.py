"""Runs a kernel of Gluon or Triton on the CPU: its Python functions, with what they call replaced.

`run` is all that tests need; an `Edit` plants a fault into the source of a function."""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import triton.language as tl
from tests.ops.hopper_on_cpu.finding import KERNEL, Unsupported
from tests.ops.hopper_on_cpu.global_memory import Matrix, Memory, Pointer
from tests.ops.hopper_on_cpu.hopper import Barriers, Copies, Products
from tests.ops.hopper_on_cpu.language import Language
from tests.ops.hopper_on_cpu.machine import Machine, Program, Strand
from tests.ops.hopper_on_cpu.values import Tensor, tensor_of
from triton.experimental.gluon.language._layouts import DistributedLayout, SharedLayout
from triton.runtime.jit import ConstexprFunction, JITFunction


@dataclass(frozen=True)
class Edit:
    """A change to the source of a kernel's function: one text, found once, for another of as many lines."""

    function: JITFunction[Any]
    old: str
    new: str

    def applied(self) -> FunctionType:
        original = self.function.fn
        lines, first = inspect.getsourcelines(original)
        source = textwrap.dedent("".join(lines))
        if source.count(self.old) != 1:
            raise ValueError(f"{original.__name__}: {self.old!r} is there {source.count(self.old)} times, not once")
        tree = ast.parse(source.replace(self.old, self.new))
        defined = tree.body[0]
        assert isinstance(defined, ast.FunctionDef)
        defined.decorator_list = []
        ast.increment_lineno(tree, first - 1)
        scope = dict(original.__globals__)
        exec(compile(tree, original.__code__.co_filename, "exec"), scope)
        made: FunctionType = scope[original.__name__]
        return made


class Namespace:
    """A module of Triton as a kernel sees it."""

    def __init__(self, translation: Translation, module: ModuleType) -> None:
        self._translation, self._module = translation, module

    def __getattr__(self, name: str) -> Any:
        return self._translation.of(getattr(self._module, name), f"{self._module.__name__}.{name}")


class Translation:
    """What kernels refer to, and what stands for it here."""

    def __init__(self, machine: Machine, grid: tuple[int, int, int], edits: Sequence[Edit]) -> None:
        self.language, barriers = Language(machine, grid), Barriers(machine)
        self.of_hopper = {"hopper": Products(machine), "mbarrier": barriers, "tma": Copies(machine, barriers)}
        self.edited = {edit.function: edit.applied() for edit in edits}
        self.functions: dict[FunctionType, FunctionType] = {}
        self.builtins = {
            **vars(builtins),
            "min": partial(self.extreme, builtins.min, self.language.minimum),
            "max": partial(self.extreme, builtins.max, self.language.maximum),
            "range": self.language.range,
        }

    @staticmethod
    def extreme(of_python: Callable[..., Any], of_two: Callable[..., Any], *given: Any) -> Any:
        """min or max, of tensors or of numbers known to the compiler."""
        if not any(isinstance(each, Tensor) for each in given):
            return of_python(*given)
        found, *others = given
        for each in others:
            found = of_two(found, each)
        return found

    def of(self, value: Any, name: str) -> Any:
        if isinstance(value, tl.constexpr):
            return value.value
        if isinstance(value, ModuleType):
            return Namespace(self, value) if value.__name__.partition(".")[0] == "triton" else value
        if isinstance(value, tl.dtype):
            return value
        home = str(getattr(value, "__module__", ""))
        if isinstance(value, JITFunction) and not home.startswith("triton."):
            return self.function(self.edited.get(value, value.fn))
        if home.startswith("triton.") and callable(value) and not self.is_plain(value):
            return self.builtin(home, name)
        return value

    @staticmethod
    def is_plain(value: Any) -> bool:
        """Layouts, and functions of constants, do here what they do everywhere."""
        is_layout = isinstance(value, type) and issubclass(value, DistributedLayout | SharedLayout)
        return is_layout or isinstance(value, ConstexprFunction)

    def builtin(self, home: str, name: str) -> Any:
        owner = self.of_hopper.get(home.rpartition(".")[2], self.language)
        found = getattr(owner, name.rpartition(".")[2], None)
        if found is None:
            raise Unsupported(name)
        return found

    def function(self, original: FunctionType) -> FunctionType:
        """The function with its globals replaced; they are looked up once, before its first call."""
        if original not in self.functions:
            scope: dict[str, Any] = {"__builtins__": self.builtins, KERNEL: True}
            made = FunctionType(original.__code__, scope, original.__name__, original.__defaults__)
            made.__kwdefaults__ = original.__kwdefaults__
            self.functions[original] = made
            for name in names_of(original.__code__):
                if name in original.__globals__:
                    scope[name] = self.of(original.__globals__[name], name)
        return self.functions[original]


def names_of(code: CodeType) -> set[str]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*(names_of(each) for each in inner))


def argument(parameter: inspect.Parameter, value: Any) -> Any:
    """A launch's argument as its kernel sees it."""
    annotation = str(parameter.annotation).rpartition(".")[2]
    if isinstance(value, torch.Tensor):
        return Pointer(Memory(parameter.name, value), torch.zeros((), dtype=torch.int64))
    if hasattr(value, "block_shape"):
        return Matrix(parameter.name, value)
    if value is None or annotation == "constexpr":
        return value
    return tensor_of(value, getattr(tl, annotation) if hasattr(tl, annotation) else None)


def run(
    kernel: JITFunction[Any],
    grid: int | tuple[int, ...],
    arguments: Sequence[Any],
    constants: dict[str, Any],
    *,
    seed: int = 0,
    warps: int = 4,
    edits: Sequence[Edit] = (),
) -> None:
    """Runs a kernel over a grid, as a launch on a GPU would be given; what it does wrong is raised as a `Finding`.

    Arguments in order: tensors of torch, tensor descriptors (of Gluon, Triton or samebits), numbers, None. Constants by
    name. A seed decides who runs when, and when copies and products finish."""
    sizes = (grid,) if isinstance(grid, int) else grid
    x, y, z = (*sizes, 1, 1, 1)[:3]
    machine = Machine(seed)
    translation = Translation(machine, (x, y, z), edits)
    function = translation.function(translation.edited.get(kernel, kernel.fn))
    parameters = [each for each in inspect.signature(kernel.fn).parameters.values() if each.name not in constants]
    given = [argument(parameter, value) for parameter, value in zip(parameters, arguments, strict=True)]

    def body(program: Program) -> None:
        function(*given, **constants)
        program.end(machine.strand.known)

    for at in product(range(x), range(y), range(z)):
        program = Program(at)
        machine.add(Strand(program.name, program, partial(body, program), warps))
    if machine.strands:
        machine.run()
