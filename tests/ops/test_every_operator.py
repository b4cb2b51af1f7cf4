"""What holds for every operator, derived from the declarations: whoever adds a folder gets these tests with it.

On the CPU: its reference bit for bit, launch numbers, poisoned and missing rows, gradients in float64, torch's own
checks of every registered operator that a call meets, and backends and dtypes that are refused in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.checker.targets import OPERATORS, import_function, specs
from samebits.contracts.language import Contract
from samebits.contracts.spec import Arguments, OperatorSpec
from samebits.contracts.standard_faults import other_bits_every_second_call, other_bits_for_other_launches
from samebits.native.launch_numbers import launching
from samebits.numerics.bits import compare


@dataclass(frozen=True)
class Subject:
    """A public function of an operator, with what its declaration says of it."""

    name: str
    function: Callable[..., Tensor]
    spec: OperatorSpec
    contract: Contract
    formats: tuple[str, ...]

    def domains(self) -> Iterator[Any]:
        """Those of its obligations, each once."""
        own = [each for each in self.contract.obligations.values() if self._is_mine(each.subject)]
        return (self.contract.domains[name] for name in sorted({each.domain for each in own}))

    def _is_mine(self, subject: str) -> bool:
        return self.contract.subjects[subject].spec == self.spec.name

    def shapes(self) -> list[tuple[int, ...]]:
        """The written shapes, smallest first."""
        return sorted({tuple(shape) for domain in self.domains() for shape in domain.shapes}, key=prod)

    def recipes(self) -> list[str]:
        return sorted({recipe for domain in self.domains() for recipe in (*domain.recipes, *domain.draw.recipes)})

    def gradient_arguments(self) -> list[str]:
        named = (*self.spec.row_arguments, *self.spec.shared_arguments) if self.spec.differentiable else ()
        return [name for name in named if name not in self.spec.without_gradient]


# A reference is slow, so it meets the smallest shapes; work is shared between threads where there is enough of it.
FEW, SHARED_WORK = 2, 200_000


def _subjects() -> Iterator[Subject]:
    for component in OPERATORS.components().values():
        contract = component.contract()
        for subject in contract.subjects.values():
            function = import_function(subject.object)
            if "cpu" in subject.orders:
                formats = tuple(subject.orders["cpu"])
                yield Subject(subject.spec, function, specs(component)[subject.spec], contract, formats)


def _takes(function: Callable[..., Any], option: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(each.name == option or each.kind is each.VAR_KEYWORD for each in parameters)


SUBJECTS = list(_subjects())
CHOOSING = [each for each in SUBJECTS if _takes(each.function, "backend")]
DIFFERENTIABLE = [each for each in CHOOSING if each.gradient_arguments()]
every = pytest.mark.parametrize("subject", CHOOSING, ids=lambda each: each.name)


def results(subject: Subject, arguments: Arguments, **options: Any) -> dict[str, Tensor]:
    """The output, and the gradient of every argument that has one."""
    wanted = subject.gradient_arguments()
    given = {name: value.detach().clone().requires_grad_(name in wanted) for name, value in arguments.items()}
    y = subject.function(*given.values(), **options)
    if not wanted:
        return {"output": y}
    dy = torch.linspace(0.5, 1.5, max(y.numel(), 1)).to(y.dtype)[: y.numel()].reshape(y.shape)
    return {
        "output": y.detach(),
        **dict(zip(wanted, torch.autograd.grad(y, [given[n] for n in wanted], dy), strict=True)),
    }


def same(found: dict[str, Tensor], expected: dict[str, Tensor], words: str) -> None:
    for name, value in expected.items():
        if value.is_floating_point():
            differs = compare(found[name], value)
            assert differs is None, f"{words} {name}: {differs}"
        else:
            assert torch.equal(found[name], value), f"{words} {name}"


def test_the_declarations_are_found() -> None:
    assert len({each.contract.contract for each in SUBJECTS}) == len(OPERATORS.components())
    assert len(CHOOSING) >= 20 and len(DIFFERENTIABLE) >= 14


@every
def test_it_equals_its_reference(subject: Subject) -> None:
    """cpu == reference, bit for bit, forward and backward: its recipes on its formats and smallest shapes, in turn."""
    shapes = subject.shapes()[:FEW]
    for number, recipe in enumerate(subject.recipes()):
        shape, format = shapes[-1 - number % len(shapes)], subject.formats[number % len(subject.formats)]
        arguments = subject.spec.make(shape, recipe, format, 1)
        words = f"{'x'.join(map(str, shape))} {recipe} {format}"
        same(results(subject, arguments), results(subject, arguments, backend="reference"), words)


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda each: each.name)
def test_launch_numbers_do_not_matter(subject: Subject) -> None:
    """Every number of threads and every instruction set, forward and backward, on the largest shape."""
    shape = [each for each in subject.shapes() if prod(each) <= SHARED_WORK][-1]
    same_at_every_launch(subject, subject.spec.make(shape, "normal", subject.formats[0], 2))


def same_at_every_launch(subject: Subject, arguments: Arguments) -> None:
    with launching(threads=1, instruction_set="baseline"):
        expected = results(subject, arguments)
    for numbers in subject.spec.launches("cpu", subject.formats[0]):
        with launching(**numbers):
            same(results(subject, arguments), expected, str(numbers))


@pytest.mark.parametrize("fault", [other_bits_for_other_launches, other_bits_every_second_call])
def test_other_bits_are_noticed(fault: Callable[..., Any]) -> None:
    """Planted faults: a launch, or the next call, decides the last bit."""
    honest = next(each for each in CHOOSING if each.gradient_arguments())
    faulty = replace(honest, function=fault(honest.function))
    with pytest.raises(AssertionError, match="output"):
        same_at_every_launch(faulty, faulty.spec.make(faulty.shapes()[0], "normal", "float32", 2))


@pytest.mark.parametrize("subject", DIFFERENTIABLE, ids=lambda each: each.name)
def test_its_gradients_are_those_of_its_formula(subject: Subject) -> None:
    """In float64 on the reference path, by finite differences along random directions."""
    made = subject.spec.make(subject.shapes()[0], "normal", "float32", 3)
    names = subject.gradient_arguments()
    given = {name: value.double() if value.is_floating_point() else value for name, value in made.items()}

    def function(*tensors: Tensor) -> Tensor:
        return subject.function(*({**given, **dict(zip(names, tensors, strict=True))}.values()), backend="reference")

    assert gradcheck(function, [given[name].clone().requires_grad_() for name in names], fast_mode=True)


class _Heard(TorchDispatchMode):
    """Every registered operator that a call meets, with its arguments as they were."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, tuple[Any, tuple[Any, ...]]] = {}

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator.namespace == "samebits":
            kept = tuple(each.detach().clone() if isinstance(each, Tensor) else each for each in args)
            self.calls.setdefault(str(operator), (operator, kept))
        return operator(*args, **(kwargs or {}))


