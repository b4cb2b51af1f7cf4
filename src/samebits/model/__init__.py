"""One model for training and inference: Llama and Qwen3 shapes, on operators that keep their bits."""

from samebits.model.batch import Batch
from samebits.model.config import ModelConfig
from samebits.model.model import Model
from samebits.model.presets import PRESETS

__all__ = ["PRESETS", "Batch", "Model", "ModelConfig"]
