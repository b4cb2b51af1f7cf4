"""Where two runs of one model part: the first module whose output rows differ, and the first operation inside it.

Modules are watched by forward hooks, operations by a dispatch mode that is on only while that module runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from samebits.checker.model_forms import Call, Form, run
from samebits.invariant.harmless import VIEWS
from samebits.numerics.bits import FORMATS, format_of, same_bits

# What a module or operation gave for the sequence's tokens, call by call.
Rows = list[Tensor]
# (name, how often it was met before) to rows.
Operations = dict[tuple[str, int], Rows]


def parting(model: nn.Module, left: Form, right: Form, around: Callable[[], Any]) -> str:
    """ "model.layers.0.mlp (aten.silu.default)", or "" where no module's output differs. `around` gives the setting."""
    sides = [_watch_modules(model, form, around) for form in (left, right)]
    # A child's hook runs before its parent's: the first that differs is the innermost.
    path = next((path for path, rows in sides[0].after.items() if _differ(rows, sides[1].after.get(path))), None)
    if path is None:
        return ""
    if path and _differ(sides[0].before.get(path, []), sides[1].before.get(path)):
        path = path.rpartition(".")[0]  # what came in differed already: the module around it made the difference
    name = _cause(*(_watch_operations(model, path, form, around) for form in (left, right)))
    return f"{path or type(model).__name__}{f' ({name})' if name else ''}"


def _cause(left: Operations, right: Operations) -> str:
    """The first operation whose rows differ. A view cannot have made the difference: then it is the last before it that
    only one of the runs has."""
    ordered = list(right)
    place = next((i for i, key in enumerate(ordered) if _differ(left.get(key, []), right[key])), len(ordered))
    if place < len(ordered) and _plain(ordered[place]) not in VIEWS:
        return ordered[place][0]
    extra = [key for key in ordered[:place] if key not in left and _plain(key) not in VIEWS]
    return f"{extra[-1][0]}, in one run only" if extra else ""


def _plain(key: tuple[str, int]) -> str:
    """aten.mul.Tensor as mul."""
    return key[0].split(".")[1]


def _differ(left: Rows, right: Rows | None) -> bool:
    """Whether the sequence's rows, joined over calls, have other bits. What has another size cannot be compared."""
    if not left or not right or len({each.shape[1] for each in (*left, *right)}) > 1:
        return False
    whole, other = torch.cat(left), torch.cat(right)
    return whole.shape == other.shape and not same_bits(whole, other)


def rows_of(value: object, call: Call) -> Tensor | None:
    """The sequence's tokens of a tensor that has them on its axes, as (tokens, the rest); None where it has none.

    (batch, length, ...), (batch, heads, length, ...), (batch * length, ...), and the same with a batch of 1."""
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    if not isinstance(value, Tensor) or format_of(value) not in FORMATS or value.dim() < 2:
        return None
    B, S = call.ids.shape
    tokens = slice(call.start, call.stop)
    shape, length = value.shape, call.stop - call.start
    if shape[0] == B * S and (S > 1 or value.dim() == 2):
        value = value[call.row * S : (call.row + 1) * S][tokens]
    elif shape[0] in (1, B) and shape[1] == S:
        value = value[call.row if shape[0] == B else 0, tokens]
    elif value.dim() == 4 and shape[0] in (1, B) and shape[2] == S:
        value = value[call.row if shape[0] == B else 0, :, tokens].transpose(0, 1)
    else:
        return None
    return value.detach().reshape(length, -1).clone()


@contextmanager
def _at_call(model: nn.Module, form: Form) -> Iterator[Callable[[], Call]]:
    """Says which of the form's calls is running."""
    count = 0

    def begin(*_: Any) -> None:
        nonlocal count
        count += 1

    handle = model.register_forward_pre_hook(begin)
    try:
        yield lambda: form.calls[count - 1]
    finally:
        handle.remove()


@dataclass(frozen=True, slots=True)
class _Modules:
    """Rows that came into each module and that came out, in the order in which modules first end."""

    before: dict[str, Rows]
    after: dict[str, Rows]


def _watch_modules(model: nn.Module, form: Form, around: Callable[[], Any]) -> _Modules:
    found = _Modules({}, {})
    with ExitStack() as stack:
        call = stack.enter_context(_at_call(model, form))
        for path, module in model.named_modules():

            def end(module: nn.Module, given: Any, named: Any, output: Any, path: str = path) -> None:
                output = output.get("logits") if isinstance(output, dict) else output
                for kept, value in ((found.before, [*given, *named.values()]), (found.after, output)):
                    rows = rows_of(value, call())
                    if rows is not None:
                        kept.setdefault(path, []).append(rows)

            stack.callback(module.register_forward_hook(end, with_kwargs=True).remove)
        with around():
            run(model, form, gradients=False)
    return found


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations and their rows."""

    def __init__(self, call: Call, found: Operations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._call, self._found = call, found
        self._met: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        rows = rows_of(result, self._call)
        kept = self._found.setdefault((str(func), self._met[str(func)]), [])
        kept += [] if rows is None else [rows]
        self._met[str(func)] += 1
        return result


def _watch_operations(model: nn.Module, path: str, form: Form, around: Callable[[], Any]) -> Operations:
    """The rows of every operation inside one module, over all its calls."""
    found: Operations = {}
    running: list[_Recorder] = []
    module = model.get_submodule(path)
    with ExitStack() as stack:
        call = stack.enter_context(_at_call(model, form))

        def begin(*_: Any) -> None:
            running.append(_Recorder(call(), found))
            running[-1].__enter__()  # type: ignore[no-untyped-call]

        def end(*_: Any) -> None:
            running.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]

        stack.callback(module.register_forward_pre_hook(begin).remove)
        stack.callback(module.register_forward_hook(end, always_call=True).remove)
        with around():
            run(model, form, gradients=False)
    return found
