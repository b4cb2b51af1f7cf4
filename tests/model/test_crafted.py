"""Files that someone made to hurt: each is refused in one line, in a process that may take 256 MiB more."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from math import prod
from pathlib import Path
from typing import Any

import pytest

from samebits.model.config import ModelConfig
from samebits.model.template import Template
from samebits.model.template_worker import LONGEST_OUTPUT, MOST_WORK
from samebits.model.tokenizer import Tokenizer
from samebits.model.tokenizer_file import check, written
from samebits.model.weights import shapes

GOOD = written(Tokenizer.train(["hello hello words words"], 280).parts)
LLAMA = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "rms_norm_eps": 1e-5,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'; allowed: llama, qwen3"),
        ({"vocab_size": 2**60}, "vocab_size is 1152921504606846976; allowed: a whole number, 1 to"),
        ({"hidden_size": -48}, "hidden_size is -48; allowed: a whole number, at least 1"),
        ({"num_hidden_layers": 10**9}, "layers is 1000000000; allowed"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'; allowed"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 4, num_key_value_heads is 3, which must divide it"),
        ({"num_key_value_heads": [2]}, r"num_key_value_heads is \[2\]"),
        ({"head_dim": 10**6}, "head_dim is 1000000; allowed: a whole number, 1 to 256"),
        ({"head_dim": 2.5}, "head_dim is 2.5"),
        ({"intermediate_size": None}, "intermediate_size is None"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings is 1000000000000"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small'; allowed: a number"),
        ({"rms_norm_eps": -1.0}, "eps is -1.0"),
        ({"rope_theta": {"a": 1}}, "rope_theta is {'a': 1}; allowed: a number"),
        ({"rope_theta": 10**400}, "allowed: a number"),
        ({"rope_scaling": "linear"}, "rope_parameters is a str; allowed: an object"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' depends on the longest sequence"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, r"rope_type is \['yarn'\]; allowed: a name"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": "4"}}, "rope_parameters.factor is '4'; allowed: a number"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, "rope_parameters.factor is nan"),
        ({"eos_token_id": {"a": 1}}, "eos_token_id is {'a': 1}; allowed"),
        ({"eos_token_id": [1] * 10**5}, "eos_token_id is"),
        ({"eos_token_id": 97}, "a special token is 97; allowed: 0 to 96"),
        ({"bos_token_id": "<s>"}, "a special token is '<s>'; allowed"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; allowed: 'silu'"),
        ({"attention_bias": True}, "attention_bias is True; allowed: False"),
    ],
)
def test_a_crafted_config_is_refused(changes: dict[str, Any], message: str) -> None:
    assert ModelConfig.from_huggingface(LLAMA).vocab_size == 97
    with pytest.raises(ValueError, match=message) as refused:
        ModelConfig.from_huggingface({**LLAMA, **changes})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def set_to(*path: Any) -> Callable[[dict[str, Any]], None]:
    """A change of the tokenizer.json: set_to("model", "vocab", "x", 3)."""
    *keys, last, value = path

    def change(values: dict[str, Any]) -> None:
        for key in keys:
            values = values[key]
        values[last] = value

    return change


def added(**flags: Any) -> Callable[[dict[str, Any]], None]:
    return lambda values: values["added_tokens"].append({"id": 9000, "content": "<sign>", **flags})


LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
HURTFUL = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_to("normalizer", {"type": "Lowercase"}), "normalizer is 'Lowercase', which loses text; allowed: null, or"),
        (set_to("normalizer", "NFKC"), "normalizer is 'NFKC', which loses text"),
        (set_to("truncation", {"max_length": 4}), "truncation is set, which loses or adds text; allowed: null"),
        (set_to("padding", {}), "padding is set"),
        (set_to("pre_tokenizer", None), "a pre_tokenizer is None; allowed: ByteLevel, Digits, Split"),
        (set_to("pre_tokenizer", {"type": "Whitespace"}), "a pre_tokenizer is 'Whitespace'"),
        (set_to("pre_tokenizer", {**LEVEL, "add_prefix_space": True}), "add_prefix_space is true, which adds text"),
        (set_to("pre_tokenizer", {"type": "Digits"}), "pre_tokenizer has 1 steps; allowed: at most 8, ByteLevel the l"),
        (set_to("pre_tokenizer", {"type": "Sequence", "pretokenizers": [HURTFUL, LEVEL]}), r"splits by '\(a\+\)\+\$'"),
        (set_to("pre_tokenizer", {"type": "Sequence", "pretokenizers": [LEVEL] * 999}), "has 999 steps"),
        (set_to("pre_tokenizer", {"type": "Sequence", "pretokenizers": []}), "has 0 steps"),
        (set_to("model", None), "model is a NoneType; allowed: a dict"),
        (set_to("model", "type", "Unigram"), "the model's type is 'Unigram'; allowed: 'BPE'"),
        (set_to("model", "dropout", 0.1), "dropout is 0.1; allowed: none"),
        (set_to("model", "byte_fallback", True), "byte_fallback is True"),
        (set_to("model", "ignore_merges", "yes"), "ignore_merges is 'yes'; allowed: true, false"),
        (set_to("model", "vocab", {}), "has 0 words; allowed: 1 to 1048576"),
        (set_to("model", "vocab", [1, 2]), "vocab is a list; allowed: a dict"),
        (set_to("model", "vocab", "hello", 10**9), "the id of 'hello' is 1000000000; allowed: 0 to 1048575"),
        (set_to("model", "vocab", "hello", -1), "the id of 'hello' is -1"),
        (set_to("model", "vocab", "hello", "7"), "the id of 'hello' is '7'"),
        (set_to("model", "vocab", "hello", True), "the id of 'hello' is True"),
        (set_to("model", "vocab", "twin", 5), "share the id 5; allowed: an id each"),
        (set_to("model", "vocab", "", 4000), "the word '' has 0 letters; allowed: 1 to 4096"),
        (set_to("model", "vocab", "a" * 5000, 4000), "has 5000 letters"),
        (set_to("model", "vocab", "▁the", 4000), "the word '▁the' is not byte-level"),
        (set_to("model", "merges", "h e"), "merges is a str; allowed: a list"),
        (set_to("model", "merges", 0, "a b c"), "a merge is 'a b c'; allowed: two words"),
        (set_to("model", "merges", 0, ["q", 7]), "a merge is .*; allowed: two words"),
        (set_to("model", "merges", 0, ["q", "z"]), "a merge makes or takes 'qz'; allowed: words of the vocabulary"),
        (set_to("added_tokens", {"a": 1}), "added_tokens must be a list"),
        (set_to("added_tokens", [7]), "an added token is 7; allowed: content of 2 to 256 signs"),
        (set_to("added_tokens", [{"id": 1, "content": "aa"}] * 9000), "added_tokens must be a list of at most 8192"),
        (
            set_to("added_tokens", [{"id": n, "content": f"{n:0200}"} for n in range(2000)]),
            "added tokens have 400000 signs in all; allowed: at most 262144",
        ),
        (added(content=""), "an added token is "),
        (added(content="a\ud800"), "an added token is "),
        (added(lstrip=True), "lstrip of the token '<sign>' loses text; allowed: false"),
        (added(content="<|endoftext|>"), "the added token '<|endoftext|>' is there twice"),
        (added(id=5), "and '<sign>' share the id 5"),
        (added(id=None), "the id of '<sign>' is None"),
    ],
)
def test_a_crafted_tokenizer_is_refused(change: Callable[[dict[str, Any]], None], message: str) -> None:
    assert check(GOOD).words
    values = deepcopy(GOOD)
    change(values)
    with pytest.raises(ValueError, match=message.replace("|", r"\|")) as refused:
        check(values)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


def test_a_form_of_text_is_left_as_it_is() -> None:
    """NFC, which Qwen's files ask for, is not carried out: both ways to write é come back."""
    words = Tokenizer(parts=check({**GOOD, "normalizer": {"type": "NFC"}}))
    assert words.parts.dropped == ("NFC",)
    for text in ("e\u0301", "\u00e9"):
        assert words.decode(words.encode(text)) == text.encode()


