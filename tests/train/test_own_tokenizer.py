"""A model goes on with the tokenizer it was trained on: the folder's own is the default, and its export is complete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.train.small_run import small

from samebits.model import PRESETS, Model
from samebits.model.huggingface import save_folder
from samebits.model.tokenizer import Tokenizer
from samebits.train.assessment import data_of, words_of
from samebits.train.configuration import TrainConfig
from samebits.train.exporting import export
from samebits.train.running import run

TEXTS = ["def f(x):\n    return x + 1\n" * 20, "The same bits, whatever the batch. " * 20]
TEMPLATE = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}<s>assistant: "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another program: words of its own, a chat template in a file, a way to generate, one more sign."""
    home = tmp_path_factory.mktemp("source") / "model"
    words = Tokenizer.train(TEXTS, 300, special=("</s>", "<s>"))
    save_folder(Model.new(PRESETS["tiny"], 0), home, words)
    (home / "chat_template.jinja").write_text(TEMPLATE)
    settings = json.loads((home / "tokenizer_config.json").read_text())
    (home / "tokenizer_config.json").write_text(json.dumps(settings | {"pad_token": "</s>", "padding_side": "left"}))
    (home / "generation_config.json").write_text(json.dumps({"eos_token_id": words.eos[0], "temperature": 0.6}))
    return home


def tuned(folder: Path, text: Path, *settings: str) -> TrainConfig:
    data = f"data={{source: text, paths: [{text}], max_length: 16}}"
    few = ("training.max_steps=2", "training.save_steps=2", "training.waive=[]", "training.max_repeats=4")
    return small(f"model={{folder: {folder}}}", data, *few, *settings)


def test_the_folders_own_tokenizer_is_the_default(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join(TEXTS))
    config = tuned(folder, tmp_path / "text")
    own, bytes_only = data_of(config), data_of(tuned(folder, tmp_path / "text", "data.tokenizer=bytes"))
    assert words_of(config) == Tokenizer.load(folder)
    assert own.vocabulary == words_of(config).vocabulary and len(own.tokens) < len(bytes_only.tokens) / 2
    assert data_of(tuned(folder, tmp_path / "text", f"data.tokenizer={folder}")).digest() == own.digest()


def test_without_any_tokenizer_it_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join(TEXTS))
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).symlink_to(folder / name)
    with pytest.raises(ValueError, match=rf"^data.tokenizer: is left out, and {bare} has no tokenizer.json; allowed: "):
        data_of(tuned(bare, tmp_path / "text"))
    assert data_of(tuned(bare, tmp_path / "text", "data.tokenizer=bytes")).vocabulary == 257


def test_the_export_is_whole(folder: Path, tmp_path: Path) -> None:
    """Every file as in the source; transformers gives the same tokens and the same chat of both."""
    from transformers import AutoTokenizer, GenerationConfig

    (tmp_path / "text").write_text("\n".join(TEXTS))
    config = tuned(folder, tmp_path / "text")
    run(config, tmp_path / "run")
    export(config, tmp_path / "run", tmp_path / "out")
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes(), name
    assert (tmp_path / "out" / "special_tokens_map.json").is_file()
    before, after = (AutoTokenizer.from_pretrained(each) for each in (folder, tmp_path / "out"))
    chat = [{"role": "user", "content": "the same bits?"}]
    for text in (*TEXTS, "<s>odd</s> é\n"):
        assert before(text).input_ids == after(text).input_ids
    assert before.apply_chat_template(chat, tokenize=False) == after.apply_chat_template(chat, tokenize=False)
    assert before.special_tokens_map == after.special_tokens_map
    assert GenerationConfig.from_pretrained(tmp_path / "out").temperature == 0.6
    assert Tokenizer.load(tmp_path / "out") == Tokenizer.load(folder)
