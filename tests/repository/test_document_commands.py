"""Every command that a document shows ends with the one exit code that is written beside it.

Each is run here, or held against the real command line where another test does the same; the table says which."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.repository.documents import PROJECT, Block
from tests.repository.shown_commands import Shown, all_shown, commands_of, mentioned, read, refusal, words_of

from samebits.cli import main


@dataclass(frozen=True, slots=True)
class Run:
    """Run here, in this process; `smaller` are further words that make it short."""

    smaller: tuple[str, ...] = ()
    alone: bool = False
    """In a process of its own: ranks, which take their place from the environment."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Held against the command line here; what it does is done by this test, where it is long on fewer inputs."""

    test: str


PROMISES = Elsewhere(
    "tests/checker/test_promises.py::test_a_component_keeps_its_promise_and_the_planted_faults_are_caught"
)
GOLDEN = Elsewhere("tests/goldens/test_portable.py::test_this_machine_gives_the_record")
TRAINED = Elsewhere("tests/train/test_running.py::test_a_run_is_logged_and_ends_in_a_checkpoint")
ON_RANKS = Elsewhere("tests/train/test_ranks.py::test_every_grid_gives_one_checkpoint")
SERVED = Elsewhere("tests/infer/test_server_process.py::test_running_answers_end_and_new_ones_are_refused")
LAUNCHED = Elsewhere("tests/parallel/test_launching.py::test_the_command_launches_ranks_that_add")
TORCHRUN = Elsewhere("tests/parallel/test_launching.py::test_torchrun_launches_ranks_too")
RL = Elsewhere("tests/parity/test_rl.py::test_the_command_shows_both_and_judges_samebits")
RL_ON_RANKS = Elsewhere("tests/parity/test_rl_ranks.py::test_the_command_on_two_ranks_says_what_one_says")
OWN_CONTRACT = Elsewhere("tests/contracts/test_receipts.py::test_a_users_own_contract_reaches_its_level")
REPLAYED = Elsewhere("tests/contracts/test_receipts.py::test_what_is_run_is_written_down_and_replayed")
SIGNED = Elsewhere("tests/contracts/test_signing.py::test_a_signature_speaks_for_the_receipts_as_they_lie")
DISTILLED = Elsewhere("tests/train/test_distill_command.py::test_the_recipe_runs")
EVALUATED = Elsewhere("tests/infer/test_evaluate.py::test_the_example_is_the_same_in_any_batch_size")
MERGED = Elsewhere("tests/post/test_merge.py::test_the_command_killed_and_full_goes_on")
QUANTIZED = Elsewhere("tests/post/test_quantize.py::test_the_command")
SUITE = Elsewhere("tests/repository/test_documents.py::test_make_targets_exist")
WHEEL = Elsewhere("tests/setup/test_wheel.py::test_version_and_the_help_of_every_command")