HUNGRY = {
    "power": "{{ 'a' * 10 ** 9 }}",
    "product": "{{ [1] * 1000000000 }}",
    "width": "{{ '%0999999999d' % 1 }}",
    "format": "{{ '{:>999999999}'.format(1) }}",
    "format by its key": "{{ 'a'['format'] }}{{ ('{:>999999999}'['format'])(1) }}",
    "ljust": "{{ 'a'.ljust(1000000000) }}",
    "center": "{% filter center(1000000000) %}a{% endfilter %}",
    "mapped": "{{ messages | map('center', 1000000000) | list }}",
    "indent": "{{ messages | tojson(indent=1000000000) }}",
    "range": "{% for a in range(999999999) %}{% endfor %}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "letters": "{% for a in 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' %}" * 18 + "{% endfor %}" * 18,
    "doubled": "{% set n = namespace(s='aaaa') %}{% for a in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "added": "{% set n = namespace(s='aaaa') %}{% for a in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "replaced": "{% set n = namespace(s='aaaa') %}{% for a in range(60) %}{% set n.s = n.s.replace('a', n.s) %}"
    "{% endfor %}",
    "joined": "{% set n = namespace(s='aaaa') %}{% for a in range(60) %}{% set n.s = n.s.join(n.s) %}{% endfor %}",
    "squared": "{% set n = namespace(s=3) %}{% for a in range(99) %}{% set n.s = n.s * n.s %}{% endfor %}",
    "captured": "{% set n = namespace(l=[]) %}{% for a in range(9999) %}{% set x %}" + "a" * 9999 + "{% endset %}"
    "{% set n.l = n.l + [x ~ a] %}{% endfor %}",
    "macros": "{% macro m(n) %}{% if n < 60 %}{{ m(n + 1) }}{{ m(n + 1) }}{% endif %}{% endmacro %}{{ m(1) }}",
    "endless": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive": "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "deep": "{{ " + "(" * 900 + "1" + ")" * 900 + " }}",
    "long": "a" * (2**16 + 1),
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['json'] }}",
    "method": "{{ messages.append.__self__ }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "filter": "{{ 'a' | attr('__class__') }}",
    "syntax": "{% for %}",
    "raised": "{{ raise_exception('not today') }}",
}

