"""A kernel's own source, made ready to be run on numbers without values: each loop becomes any one turn of it.

What a turn changes is unknown when the next begins, but for what is added once a turn. Knows no kernel."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable
from functools import cache
from types import CodeType
from typing import Any, Final

MACHINE: Final = "__machine"


def _stored(body: Iterable[ast.stmt]) -> list[str]:
    """Names that a body binds, in order."""
    nodes = (node for statement in body for node in ast.walk(statement))
    names = (node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return list(dict.fromkeys(names))


def _added(body: list[ast.stmt], name: str) -> ast.expr | None:
    """What one turn of a loop adds to a name, where that is all it does to it and the same in every turn."""
    bindings = [node for statement in body for node in ast.walk(statement) if _binds(node, name)]
    if len(bindings) != 1:
        return None
    for statement in body:
        if isinstance(statement, ast.AugAssign) and statement is bindings[0] and isinstance(statement.op, ast.Add):
            return None if _names(statement.value) & set(_stored(body)) else statement.value
        if isinstance(statement, ast.For) and bindings[0] in ast.walk(statement):
            each, turns = _added(statement.body, name), _turns(statement.iter)
            if each is None or turns is None:
                return None
            return ast.parse(f"{MACHINE}.often({ast.unparse(turns)}, {ast.unparse(each)})", mode="eval").body
    return None


def _binds(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.AugAssign):
        return isinstance(node.target, ast.Name) and node.target.id == name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.For) else []
    return any(isinstance(each, ast.Name) and each.id == name for target in targets for each in ast.walk(target))


def _names(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}


def _turns(iterated: ast.expr) -> ast.expr | None:
    """How often a loop over `static_range(n)` turns."""
    known = isinstance(iterated, ast.Call) and ast.unparse(iterated.func) == "tl.static_range"
    return iterated.args[0] if known and isinstance(iterated, ast.Call) and len(iterated.args) == 1 else None


class _Loops(ast.NodeTransformer):
    """Rewrites loops; a way out of a loop other than its end is refused."""

    def __init__(self) -> None:
        self.count = 0

    def _carry(self, body: list[ast.stmt], loop: str) -> list[ast.stmt]:
        lines = []
        for name in _stored(body):
            added = _added(body, name)
            step = "None" if added is None else f"({ast.unparse(added)})"
            lines.append(f"{name} = {MACHINE}.carried(locals().get({name!r}), {loop}, {step})")
        return ast.parse("\n".join(lines)).body

    def _rewritten(self, node: ast.For | ast.While, begin: list[ast.stmt], loop: str) -> list[ast.stmt]:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Break | ast.Continue | ast.Return) or node.orelse:
                raise ValueError(f"line {inner.lineno}: a loop is left before its end")  # type: ignore[attr-defined]
        before = self._carry(node.body, loop)
        after = ast.parse("\n".join(f"{name} = {MACHINE}.after(locals().get({name!r}))" for name in _stored(node.body)))
        body = [each for statement in node.body for each in _list(self.visit(statement))]
        return [*begin, *before, *body, *ast.parse(f"{MACHINE}.leave({loop})").body, *after.body]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        self.count += 1
        loop = f"__loop_{self.count}"
        text = f"{loop} = {MACHINE}.enter({ast.unparse(node.iter)})\n{ast.unparse(node.target)} = {loop}.value"
        return self._rewritten(node, ast.parse(text).body, loop)

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        """The condition holds of what the turn begins with."""
        self.count += 1
        loop = f"__loop_{self.count}"
        found = self._rewritten(node, ast.parse(f"{loop} = {MACHINE}.repeat()").body, loop)
        place = 1 + len(_stored(node.body))
        condition = ast.parse(f"{MACHINE}.suppose({ast.unparse(node.test)})").body
        return [*found[:place], *condition, *found[place:]]


def _list(found: Any) -> list[ast.stmt]:
    return found if isinstance(found, list) else [found]


@cache
def code_of(function: Any) -> CodeType:
    """The code of a module that defines the function, its loops rewritten."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    definition.returns = None
    for argument in definition.args.args + definition.args.kwonlyargs:
        argument.annotation = None
    return compile(ast.fix_missing_locations(_Loops().visit(tree)), inspect.getfile(function), "exec")
