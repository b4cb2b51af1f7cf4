"""A merge as mergekit's YAML says it: models or slices, a method, its parameters by model, layer and tensor name.

A value may be one number, a list that is interpolated over the layers, or a list of conditions, of which the first
whose filter is in the tensor's name counts. Keys are closed: what would be ignored is refused. Knows no tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from samebits.contracts.registry import nearest
from samebits.contracts.strict_yaml import Located, load

DTYPES: Final = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
KEYS: Final = (
    *("merge_method", "models", "slices", "base_model", "parameters"),
    *("dtype", "out_dtype", "tokenizer_source", "name", "chat_template"),
)
SHARED, EACH, OTHERS = "shared", "each", "others"
Settings = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """What a method may be told: a flag or a number in a range; of the tensor, of each model, or of all but the
    base."""

    scope: str
    default: float | bool | None = None
    """None: it must be given."""
    least: float = -math.inf
    most: float = math.inf

    @property
    def flag(self) -> bool:
        return isinstance(self.default, bool)


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A way of merging: what it may be told, whether it needs a base, and how many models it takes."""

    parameters: Mapping[str, Parameter]
    base: bool
    most: int = 64


_WEIGHT: Final = {"weight": Parameter(scope=OTHERS), "lambda": Parameter(scope=SHARED, default=1.0)}
_MASK: Final = {"int8_mask": Parameter(scope=SHARED, default=False)}
_DENSITY: Final = {"density": Parameter(scope=OTHERS, default=1.0, least=0.0, most=1.0)}
_TASK: Final = _WEIGHT | _MASK | _DENSITY


def _normalize(default: bool) -> dict[str, Parameter]:
    return {"normalize": Parameter(scope=SHARED, default=default)}


_RESCALE: Final = {"rescale": Parameter(scope=SHARED, default=True)}
METHODS: Final = {
    "linear": Method(parameters={"weight": Parameter(scope=EACH), **_normalize(True)}, base=False),
    "slerp": Method(parameters={"t": Parameter(scope=SHARED, least=0.0, most=1.0)}, base=True, most=2),
    "task_arithmetic": Method(parameters=_WEIGHT | _MASK | _normalize(False), base=True),
    "ties": Method(parameters=_TASK | _normalize(True), base=True),
    "dare_linear": Method(parameters=_TASK | _RESCALE | _normalize(False), base=True),
    "dare_ties": Method(parameters=_TASK | _RESCALE | _normalize(False), base=True),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One model of a slice; `layers` are half open, None: all."""

    model: str
    layers: tuple[int, int] | None = None
    parameters: Settings = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """Layers of the new model, made from as many of each input."""

    inputs: tuple[Input, ...]
    base: str | None = None
    parameters: Settings = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A merge. `document` is the file as it was read."""

    method: str
    slices: tuple[Slice, ...]
    base: str | None
    parameters: Settings
    dtype: torch.dtype | None
    out_dtype: torch.dtype | None
    tokenizer_source: str | None
    document: Settings

    @property
    def models(self) -> list[str]:
        """Every model once, the one whose config and tokenizer are taken first."""
        named = [each.model for part in self.slices for each in part.inputs]
        return list(dict.fromkeys([*([self.base] if self.base else []), *named]))


def read_recipe(path: Path) -> Recipe:
    """The recipe in a file; one line says what is wrong with it, and where."""
    return recipe_of(load(path), str(path))


def recipe_of(document: Mapping[str, Any], name: str) -> Recipe:
    """The recipe that a mapping is."""
    _closed(document, KEYS, name)
    method = document.get("merge_method")
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"{name}: merge_method is {method!r:.60}; {nearest(str(method), list(METHODS))}")
    if document.get("chat_template") not in (None, "auto"):
        raise ValueError(f"{name}: chat_template is set; allowed: auto, the template comes with the tokenizer")
    base = _text(document, "base_model", name)
    if ("models" in document) == ("slices" in document):
        raise ValueError(f"{name}: has {'both' if 'models' in document else 'neither'} models and slices; allowed: one")
    if "models" in document:
        inputs = [_input(each, method, f"{name}: models", False) for each in _list(document, "models", name)]
        if base is not None and base not in [each.model for each in inputs]:
            inputs.append(Input(model=base))
        slices = [Slice(inputs=tuple(inputs))]
    else:
        slices = [_slice(each, method, f"{name}: slices") for each in _list(document, "slices", name)]
    recipe = Recipe(
        method=method,
        slices=tuple(slices),
        base=base,
        parameters=_parameters(document, method, name),
        dtype=_dtype(document, "dtype", name),
        out_dtype=_dtype(document, "out_dtype", name),
        tokenizer_source=_text(document, "tokenizer_source", name),
        document=document,
    )
    _check(recipe, name)
    return recipe


def _check(recipe: Recipe, name: str) -> None:
    method = METHODS[recipe.method]
    if recipe.tokenizer_source == "union":
        raise ValueError(f"{name}: tokenizer_source is union; allowed: base, or one of the models")
    for part in recipe.slices:
        models, base = [each.model for each in part.inputs], part.base or recipe.base
        if len({*models}) != len(models) or not 1 <= len(models) <= method.most:
            raise ValueError(
                f"{name}: {recipe.method} of {', '.join(models)}; allowed: 1 to {method.most} models, each once"
            )
        if recipe.method == "slerp" and len(models) != 2:
            raise ValueError(f"{name}: slerp of {len(models)} models; allowed: two, the base one of them")
        if method.base and (base is None or base not in models):
            raise ValueError(f"{name}: {recipe.method} needs a base_model that is one of its models, got {base}")


