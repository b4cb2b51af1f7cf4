"""YAML as a contract needs it: a mapping with unique keys, plain scalars, numbers that are numbers, and line numbers.

Refused: repeated keys, anchors and aliases, tags, merges, base-60 and octal integers, more than one document."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

MAXIMUM_DEPTH = 12
MAXIMUM_BYTES = 1_000_000


class ContractError(ValueError):
    """A contract that cannot be loaded: file, line, what is wrong, what is allowed."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2."""


_Loader.yaml_implicit_resolvers = {}
_SCALARS = (
    ("tag:yaml.org,2002:bool", r"true|false", "tf"),
    ("tag:yaml.org,2002:int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    ("tag:yaml.org,2002:float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("tag:yaml.org,2002:null", r"null|~|", "n~\0"),
)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(loader.construct_scalar(node))


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)

# Looks like a number to some reader of YAML and like text to another: must be quoted or rewritten.
_AMBIGUOUS = re.compile(
    r"^[-+]?(0[0-9]+|[0-9][0-9_]*_[0-9_]*|[0-9]+(:[0-9]+)+|0[xob][0-9a-fA-F]+|\.?(inf|nan))$", re.IGNORECASE
)


class Located(dict[str, Any]):
    """A mapping that remembers on which line each of its keys stands."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


def load(path: Path) -> Located:
    """The document in `path`, or a ContractError that names file and line."""
    raw = path.read_bytes()
    if len(raw) > MAXIMUM_BYTES:
        raise ContractError(f"{path}: {len(raw)} bytes; allowed: at most {MAXIMUM_BYTES}")
    try:
        text = raw.decode("utf-8")
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise ContractError(f"{path}:{event.start_mark.line + 1}: anchors and aliases are not allowed")
        node = yaml.compose(text, Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ContractError(f"{path}{line}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(node, yaml.MappingNode):
        raise ContractError(
            f"{path}:1: a contract is a mapping, got {type(node).__name__ if node else 'an empty file'}"
        )
    built = _build(node, path, 0)
    assert isinstance(built, Located)
    return built


def _build(node: yaml.Node, path: Path, depth: int) -> Any:
    where = f"{path}:{node.start_mark.line + 1}"
    if depth > MAXIMUM_DEPTH:
        raise ContractError(f"{where}: nested deeper than {MAXIMUM_DEPTH}")
    if isinstance(node, yaml.MappingNode):
        return _build_mapping(node, path, depth)
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, path, depth + 1) for item in node.value]
    assert isinstance(node, yaml.ScalarNode)
    if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.endswith(":binary"):
        raise ContractError(f"{where}: tag {node.tag!r} is not allowed")
    if node.style is None and _AMBIGUOUS.match(node.value):
        raise ContractError(
            f"{where}: {node.value!r} reads differently to different readers; write a plain number or quote it"
        )
    return _Loader("").construct_object(node, deep=True)


def _build_mapping(node: yaml.MappingNode, path: Path, depth: int) -> Located:
    built = Located()
    for key_node, value_node in node.value:
        where = f"{path}:{key_node.start_mark.line + 1}"
        if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
            raise ContractError(f"{where}: a key is plain text, got {key_node.value!r}")
        if key_node.value in built:
            raise ContractError(
                f"{where}: key {key_node.value!r} stands twice; first on line {built.lines[key_node.value]}"
            )
        built.lines[key_node.value] = key_node.start_mark.line + 1
        built[key_node.value] = _build(value_node, path, depth + 1)
    return built