# What is in each file comes by its path: a list of things to do, one after another, under a limit on memory.
ATTACKED = """
import json, resource, sys
from pathlib import Path
from samebits.model.gguf import read_gguf
from samebits.model.huggingface import load_folder
from samebits.model.template import Template
from samebits.model.tokenizer import Tokenizer

Template("{{ 1 }}").render([])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))
acts = {"template": lambda path: Template(Path(path).read_text()).render([{"role": "user", "content": "hi"}]),
        "tokenizer": Tokenizer.load, "folder": load_folder, "gguf": read_gguf}
for kind, path in json.load(open(sys.argv[1])):
    try:
        acts[kind](path)
        print("taken")
    except ValueError as error:
        print(str(error).replace(chr(10), "NEW LINE"))
    except BaseException as error:
        print("UNCAUGHT", type(error).__name__)
"""


def attack(folder: Path, files: list[tuple[str, Path]]) -> list[str]:
    """One line of outcome for each file, from a process of its own."""
    listed = folder / "listed"
    listed.write_text(json.dumps([(kind, str(path)) for kind, path in files]))
    run = subprocess.run([sys.executable, "-c", ATTACKED, str(listed)], capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def test_hungry_templates_are_stopped(tmp_path: Path) -> None:
    for name, source in HUNGRY.items():
        (tmp_path / name).write_text(source)
    (tmp_path / "good").write_text("{{ messages[0].content }}")
    outcomes = attack(tmp_path, [("template", tmp_path / name) for name in (*HUNGRY, "good")])
    assert outcomes.pop() == "taken"
    wrong = {
        name: found for name, found in zip(HUNGRY, outcomes, strict=True) if not found.startswith("chat template: ")
    }
    assert wrong == {} and all("allowed: " in each and "NEW LINE" not in each for each in outcomes)


def holes(folder: Path, vocabulary: int, hidden: int) -> None:
    """A sound file of weights, terabytes of zeros that take no room on the disk."""
    values = {**LLAMA, "vocab_size": vocabulary, "hidden_size": hidden, "tie_word_embeddings": True}
    listed, end = {}, 0
    for name, shape in shapes(ModelConfig.from_huggingface(values)).items():
        listed[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + 4 * prod(shape)]}
        end += 4 * prod(shape)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    header = json.dumps(listed).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)