def value_of(setting: Any, tensor: str, at: float) -> Any:
    """The value of a setting for one tensor at its place in the layers, 0 to 1; None where no condition fits."""
    if isinstance(setting, Mapping):
        setting = [setting]
    if not isinstance(setting, list):
        return setting
    if setting and isinstance(setting[0], Mapping):
        for condition in setting:
            wanted = condition.get("filter")
            if wanted in (None, "*") or wanted in tensor:
                return value_of(condition["value"], tensor, at)
        return None
    if isinstance(setting[0], bool):
        return setting[int(at * (len(setting) - 1))]
    scaled = at * (len(setting) - 1)
    first = int(scaled)
    part = scaled - first
    return (1 - part) * setting[first] + part * setting[min(len(setting) - 1, first + 1)]


def resolve(method: str, name: str, levels: Sequence[Settings], tensor: str, at: float, model: str = "") -> Any:
    """A parameter's value for one tensor: of the first level that gives one, else its default."""
    parameter = METHODS[method].parameters[name]
    for level in levels:
        found = value_of(level[name], tensor, at) if name in level else None
        if found is not None:
            return found
    if parameter.default is None:
        raise ValueError(f"{method} needs {name} for {tensor}{f' of {model}' if model else ''}; it is not given")
    return parameter.default


def _slice(value: Any, method: str, name: str) -> Slice:
    _closed(value, ["sources", "base_model", "parameters"], name)
    sources = [_input(each, method, f"{name}: sources", True) for each in _list(value, "sources", name)]
    lengths = {each.layers[1] - each.layers[0] for each in sources if each.layers}
    if len(lengths) != 1:
        raise ValueError(f"{name}: layer ranges of {sorted(lengths)} layers; allowed: equally many in one slice")
    base = _text(value, "base_model", name)
    return Slice(inputs=tuple(sources), base=base, parameters=_parameters(value, method, name))


def _input(value: Any, method: str, name: str, ranged: bool) -> Input:
    _closed(value, ["model", "parameters", *(["layer_range"] if ranged else [])], name)
    model = _text(value, "model", name)
    if not model:
        raise ValueError(f"{name}: an entry has no model; allowed: a folder in Hugging Face's layout")
    layers = value.get("layer_range")
    if ranged:
        whole = isinstance(layers, list) and len(layers) == 2 and all(type(each) is int for each in layers)
        if not whole or not 0 <= layers[0] < layers[1]:
            raise ValueError(f"{name}: layer_range is {layers!r:.60}; allowed: [first, end], first below end")
    return Input(
        model=model, layers=(layers[0], layers[1]) if ranged else None, parameters=_parameters(value, method, name)
    )


def _parameters(value: Mapping[str, Any], method: str, name: str) -> Settings:
    found = value.get("parameters") or Located()
    known = METHODS[method].parameters
    _closed(found, list(known), f"{name}: parameters of {method}")
    return {key: _setting(each, known[key], f"{name}: {key}") for key, each in found.items()}


def _setting(value: Any, parameter: Parameter, name: str) -> Any:
    """A setting whose every value is allowed."""
    if isinstance(value, Mapping):
        _closed(value, ["value", "filter"], name)
        if "value" not in value or isinstance(value["value"], Mapping):
            raise ValueError(f"{name}: a condition has no value; allowed: value, and a filter or none")
        return {"filter": _text(value, "filter", name), "value": _setting(value["value"], parameter, name)}
    if isinstance(value, list):
        kinds = {isinstance(each, Mapping) for each in value}
        if len(kinds) != 1 or any(isinstance(each, list) for each in value):
            raise ValueError(f"{name}: is {value!r:.60}; allowed: numbers, or conditions, at least one")
        return [_setting(each, parameter, name) for each in value]
    return _scalar(value, parameter, name)


def _scalar(value: Any, parameter: Parameter, name: str) -> float | bool:
    if parameter.flag:
        flag = {"true": True, "false": False}.get(str(value).lower())
        if flag is None:
            raise ValueError(f"{name}: is {value!r:.60}; allowed: true or false")
        return flag
    if type(value) not in (int, float) or not parameter.least <= value <= parameter.most or not math.isfinite(value):
        limits = f"{parameter.least:g} to {parameter.most:g}" if math.isfinite(parameter.most) else "a finite number"
        raise ValueError(f"{name}: is {value!r:.60}; allowed: {limits}")
    return float(value)


def _closed(value: Any, allowed: Sequence[str], name: str) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: is {value!r:.60}; allowed: a mapping of {', '.join(allowed)}")
    for key in value:
        if key not in allowed:
            raise ValueError(f"{name}: unknown key {key!r:.60}; allowed: {', '.join(allowed)}")


def _list(value: Mapping[str, Any], key: str, name: str) -> list[Any]:
    found = value.get(key)
    if not isinstance(found, list) or not found:
        raise ValueError(f"{name}: {key} is {found!r:.60}; allowed: a list, not empty")
    return found


def _text(value: Mapping[str, Any], key: str, name: str) -> str | None:
    found = value.get(key)
    if found is not None and not isinstance(found, str):
        raise ValueError(f"{name}: {key} is {found!r:.60}; allowed: text")
    return found


def _dtype(value: Mapping[str, Any], key: str, name: str) -> torch.dtype | None:
    found = _text(value, key, name)
    if found is not None and found not in DTYPES:
        raise ValueError(f"{name}: {key} is {found!r:.60}; allowed: {', '.join(DTYPES)}")
    return None if found is None else DTYPES[found]
