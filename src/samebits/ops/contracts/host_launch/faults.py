"""Planted faults of calls in C++: what is kept is taken for another call's, a question is deaf, facts are altered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from torch import Tensor

from samebits.ops.contracts.host_launch import recording
from samebits.ops.contracts.host_launch.compared import differing
from samebits.ops.contracts.host_launch.on_device import differing_on_device
from samebits.ops.contracts.host_launch.parameters import ADDRESS, DESCRIPTOR, VALUE, Parameter, bits_of
from samebits.ops.contracts.host_launch.recording import Facts, record

Change = Callable[[tuple[Parameter, ...], Sequence[Any]], tuple[Parameter, ...]]


def _altered(alter: Callable[[Facts, Sequence[Any]], Facts]) -> Callable[..., Any]:
    """A `record` whose facts are others; `alter` is told the arguments, too."""

    def changed(function: Any, names: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]) -> Any:
        result, facts = record(function, names, given, named)
        return result, alter(facts, (*given, *named.values())) if isinstance(facts, tuple) else facts

    return changed


def _with_parameters(change: Change) -> Callable[..., Any]:
    def alter(facts: Facts, given: Sequence[Any]) -> Facts:
        memories, launches, made = facts
        return memories, tuple((*heads, change(parameters, given)) for *heads, parameters in launches), made

    return _altered(alter)


def _swapped(parameters: tuple[Parameter, ...], _: Sequence[Any]) -> tuple[Parameter, ...]:
    first, second = [place for place, each in enumerate(parameters) if each[0] == VALUE][:2]
    order = list(parameters)
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def _exchanged(parameters: tuple[Parameter, ...], _: Sequence[Any]) -> tuple[Parameter, ...]:
    other = {0: 1, 1: 0}
    return tuple(
        (kind, other.get(source, source) if kind in (ADDRESS, DESCRIPTOR) else source, number, layout)
        for kind, source, number, layout in parameters
    )


def _fixed(parameters: tuple[Parameter, ...], given: Sequence[Any]) -> tuple[Parameter, ...]:
    """Arguments' addresses as they were when the call was recorded."""

    def fixed(each: Parameter) -> Parameter:
        kind, source, offset, _ = each
        if kind != ADDRESS or source >= len(given) or not isinstance(given[source], Tensor):
            return each
        return (VALUE, 0, given[source].data_ptr() + offset, None)

    return tuple(map(fixed, parameters))


def _other_number(parameters: tuple[Parameter, ...], given: Sequence[Any]) -> tuple[Parameter, ...]:
    """Another number for one that the caller gave; no size is touched, so that no memory is."""
    known = {bits_of(each) for each in given if isinstance(each, float)}
    return tuple(
        (kind, source, bits_of(2.0) if kind == VALUE and number in known else number, layout)
        for kind, source, number, layout in parameters
    )


def _results_exchanged(facts: Facts, _: Sequence[Any]) -> Facts:
    memories, launches, made = facts
    return memories, launches, made[::-1] if isinstance(made, tuple) else made


def _nothing_launched(facts: Facts, _: Sequence[Any]) -> Facts:
    memories, _launches, made = facts
    return memories, (), made


def _though_more(function: Any, names: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """What else was done is not looked at."""
    facts_of = recording.facts_of
    with patch.object(recording, "facts_of", lambda seen, *rest: facts_of(replace(seen, otherwise=[]), *rest)):
        return record(function, names, given, named)


_SWAPPED = _with_parameters(_swapped)
_EXCHANGED = _with_parameters(_exchanged)
_FIXED = _with_parameters(_fixed)
_OTHER_NUMBER = _with_parameters(_other_number)
_RESULTS_EXCHANGED = _altered(_results_exchanged)
_NOTHING_LAUNCHED = _altered(_nothing_launched)


def descriptor_by_address(parts: Tensor) -> Tensor:
    """A descriptor is used again for another layout at the same address."""
    return differing(parts, planted="descriptor by address")


def without_strides(parts: Tensor) -> Tensor:
    """A launch is kept by its sizes, whatever the strides are."""
    return differing(parts, planted="without strides")


def without_numbers(parts: Tensor) -> Tensor:
    """A launch is kept whatever the numbers are."""
    return differing(parts, planted="without numbers")


def without_alignment(parts: Tensor) -> Tensor:
    """A launch is kept whatever addresses are multiples of."""
    return differing(parts, planted="without alignment")


def on_another_stream(parts: Tensor) -> Tensor:
    """The launch does not wait for what the current stream does."""
    return differing(parts, other_stream=True)


def sizes_swapped(parts: Tensor) -> Tensor:
    """Two numbers change places."""
    return differing(parts, record=_SWAPPED)


def operands_exchanged(parts: Tensor) -> Tensor:
    """The first two arguments change places."""
    return differing(parts, record=_EXCHANGED)


def operand_where_it_was(parts: Tensor) -> Tensor:
    """Arguments are read where they were at the recorded call."""
    return differing(parts, record=_FIXED)


def launched_though_more(parts: Tensor) -> Tensor:
    """A call is launched that looks at its numbers first."""
    return differing(parts, record=_though_more)


def _deaf(question: str) -> Callable[[Tensor], Tensor]:
    return partial(differing, planted=question)


deaf_to_dispatch_mode = _deaf("dispatch mode")
deaf_to_function_mode = _deaf("function mode")
deaf_to_functorch = _deaf("functorch")
deaf_to_tracing = _deaf("tracing")
deaf_to_forward_ad = _deaf("forward AD")
deaf_to_profiler = _deaf("profiler")
deaf_to_other_keys = _deaf("other keys")
deaf_to_compiling = _deaf("compiling")
deaf_to_observer = _deaf("observed")
deaf_to_forced_launch = _deaf("forced launch")
deaf_to_launch_hook = _deaf("launch hook")
deaf_to_keys = _deaf("keys")
deaf_to_gradient = _deaf("gradient")


def another_number(parts: Tensor) -> Tensor:
    """On a GPU: an eps that nobody gave."""
    return differing_on_device(parts, record=_OTHER_NUMBER)


def results_exchanged(parts: Tensor) -> Tensor:
    """On a GPU: two results change places."""
    return differing_on_device(parts, record=_RESULTS_EXCHANGED)


def nothing_launched(parts: Tensor) -> Tensor:
    """On a GPU: memory is returned that nobody wrote."""
    return differing_on_device(parts, record=_NOTHING_LAUNCHED)


def looked_at_by_nobody(parts: Tensor) -> Tensor:
    """On a GPU: a call is launched that looks at its numbers first."""
    return differing_on_device(parts, record=_though_more)