@every
def test_torch_accepts_every_operator_that_it_calls(subject: Subject) -> None:
    """Schema, fake tensors, autograd and ahead-of-time dispatch, forward and backward."""
    shape = subject.shapes()[min(1, len(subject.shapes()) - 1)]
    with _Heard() as heard:
        results(subject, subject.spec.make(shape, "normal", "float32", 4))
    assert heard.calls
    for operator, arguments in heard.calls.values():
        checked = torch.library.opcheck(operator, arguments)
        assert set(checked.values()) == {"SUCCESS"}, f"{operator}: {checked}"


@every
def test_what_no_backend_takes_is_refused_in_one_line(subject: Subject) -> None:
    arguments = subject.spec.make(subject.shapes()[0], "normal", "float32", 5)
    wide = {name: value.double() if value.is_floating_point() else value for name, value in arguments.items()}
    whole = {name: value.int() if value.is_floating_point() else value for name, value in arguments.items()}
    for given, options, words in (
        (arguments, {"backend": "triton"}, "backend='triton' takes tensors on 'cuda', got one on 'cpu'"),
        (arguments, {"backend": "cublas"}, "unknown backend='cublas'; allowed: cpu, triton, reference"),
        (wide, {}, "has dtype float64; allowed"),
        (whole, {}, "has dtype int32; allowed"),
    ):
        with pytest.raises(ValueError, match=r"allowed|takes tensors") as refused:
            subject.function(*given.values(), **options)
        assert words in str(refused.value) and "\n" not in str(refused.value)
