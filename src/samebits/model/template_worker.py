"""The process that renders chat templates: a request a line in, an answer a line out, under limits of the kernel.

A template is a program that someone else wrote. Jinja's sandbox keeps it from Python's insides; steps are counted here,
so that most refusals are the same on every machine; what no count sees, one call on nested data say, is ended by
the limits of the process. Started by path: imports the standard library and Jinja, nothing of samebits."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# What a rendering may spend: a sign of text costs 1, an item of a list STEP, a call CALL.
MOST_WORK: Final = 2**24
STEP: Final = 16
CALL: Final = 128
LARGEST_NUMBER: Final = 2**63
LONGEST_OUTPUT: Final = 2**20
# Of the process: the processor's seconds for a template and for a rendering, bytes beyond those of the start, and bytes
# that may stay after an answer.
COMPILE_SECONDS: Final = 1.0
RENDER_SECONDS: Final = 0.25
MEMORY_BYTES: Final = 128 << 20
KEPT_BYTES: Final = 32 << 20
FILTERS: Final = (
    "trim",
    "length",
    "count",
    "upper",
    "lower",
    "title",
    "capitalize",
    "default",
    "d",
    "first",
    "last",
    "list",
    "string",
    "safe",
    "items",
    "selectattr",
    "rejectattr",
    "select",
    "reject",
    "map",
    "int",
    "float",
    "unique",
    "reverse",
    "dictsort",
    "abs",
)
METHODS: Final = (
    "strip",
    "lstrip",
    "rstrip",
    "split",
    "rsplit",
    "splitlines",
    "startswith",
    "endswith",
    "upper",
    "lower",
    "title",
    "capitalize",
    "items",
    "keys",
    "values",
    "get",
    "index",
    "find",
    "rfind",
    "count",
    "removeprefix",
    "removesuffix",
    "isdigit",
    "isspace",
    "isalpha",
)


def serve() -> None:
    """Requests until the pipe closes, as it does when the process that asks ends, however it ends."""
    start = _pages()
    limit = start[0] + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # What takes long yields to those who serve; what is short does not notice.
    os.nice(5)
    templates = _Templates()
    for line in sys.stdin.buffer:
        # The timer's signal is left at its default, which ends the process in the middle of whatever it does.
        signal.setitimer(signal.ITIMER_PROF, COMPILE_SECONDS)
        try:
            answer = {"text": templates.render(**json.loads(line))}
        # Another's program may fail in any way; the caller gets one line of it, whatever it is.
        except Exception as error:
            answer = {"error": f"{'' if isinstance(error, ValueError) else type(error).__name__} {error}"}
        last = _pages()[1] > start[1] + KEPT_BYTES
        written = json.dumps({**answer, "last": last}).encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(written + b"\n")
        sys.stdout.buffer.flush()
        if last:
            return


def _pages() -> tuple[int, int]:
    """Bytes of address space and of memory that this process has."""
    space, resident = Path("/proc/self/statm").read_text().split()[:2]
    return int(space) * resource.getpagesize(), int(resident) * resource.getpagesize()


class _Templates:
    """Renders templates; the one that was rendered last is kept compiled."""

    def __init__(self) -> None:
        self._source: str | None = None

    def render(self, source: str, messages: list[dict[str, Any]], given: dict[str, str]) -> str:
        """What the template writes for the messages and the beginning of an answer."""
        template = self._compiled(source)
        signal.setitimer(signal.ITIMER_PROF, RENDER_SECONDS)
        self._rules.left, written, size = MOST_WORK, list[str](), 0
        for piece in template.generate(messages=messages, add_generation_prompt=True, **given):
            written.append(piece)
            size += len(piece)
            if size > LONGEST_OUTPUT:
                raise ValueError(f"it writes more than {LONGEST_OUTPUT} characters")
        return "".join(written)

    def _compiled(self, source: str) -> Template:
        if source != self._source:
            self._source, self._rules = None, _Environment()
            self._template = self._rules.from_string(_Counting().visit(self._rules.parse(source)))
            self._source = source
        return self._template


class _Counting(NodeTransformer):
    """Puts a counter on every loop and every output, and makes `~` a sum, which is counted."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "counted", node)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_filtered(each, "written", node) for each in node.nodes]
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:
        return nodes.Const(node.data, lineno=node.lineno)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        whole: nodes.Expr = nodes.Const("", lineno=node.lineno)
        for each in node.nodes:
            whole = nodes.Add(whole, _filtered(each, "string", node), lineno=node.lineno)
        return whole