BENCH = Elsewhere("tests/bench/test_bench_command.py::test_table_record_and_plot")
COVERED: dict[str, Run | Elsewhere] = {
    # README
    "samebits check --portable": GOLDEN,
    "samebits reveal torch.nn.functional.linear --k 64 --rows 1,2,8,64": Run(),
    "samebits reveal matmul --k 64 --rows 1,2,8,64": Run(),
    "samebits check matmul --backend cpu --promise batch": Run(
        smaller=("--shape", "33x100x33", "--recipe", "normal", "--format", "float32", "--seed", "1")
    ),
    "samebits check torch.nn.functional.linear --promise batch": Elsewhere(
        "tests/cli/test_commands.py::test_check_says_what_differs_and_how_to_see_it_again"
    ),
    "samebits plan recipes/tiny.yaml": Run(),
    "samebits train recipes/tiny.yaml --out runs/tiny": TRAINED,
    'samebits generate --model smollm2 --chat --prompt "What is a prime number?"': Run(smaller=("--max-tokens", "2")),
    "samebits launch --nproc 4 -- train recipes/tiny.yaml --out runs/four --tensor 2": ON_RANKS,
    "samebits serve --model smollm2": SERVED,
    "samebits rl": RL,
    "samebits check rope swiglu --backend cpu": PROMISES,
    "samebits check --chain --promise batch --format float32 --seed 1": Elsewhere(
        "tests/parity/test_chain.py::test_the_chain_keeps_its_bits"
    ),
    "samebits contract prove gelu --only GE-OB1 --level 2 --receipts made_here": Run(),
    "samebits prune merged --method wanda --out sparse": Elsewhere("tests/post/test_prune.py::test_the_command"),
    "samebits quantize merged --format q4_1 --out small": QUANTIZED,
    "samebits evaluate --model smollm2 --task examples/evaluate/questions.jsonl": EVALUATED,
    "samebits profile tiny --steps 3 --output traces": Elsewhere("tests/cli/test_profile.py::test_a_run_is_profiled"),
    "samebits train recipes/tiny.yaml --out runs/tiny --trace-steps 16": Elsewhere(
        "tests/train/test_step_traces.py::test_every_third_step_is_recorded_whole"
    ),
    "samebits bench linear --model smollm2-135m": BENCH,
    "samebits bench linear rmsnorm --model smollm2-135m --rows 1 --rows 64": BENCH,
    "samebits bench --dry-run": Run(),
    "samebits bench training decode invariant": Elsewhere("tests/bench/test_end_to_end.py::test_table_record_and_plot"),
    "samebits bench swiglu --rows 16 --record ratios.json --plot ratios.svg": Run(
        smaller=("--seconds", "0.001", "--rounds", "1")
    ),
    "samebits diff runs/a runs/b": Elsewhere(
        "tests/parity/test_run_diff.py::test_one_bit_of_one_gradient_at_step_seven_is_named"
    ),
    "samebits report open runs/tiny": Elsewhere("tests/cli/test_run_page.py::test_the_page_holds_the_run"),
    # docs
    "samebits debug tiny --steps 1": Elsewhere("tests/cli/test_debug_command.py::test_a_run_that_is_well"),
    "samebits profile my_script.py": Elsewhere("tests/cli/test_profile.py::test_a_script_is_profiled"),
    "samebits distill recipes/distill_smollm2.yaml --dry-run": DISTILLED,
    "samebits distill recipes/distill_smollm2.yaml --out runs/student": DISTILLED,
    "samebits distill recipes/distill_smollm2.yaml --out runs/student --resume": DISTILLED,
    "samebits launch --nproc 2 -- distill recipes/distill_smollm2.yaml --out runs/2 --set training.lanes=2": Elsewhere(
        "tests/train/test_distill.py::test_ranks_share_the_lanes"
    ),
    "samebits evaluate --model smollm2 --task examples/evaluate/questions.jsonl --dry-run": EVALUATED,
    "samebits evaluate --model smollm2 --task examples/evaluate/questions.jsonl --batch-size 1": EVALUATED,
    "samebits evaluate --model smollm2 --task examples/evaluate/questions.jsonl --out runs/asked": EVALUATED,
    "samebits evaluate --model smollm2 --task examples/evaluate/questions.jsonl --out runs/asked --resume": EVALUATED,
    "samebits check torch.nn.functional.linear": Run(smaller=("--seconds", "2")),
    "samebits check examples/my_kernel.py:split_by_batch --like matmul": Run(),
    "make test-long": SUITE,
    "samebits contract prove softmax": OWN_CONTRACT,
    "samebits contract status": OWN_CONTRACT,
    "samebits contract audit": OWN_CONTRACT,
    "samebits contract replay --seconds 60 --seed 7": REPLAYED,
    "samebits contract collect h200": REPLAYED,
    "samebits contract sign --key ~/.ssh/id_ed25519": SIGNED,
    "samebits contract verify --allowed-signers FILE": SIGNED,
    "PYTHONPATH=src python -m samebits.cli contract prove --level 2 --level 3 --backend triton --jobs 16 "
    "--receipts h200": REPLAYED,
    "samebits contract prove softmax --only SM-OB1 --level 2 --receipts made_here": Run(),
    "samebits contract validate --deep": Run(),
    "samebits contract graph --format mermaid": Run(),
    "samebits contract prove --components examples/components --receipts my_receipts": OWN_CONTRACT,
    "samebits contract status --components examples/components --receipts my_receipts": OWN_CONTRACT,
    "samebits contract validate --deep theirs/contract.yaml": Elsewhere(
        "tests/contracts/test_trusting.py::test_a_file_cannot_have_code_imported"
    ),
    'samebits generate --model tiny@0 --prompt "def main():" --max-tokens 4 --logprobs': Run(),
    "git clone ... && cd samebits && make demo": Elsewhere("tests/cli/test_demo.py::test_the_command_writes_the_page"),
    "pip wheel . --no-deps && pip install samebits-*.whl": WHEEL,
    "samebits doctor": Run(),
    "samebits --version": Run(),
    "samebits check --model smollm2 --promise cache": Elsewhere(
        "tests/invariant/test_smollm2.py::test_real_text_keeps_its_bits_in_every_form"
    ),
    "samebits launch --nproc 4 -- train recipes/tiny.yaml --out runs/tiny": ON_RANKS,
    "samebits launch --nproc 2 -- my_program.py --steps 20": LAUNCHED,
    "samebits launch --nproc 2 -- -m my_package.train": LAUNCHED,
    "torchrun --nproc-per-node 4 -m samebits.cli train recipes/tiny.yaml --out runs/tiny": TORCHRUN,
    "samebits launch --nproc 3 -- examples/tensor_parallel.py": Run(alone=True),
    "samebits sim run examples/tensor_parallel.py --ranks 3": Run(),
    "samebits sim explore examples/tensor_parallel.py --ranks 3 --seeds 20": Run(smaller=("--seeds", "3")),
    'samebits sim run examples/tensor_parallel.py --ranks 3 --trace "4:1 7:1"': Run(),
    "samebits rl --steps 3": RL,
    "samebits rl --steps 3 --lanes 4 --no-stock": RL,
    "samebits launch --nproc 4 -- rl --steps 3 --lanes 4": RL_ON_RANKS,
    "samebits launch --nproc 4 -- rl --steps 3 --lanes 4 --tensor 2": RL_ON_RANKS,
    "python examples/trl_grpo.py --steps 2": Elsewhere(
        "tests/parity/test_trl.py::test_the_program_prints_what_both_logged"
    ),
    "samebits train recipes/tiny.yaml --out runs/one": TRAINED,
    "torchrun --nproc-per-node 4 -m samebits.cli train recipes/tiny.yaml --out runs/same": TORCHRUN,
    "samebits launch --nproc 2 -- train recipes/tiny.yaml --out runs/four --tensor 2 --resume": Elsewhere(
        "tests/train/test_ranks.py::test_killed_anywhere_and_resumed_on_another_grid"
    ),
    'samebits launch --nproc 2 -- generate --model smollm2 --prompt "Two is a prime" --logprobs': Elsewhere(
        "tests/infer/test_ranks.py::test_ranks_say_what_one_rank_says"
    ),
    "samebits check --portable --instruction-set baseline": GOLDEN,
    "samebits check --portable --backend triton": Run(),
    "samebits check --portable --json": GOLDEN,
    "samebits check --portable --record": Elsewhere(
        "tests/goldens/test_portable.py::test_recording_again_gives_the_same_file"
    ),
    "PYTHONPATH=src python -m samebits.native.build": Elsewhere(
        "tests/long/test_native_digests.py::test_every_compiler"
    ),
    "PYTHONPATH=src python -m samebits.cli check --portable": GOLDEN,
    "samebits check rmsnorm --backend cpu --promise accuracy": Run(),
    "samebits check attention --backend cpu --promise cache": PROMISES,
    "samebits merge recipe.yaml --out merged --dry-run": MERGED,
    "samebits merge recipe.yaml --out merged": MERGED,
    "samebits prune merged --method wanda --sparsity 0.5 --out sparse": Elsewhere(
        "tests/post/test_prune.py::test_the_command"
    ),
    "samebits quantize merged --format q4_0 --out small": QUANTIZED,
    "samebits quantize merged --format int4 --group 128 --out packed": QUANTIZED,
    'samebits generate --model small/model.gguf --prompt "def main():" --max-tokens 8': Elsewhere(
        "tests/post/test_example.py::test_the_example_runs"
    ),
    "samebits check matmul --promise device": Run(),
    "samebits check rmsnorm --backend cpu --promise chunk": PROMISES,
    "samebits check rmsnorm --backend cpu --promise micro": Run(),
    "samebits check rmsnorm --backend cpu --promise order": PROMISES,
    "samebits check rmsnorm --backend cpu --promise padding": PROMISES,
    "samebits check rmsnorm --backend cpu --promise repeat": PROMISES,
    "samebits check rmsnorm --backend cpu --promise tile": Run(),
    "samebits serve --model smollm2 --port 8000": SERVED,
    "lm_eval --model local-completions --tasks arc_easy --batch_size 16 --model_args"
    " model=smollm2,base_url=http://127.0.0.1:8000/v1/completions,tokenizer_backend=huggingface,tokenizer=FOLDER,"
    "max_length=2048": Elsewhere(
        "tests/infer/test_server_harness.py::test_loglikelihoods_one_by_one_and_sixteen_at_once"
    ),
    "samebits train recipes/tiny.yaml --out runs/tiny --resume": Elsewhere(
        "tests/train/test_running.py::test_a_run_goes_on_with_another_cut_and_to_the_same_end"
    ),
    "samebits train recipes/tiny.yaml --out runs/other --set training.micro_batch_size=16"
    " --set training.gradient_accumulation_steps=1": Elsewhere(
        "tests/train/test_trainer.py::test_any_cut_gives_one_checkpoint"
    ),
    "samebits sim predict recipes/8b.yaml --gpus 64 --gpus 1024 --gpus 16384": Elsewhere(
        "tests/sim/test_time_page.py::test_the_page_shows_what_predict_prints"
    ),
    "samebits sim validate": Elsewhere("tests/sim/test_time_page.py::test_the_page_shows_what_validate_prints"),
}

