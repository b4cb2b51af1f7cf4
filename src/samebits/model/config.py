"""What shape a decoder has, and its translation from and to the config.json that Hugging Face's models carry.

Knows no weights. A setting that the forward pass would not honour is refused, never ignored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from samebits.ops.rope import RopeScaling
from samebits.ops.rope.scaling import NEEDED, OPTIONAL

FAMILIES: Final = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# The most that a config may ask for: beyond it lies a mistake or an attack, and memory would be taken before it shows.
LIMITS: Final = {"vocabulary": 2**22, "hidden": 2**17, "layers": 4096, "heads": 4096, "key_heads": 4096,
                 "head_size": 256, "intermediate": 2**19, "max_positions": 2**24}  # fmt: skip
# What a published config says about settings that this forward pass has in one form only.
LARGEST_THETA: Final = 1e15
FIXED: Final[dict[str, tuple[Any, ...]]] = {
    "hidden_act": ("silu",), "attention_bias": (False, None), "mlp_bias": (False, None),
    "attention_dropout": (0, None), "use_sliding_window": (False, None), "pretraining_tp": (1, None),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """The shape of a decoder: embedding, layers of attention and SwiGLU with RMSNorm before each, head."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    intermediate: int
    max_positions: int
    tied: bool = True
    """Whether the output head is the embedding."""
    norms_of_heads: bool = False
    """Qwen3: queries and keys are normed head by head before they turn."""
    eps: float = 1e-5
    theta: float = 10000.0
    scaling: RopeScaling | None = None
    bos: int | None = None
    eos: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, most in LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"config: {name} is {value!r:.60}; allowed: a whole number, 1 to {most}")
        if self.heads % self.key_heads:
            raise ValueError(f"config: heads is {self.heads}, key_heads is {self.key_heads}; allowed: a multiple of it")
        if self.head_size % 8:
            raise ValueError(f"config: head_size is {self.head_size}; allowed: a multiple of 8")
        for name in ("tied", "norms_of_heads"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"config: {name} is {getattr(self, name)!r:.60}; allowed: true or false")
        if type(self.eps) is not float or not 0.0 <= self.eps < 1.0:
            raise ValueError(f"config: eps is {self.eps!r:.60}; allowed: 0 to 1, 1 left out")
        if type(self.theta) is not float or not 1.0 < self.theta <= LARGEST_THETA:
            raise ValueError(f"config: theta is {self.theta!r:.60}; allowed: above 1, at most {LARGEST_THETA:g}")
        for token in (*self.eos, *(() if self.bos is None else (self.bos,))):
            if type(token) is not int or not 0 <= token < self.vocabulary:
                raise ValueError(f"config: a special token is {token!r:.60}; allowed: 0 to {self.vocabulary - 1}")

    @classmethod
    def from_huggingface(cls, values: Mapping[str, Any]) -> Config:
        """The config.json of a Llama or Qwen3 model."""
        family = values.get("model_type")
        if not isinstance(family, str) or family not in FAMILIES:
            raise ValueError(f"config.json: model_type is {family!r:.60}; allowed: {', '.join(FAMILIES)}")
        for name, allowed in FIXED.items():
            if values.get(name, allowed[0]) not in allowed:
                raise ValueError(f"config.json: {name} is {values[name]!r:.60}; allowed: {allowed[0]!r}")
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            if type(values.get(name)) is not int or values[name] < 1:
                raise ValueError(
                    f"config.json: {name} is {values.get(name)!r:.60}; allowed: a whole number, at least 1"
                )
        heads = values["num_attention_heads"]
        rope = values.get("rope_parameters") or values.get("rope_scaling")
        _check_kinds(values, rope)
        theta = _first(values.get("rope_theta"), (rope or {}).get("rope_theta"), 10000.0)
        eos = values.get("eos_token_id")
        return cls(
            vocabulary=values["vocab_size"], hidden=values["hidden_size"], layers=values["num_hidden_layers"],
            heads=heads, key_heads=_first(values.get("num_key_value_heads"), heads),
            head_size=_first(values.get("head_dim"), values["hidden_size"] // heads),
            intermediate=values["intermediate_size"],
            max_positions=_first(values.get("max_position_embeddings"), 2048),
            tied=_first(values.get("tie_word_embeddings"), False), norms_of_heads=family == "qwen3",
            eps=float(_first(values.get("rms_norm_eps"), 1e-6)), theta=float(theta),
            scaling=RopeScaling.from_config(rope), bos=values.get("bos_token_id"),
            eos=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        )  # fmt: skip

    def to_huggingface(self) -> dict[str, Any]:
        """What `from_huggingface` reads, and transformers too."""
        family = "qwen3" if self.norms_of_heads else "llama"
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": self.theta}
        if self.scaling is not None:
            kind = self.scaling.kind
            numbers = {name: getattr(self.scaling, name, None) for name in (*NEEDED[kind], *OPTIONAL[kind])}
            rope |= {"rope_type": kind, **{name: value for name, value in numbers.items() if value is not None}}
        eos: Any = list(self.eos) if len(self.eos) > 1 else next(iter(self.eos), None)
        return {
            "architectures": [FAMILIES[family]], "model_type": family, "vocab_size": self.vocabulary,
            "hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads, "head_dim": self.head_size, "intermediate_size": self.intermediate,
            "max_position_embeddings": self.max_positions, "tie_word_embeddings": self.tied, "rms_norm_eps": self.eps,
            "rope_theta": self.theta, "rope_parameters": rope, "hidden_act": "silu", "attention_bias": False,
            "bos_token_id": self.bos, "eos_token_id": eos,
        }  # fmt: skip


def _first(*values: Any) -> Any:
    """The first that is there: null stands for what is left out, as published configs write it."""
    return next(value for value in values if value is not None)


def _check_kinds(values: Mapping[str, Any], rope: Any) -> None:
    """That what is read without further looks is of the kind it should be."""
    if not isinstance(rope, Mapping | None):
        raise ValueError(f"config.json: rope_parameters is a {type(rope).__name__}; allowed: an object")
    numbers = {"rms_norm_eps": values.get("rms_norm_eps"), "rope_theta": values.get("rope_theta")}
    numbers |= {f"rope_parameters.{name}": value for name, value in (rope or {}).items() if "type" not in name}
    for name, value in numbers.items():
        whole = isinstance(value, int) and abs(value) > 2**53
        if not isinstance(value, int | float | None) or whole or (value is not None and not math.isfinite(value)):
            raise ValueError(f"config.json: {name} is {value!r:.60}; allowed: a number")
    kind = (rope or {}).get("rope_type", (rope or {}).get("type"))
    if not isinstance(kind, str | None):
        raise ValueError(f"config.json: rope_type is {kind!r:.60}; allowed: a name")
    eos = values.get("eos_token_id")
    if not isinstance(eos, int | list | None) or (isinstance(eos, list) and len(eos) > 64):
        raise ValueError(f"config.json: eos_token_id is {eos!r:.60}; allowed: a token, or a list of at most 64")