def _filtered(value: nodes.Node, name: str, at: nodes.Node) -> nodes.Expr:
    return nodes.Filter(value, name, [], [], None, None, lineno=at.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a closed list of filters and methods, each of which pays for what it makes."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=["jinja2.ext.loopcontrols"])
        self.left = 0
        known = {name: self.filters[name] for name in FILTERS}
        own: dict[str, Callable[..., Any]] = {
            "join": self._join,
            "replace": self._replace,
            "tojson": _to_json,
            "counted": list,
            "written": str,
        }
        self.filters = {name: self._paying(function) for name, function in own.items()} | {
            name: self._paying(function) for name, function in known.items()
        }
        self.globals = {
            "range": self._range,
            "namespace": self.globals["namespace"],
            "raise_exception": _raise,
            "dict": dict,
        }

    def spend(self, value: Any) -> Any:
        """The value, paid for by its size."""
        size = len(value) if isinstance(value, str | bytes) else STEP
        if isinstance(value, list | tuple | dict | set | frozenset):
            size = STEP * (1 + len(value))
        if isinstance(value, int) and abs(value) >= LARGEST_NUMBER:
            raise ValueError(f"it makes a number beyond {LARGEST_NUMBER}")
        self._pay(size)
        return value

    def _pay(self, amount: int) -> None:
        self.left -= amount
        if self.left < 0:
            raise ValueError(f"it does more than {MOST_WORK} signs' worth of work")

    def _paying(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The filter; a lazy result is made at once, while someone counts."""
        passed = getattr(function, "jinja_pass_arg", None)

        # A filter that is handed the context is not worked out when the template is compiled, where nobody counts.
        @pass_context
        def paying(context: Context, *given: Any, **named: Any) -> Any:
            first = {"context": (context,), "eval_context": (context.eval_ctx,), "environment": (self,)}
            result = function(*first.get(passed.name if passed else "", ()), *given, **named)
            if not isinstance(result, str | bytes | Mapping) and hasattr(result, "__iter__"):
                result = list(result)
            return self.spend(result)

        return paying

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        texts = [side for side in (left, right) if not isinstance(side, int | float)]
        if (operator != "+" and texts) or operator == "**":
            raise ValueError(f"it uses {operator} on {type(texts[0]).__name__ if texts else 'numbers'}")
        for side in texts:
            self.spend(side)
        return self.spend(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *given: Any, **named: Any) -> Any:
        self._pay(CALL)
        return self.spend(super().call(context, function, *given, **named))

    def is_safe_attribute(self, thing: Any, name: str, value: Any) -> bool:
        if isinstance(thing, str | bytes | list | tuple | int | float | set) and name not in METHODS:
            return False
        return super().is_safe_attribute(thing, name, value)

    def wrap_str_format(self, value: Any) -> None:
        """Jinja's own way around `format`, which can fill any width, is closed: it is an attribute like any."""

    def getattr(self, thing: Any, attribute: str) -> Any:
        """`text.replace` and `text.join` are the ones that count beforehand."""
        if isinstance(thing, str) and attribute in ("replace", "join"):
            own = self._replace if attribute == "replace" else self._joined_by
            return lambda *given: own(thing, *given)
        return super().getattr(thing, attribute)

    def _join(self, items: Any, between: str = "", attribute: str | None = None) -> str:
        if attribute is not None:
            items = [self.getattr(item, attribute) for item in items]
        return self._joined_by(between, items)

    def _joined_by(self, between: str, items: Any) -> str:
        parts = [str(item) for item in items]
        self._pay(sum(map(len, parts)) + len(between) * len(parts))
        return str(between).join(parts)

    def _replace(self, text: str, old: str, new: str, count: int = -1) -> str:
        text, old, new = str(text), str(old), str(new)
        self._pay((text.count(old) + 1) * max(len(new) - len(old), 0))
        return text.replace(old, new, -1 if count is None else count)

    def _range(self, *given: int) -> list[int]:
        numbers = range(*given)
        self._pay(STEP * len(numbers))
        return list(numbers)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Not Jinja's own, which escapes for web pages; as transformers writes it."""
    if indent is not None and not 0 <= indent <= 8:
        raise ValueError(f"it indents by {indent}, more than 8")
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> str:
    raise TemplateError(message)


if __name__ == "__main__":
    serve()