def test_hungry_files_are_stopped(tmp_path: Path) -> None:
    files: list[tuple[str, Path]] = []

    def file(kind: str, name: str, content: bytes) -> None:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
        files.append((kind, tmp_path / name if kind != "folder" else (tmp_path / name).parent))

    file("tokenizer", "deep.json", b"[" * 10**6)
    file("tokenizer", "nested.json", b'{"a":' * 40 + b"1" + b"}" * 40)
    file("tokenizer", "many.json", b"[" + b"[]," * (5 * 10**6) + b"[]]")
    file("tokenizer", "number.json", b'{"a": ' + b"9" * 10**6 + b"}")
    file("tokenizer", "list.json", b"[1, 2]")
    file("tokenizer", "double.json", b'{"model": 1, "model": 2}')
    file("tokenizer", "binary.json", b"\xff\xfe\x00")
    file("tokenizer", "empty.json", b"")
    with (tmp_path / "huge.json").open("wb") as huge:
        huge.truncate(2**40)  # a hole: it takes no room on the disk
    files.append(("tokenizer", tmp_path / "huge.json"))
    config = json.dumps({**LLAMA, "vocab_size": 2**22, "hidden_size": 2**17, "num_hidden_layers": 4096}).encode()
    file("folder", "lying/model.safetensors", (2).to_bytes(8, "little") + b"{}")
    (tmp_path / "lying" / "config.json").write_bytes(config)
    file("folder", "header/model.safetensors", (2**40).to_bytes(8, "little") + b"{}")
    (tmp_path / "header" / "config.json").write_bytes(json.dumps(LLAMA).encode())
    file("gguf", "counts.gguf", b"GGUF" + (3).to_bytes(4, "little") + (2**62).to_bytes(8, "little") * 2)
    holes(tmp_path / "holes", 2**22, 2**17)
    files.append(("folder", tmp_path / "holes"))
    outcomes = attack(tmp_path, files)
    assert "the memory of this machine" in outcomes[-1] and len(outcomes) == len(files)
    wrong = {
        str(path): found
        for (_, path), found in zip(files, outcomes, strict=True)
        if "allowed: " not in found or "NEW LINE" in found or len(found) > 600
    }
    assert wrong == {}


def test_memory_that_is_taken_is_noticed(tmp_path: Path) -> None:
    """Planted: a file so large that reading it goes beyond the limit is an error that nobody expected."""
    with (tmp_path / "large").open("wb") as large:
        large.truncate(2**30)
    assert attack(tmp_path, [("template", tmp_path / "large")]) == ["UNCAUGHT MemoryError"]


def test_honest_work_is_within_the_bounds() -> None:
    said = [{"role": "user", "content": "word " * 200}] * 300
    source = (
        "{{ bos_token }}{% for message in messages %}{% if loop.index0 % 2 == 0 and message.role == 'user' %}"
        "{{ '<|user|>' + message['content'] | trim + eos_token }}{% else %}{{ message.content.strip() ~ '!' }}"
        "{% endif %}{% endfor %}{{ messages | map(attribute='role') | unique | join(', ') }}{{ messages[1:] | length }}"
    )
    written = Template(source).render(said, bos_token="<s>", eos_token="</s>")
    assert written.startswith("<s><|user|>word") and written.endswith("useruser299"[4:])
    with pytest.raises(ValueError, match=f"it writes more than {LONGEST_OUTPUT} characters|{MOST_WORK}"):
        Template("{% for m in messages %}{{ m.content }}{% endfor %}").render(said * 10)
