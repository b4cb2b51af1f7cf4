"""What lm-evaluation-harness 0.4.13 asks of a model, and no more: its abstract class, its registry, its requests.

`lm_eval` itself is large and is not among the test packages; these are the signatures of lm_eval/api/model.py, with
the same abstract methods, so that a model which lacks one cannot be made."""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

MODELS: dict[str, type] = {}


class CacheHook:
    """Answers as they come, for a cache."""

    def __init__(self, cached: None) -> None:
        self.added: list[tuple[str, Any, Any]] = []

    def add_partial(self, attr: str, req: Iterable[Any], res: Any) -> None:
        self.added.append((attr, req, res))


class LM(abc.ABC):
    """The base of every model."""

    def __init__(self) -> None:
        self._rank = 0
        self._world_size = 1
        self._device = None
        self.cache_hook = CacheHook(None)

    @abc.abstractmethod
    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]: ...

    @abc.abstractmethod
    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]: ...

    @abc.abstractmethod
    def generate_until(self, requests: list[Any]) -> list[str]: ...

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> LM:
        given = dict(each.split("=", 1) for each in arg_string.split(",") if each)
        extra = {key: value for key, value in (additional_config or {}).items() if value is not None}
        return cls(**given, **extra)


def register_model(*names: str) -> Callable[[type], type]:
    def decorate(model: type) -> type:
        MODELS.update(dict.fromkeys(names, model))
        return model

    return decorate


@dataclass(frozen=True)
class Instance:
    """A request."""

    args: tuple[Any, ...]


def install() -> None:
    """Under the names that the harness has, where it is not installed."""
    package, api = ModuleType("lm_eval"), ModuleType("lm_eval.api")
    model, registry = ModuleType("lm_eval.api.model"), ModuleType("lm_eval.api.registry")
    model.LM, registry.register_model = LM, register_model  # type: ignore[attr-defined]
    for module in (package, api, model, registry):
        sys.modules[module.__name__] = module


def remove() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "lm_eval"]:
        del sys.modules[name]
    sys.modules.pop("samebits.infer.harness", None)
