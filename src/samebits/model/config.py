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
LIMITS: Final = {
    "vocab_size": 2**22,
    "hidden_size": 2**17,
    "num_hidden_layers": 4096,
    "num_attention_heads": 4096,
    "num_key_value_heads": 4096,
    "head_dim": 256,
    "intermediate_size": 2**19,
    "max_position_embeddings": 2**24,
}
# What a published config says about settings that this forward pass has in one form only.
LARGEST_THETA: Final = 1e15
FIXED: Final[dict[str, tuple[Any, ...]]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "attention_dropout": (0, None),
    "use_sliding_window": (False, None),
    "pretraining_tp": (1, None),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The shape of a decoder: embedding, layers of attention and SwiGLU with RMSNorm before each, head."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool = True
    """Whether the output head is the embedding."""
    use_qk_norm: bool = False
    """Qwen3: queries and keys are normed head by head before they turn."""
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    bos_token_id: int | None = None
    eos_token_id: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, most in LIMITS.items():
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= most:
                raise ValueError(f"config: {name} is {value!r:.60}; allowed: a whole number, 1 to {most}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"config: num_attention_heads is {self.num_attention_heads}, num_key_value_heads is"
                f" {self.num_key_value_heads}, which must divide it"
            )
        if self.head_dim % 8:
            raise ValueError(f"config: head_dim is {self.head_dim}; allowed: a multiple of 8")
        for name in ("tie_word_embeddings", "use_qk_norm"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"config: {name} is {getattr(self, name)!r:.60}; allowed: true or false")
        if type(self.rms_norm_eps) is not float or not 0.0 <= self.rms_norm_eps < 1.0:
            raise ValueError(f"config: rms_norm_eps is {self.rms_norm_eps!r:.60}; allowed: 0 to 1, 1 left out")
        if type(self.rope_theta) is not float or not 1.0 < self.rope_theta <= LARGEST_THETA:
            raise ValueError(
                f"config: rope_theta is {self.rope_theta!r:.60}; allowed: above 1, at most {LARGEST_THETA:g}"
            )
        for token in (*self.eos_token_id, *(() if self.bos_token_id is None else (self.bos_token_id,))):
            if type(token) is not int or not 0 <= token < self.vocab_size:
                raise ValueError(f"config: a special token is {token!r:.60}; allowed: 0 to {self.vocab_size - 1}")

    @classmethod
    def from_huggingface(cls, values: Mapping[str, Any]) -> ModelConfig:
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
            vocab_size=values["vocab_size"],
            hidden_size=values["hidden_size"],
            num_hidden_layers=values["num_hidden_layers"],
            num_attention_heads=heads,
            num_key_value_heads=_first(values.get("num_key_value_heads"), heads),
            head_dim=_first(values.get("head_dim"), values["hidden_size"] // heads),
            intermediate_size=values["intermediate_size"],
            max_position_embeddings=_first(values.get("max_position_embeddings"), 2048),
            tie_word_embeddings=_first(values.get("tie_word_embeddings"), False),
            use_qk_norm=family == "qwen3",
            rms_norm_eps=float(_first(values.get("rms_norm_eps"), 1e-6)),
            rope_theta=float(theta),
            rope_scaling=RopeScaling.from_config(rope),
            bos_token_id=values.get("bos_token_id"),
            eos_token_id=tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,),
        )

    def to_huggingface(self) -> dict[str, Any]:
        """What `from_huggingface` reads, and transformers too."""
        family = "qwen3" if self.use_qk_norm else "llama"
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": self.rope_theta}
        if self.rope_scaling is not None:
            kind = self.rope_scaling.kind
            numbers = {name: getattr(self.rope_scaling, name, None) for name in (*NEEDED[kind], *OPTIONAL[kind])}
            rope |= {"rope_type": kind, **{name: value for name, value in numbers.items() if value is not None}}
        eos: Any = list(self.eos_token_id) if len(self.eos_token_id) > 1 else next(iter(self.eos_token_id), None)
        return {
            "architectures": [FAMILIES[family]],
            "model_type": family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_parameters": rope,
            "hidden_act": "silu",
            "attention_bias": False,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": eos,
        }


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