ALL = {" ".join(shown.words.split()): shown for shown in all_shown()}
GPU = torch.cuda.is_available()


def test_every_command_is_covered_and_has_one_exit_code() -> None:
    assert sorted(ALL) == sorted(COVERED)
    assert len(ALL) == len(all_shown()), "one command has two exit codes"


@pytest.mark.parametrize("command", [each for each, way in COVERED.items() if isinstance(way, Run)])
def test_a_command_ends_as_it_is_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    way, words, wanted = COVERED[command], words_of(command)[1:], ALL[command].expected(GPU)
    assert isinstance(way, Run)
    monkeypatch.chdir(PROJECT if re.search(r"recipes/|examples/", command) else tmp_path)
    if way.alone:
        ran = subprocess.run(
            [sys.executable, "-m", "samebits.cli", *words], capture_output=True, text=True, timeout=300
        )
        assert ran.returncode == wanted and "Traceback" not in ran.stderr, ran.stdout + ran.stderr
        return
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        main([*words, *way.smaller])
    said = capsys.readouterr()
    assert int(ended.value.code or 0) == wanted and said.out and "Traceback" not in said.err, said.out + said.err


@pytest.mark.parametrize("command", [each for each, way in COVERED.items() if isinstance(way, Elsewhere)])
def test_a_command_that_another_test_runs_is_one(command: str) -> None:
    """The real parser takes its words; files, modules and options that it names are there; so is the test."""
    way, words = COVERED[command], words_of(command)
    assert isinstance(way, Elsewhere)
    file, _, test = way.test.partition("::")
    assert re.search(rf"^def {test}\(", (PROJECT / file).read_text(), re.MULTILINE), way.test
    program = next((word for word in words if word in ("samebits", "samebits.cli")), None)
    if program is not None and "&&" not in words:
        assert refusal(words[words.index(program) + 1 :]) is None
    for word in words:
        if word.startswith(("recipes/", "examples/")):
            assert (PROJECT / word.partition(":")[0]).exists()
    if words[0] == "PYTHONPATH=src":
        assert importlib.util.find_spec(words[words.index("-m") + 1]) is not None
    if words[0] == "python":
        source = (PROJECT / words[1]).read_text()
        assert all(f'"{word}"' in source for word in words[2:] if word.startswith("--"))


