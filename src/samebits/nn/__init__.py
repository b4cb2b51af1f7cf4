"""Modules over operators that keep their bits: drop-ins for the layers of torch and of transformers' decoders."""

from samebits.nn.blocks import Attention, RotaryEmbedding, SwiGLU
from samebits.nn.decoder import Decoder, DecoderLayer
from samebits.nn.layers import Embedding, LayerNorm, Linear, LMHead, RMSNorm
from samebits.nn.strategy import OURS, Operators

__all__ = [
    "OURS",
    "Attention",
    "Decoder",
    "DecoderLayer",
    "Embedding",
    "LMHead",
    "LayerNorm",
    "Linear",
    "Operators",
    "RMSNorm",
    "RotaryEmbedding",
    "SwiGLU",
]
