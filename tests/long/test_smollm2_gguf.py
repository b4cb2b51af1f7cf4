"""SmolLM2's .gguf file: every weight has the bits that transformers' own reader gives it, every text its tokens."""

from __future__ import annotations

import textwrap
from pathlib import Path

from samebits.checker.model_loading import find_model, load_model
from samebits.model.loading import load, load_tokenizer
from samebits.numerics.bits import same_bits


def test_every_weight_has_the_bits_that_transformers_reads() -> None:
    ours, read = load("smollm2").model, load_model("smollm2", stock=True).state_dict()
    assert set(read) - set(ours.weights) == {"lm_head.weight"} and ours.config.tie_word_embeddings
    assert all(same_bits(weight, read[name]) for name, weight in ours.weights.items())


def test_its_words_are_those_of_transformers() -> None:
    from transformers import AutoTokenizer

    path, words = find_model("smollm2"), load_tokenizer("smollm2")
    stock = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    source = Path(str(textwrap.__file__)).read_text()
    for text in (source, "in 2024, 15 dogs", "<|im_start|>user\nGrüße 😀<|im_end|>\n"):
        assert words.encode(text) == stock(text).input_ids
        assert words.decode(words.encode(text)) == text.encode()
    said = [{"role": "user", "content": "Hello"}]
    assert words.chat(said) == stock.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