@pytest.mark.parametrize("command", sorted(mentioned()))
def test_a_command_within_a_sentence_is_one(command: str) -> None:
    assert refusal(words_of(command)[1:], whole=False) is None


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("check matmul --promises batch", "NoSuchOption"),
        ("check matmul --promise bath", "unknown promise 'bath'"),
        ("check matmull", "'matmull'"),
        ("chek matmul", "no command is called 'chek'"),
        ("contract shows", "no command is called 'shows'"),
        ("reveal matmul --k many", "BadParameter"),
        ("train recipes/tiny.yaml", "MissingParameter"),
        ("launch --nproc 2 -- train recipes/tiny.yaml --outs x", "NoSuchOption"),
    ],
)
def test_words_that_the_command_line_refuses_are_noticed(command: str, fault: str) -> None:
    """Planted faults."""
    assert fault in str(refusal(words_of(command)))


@pytest.mark.parametrize(
    ("line", "code", "without_gpu"),
    [
        ("samebits a", 0, 0),
        ("samebits a  # words", 0, 0),
        ("samebits a # exit 1", 1, 1),
        ("samebits a # exit 2: why", 2, 2),
        ("samebits a # exit 0; without a GPU exit 3: words", 0, 3),
    ],
)
def test_an_exit_code_is_read_from_the_comment(line: str, code: int, without_gpu: int) -> None:
    assert read(line) == Shown("samebits a", code, without_gpu)
    assert (read(line).expected(gpu=True), read(line).expected(gpu=False)) == (code, without_gpu)


def test_two_codes_for_one_command_are_refused() -> None:
    """Planted fault: what the documents said before."""
    with pytest.raises(ValueError, match="the comment cannot be read"):
        read("samebits check x  # exit 0 or 1")
    block = Block("console", "$ samebits a # exit 1\nsamebits: not a command\n$ samebits b\n")
    assert commands_of([block]) == [Shown("samebits a", 1, 1), Shown("samebits b", 0, 0)]
