"""TRL's GRPO trainer on a small Llama, as it is and under invariant mode: what TRL itself logs about being on-policy.

Run it: python examples/trl_grpo.py --steps 3

TRL compares the logprobs of its sampler with those of its trainer whenever the sampler is an engine that reports them.
Here that engine is a loop over transformers' own cache, in the place where TRL keeps vLLM. As they are, sampler and
trainer are the same weights and other bits. Under invariant mode they are the same bits."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import datasets
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
)
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from samebits import ops
from samebits.invariant import invariant_mode
from samebits.invariant.transformers import register
from samebits.parity.tasks import questions, reward

DIFFERENCE = "sampling/sampling_logp_difference/max"
LEAST, MOST = "sampling/importance_sampling_ratio/min", "sampling/importance_sampling_ratio/max"
SHOWN = ("reward", DIFFERENCE, LEAST, MOST, "kl")
"""TRL's names of what it logs: of each batch the farthest that trainer and sampler are apart, and their ratios."""
SEED = 0
COMPLETION = 6
LEARNING_RATE = 1e-3
PAD, EOS = "<pad>", "\n"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A token a byte, and one for padding; made here, so that nothing is downloaded."""
    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet | {PAD: len(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    newline = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(EOS)[0][0]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=newline)


def save_small_llama(folder: str, tokenizer: PreTrainedTokenizerFast) -> None:
    """Random weights: TRL loads them twice, as the policy and as the reference."""
    torch.manual_seed(SEED)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    ).save_pretrained(folder)


def own_positions(_: Any, arguments: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """TRL scores rows padded on the left without saying positions; transformers then counts the padding too."""
    mask = options.get("attention_mask")
    if options.get("position_ids") is None and mask is not None:
        options["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return arguments, options


class CachedSampler:
    """What TRL asks of its engine: the whole generation batch at once, prefilled, then token by token with a cache."""

    def __init__(self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
        self.model, self.tokenizer, self.calls = model, tokenizer, 0

    def sync_weights(self) -> None:
        """The weights are the trainer's own."""

    @torch.no_grad()
    def generate(self, prompts: Sequence[Sequence[int]], **_: Any) -> tuple[Any, list[list[int]], list[Any], None]:
        self.calls += 1
        longest, count = max(map(len, prompts)), len(prompts)
        pad, stop = self.tokenizer.pad_token_id, self.tokenizer.eos_token_id
        ids = torch.tensor([[pad] * (longest - len(each)) + list(each) for each in prompts])
        mask = (torch.arange(longest) >= longest - torch.tensor([len(each) for each in prompts])[:, None]).long()
        cache, steps = DynamicCache(config=self.model.config), []
        for place in range(COMPLETION):
            positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            hidden = self.model.model(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
            ).last_hidden_state[:, -1]
            tokens = ops.sample(
                self.model.lm_head(hidden),
                seed=SEED,
                requests=torch.arange(count) + count * self.calls,
                positions=torch.full((count,), place),
            )
            steps.append((tokens, self._logprobs(hidden, tokens)))
            ids, mask = tokens[:, None], torch.cat((mask, mask.new_ones(count, 1)), 1)
        tokens_BS, logprobs_BS = (torch.stack(each, 1).tolist() for each in zip(*steps, strict=True))
        lengths = [row.index(stop) + 1 if stop in row else len(row) for row in tokens_BS]
        tokens_said = [row[:length] for row, length in zip(tokens_BS, lengths, strict=True)]
        said = [[[each] for each in row[:length]] for row, length in zip(logprobs_BS, lengths, strict=True)]
        return None, tokens_said, said, None

    def _logprobs(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """By the function with which TRL scores."""
        weight = self.model.lm_head.weight
        found: Tensor = ChunkedLogProbFunction.apply(hidden, weight, None, tokens, 1.0, len(weight), None, 1.0, ())[0]
        return found


class Keep(TrainerCallback):
    """Every batch's figures, as TRL logs them."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        if DIFFERENCE in logs:
            self.logged.append({name: logs[name] for name in SHOWN})


def train(steps: int, mode: Any, attention: str) -> list[dict[str, float]]:
    """What TRL logged of each step."""
    asked = {bytes(each.prompt).decode(): each for each in questions("sorting", SEED, 0, 64)}

    def judged(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [reward(asked[prompt], said.encode()) for prompt, said in zip(prompts, completions, strict=True)]

    keep, tokenizer = Keep(), byte_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=4,
            steps_per_generation=4,
            num_generations=4,
            max_completion_length=COMPLETION,
            beta=0.05,
            learning_rate=LEARNING_RATE,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            seed=SEED,
            max_grad_norm=0.0,
            vllm_importance_sampling_mode="token_truncate",
            gradient_checkpointing=False,
            model_init_kwargs={"attn_implementation": attention, "dtype": "float32"},
        )
        save_small_llama(folder, tokenizer)
        trainer = GRPOTrainer(
            folder,
            judged,
            args=config,
            processing_class=tokenizer,
            callbacks=[keep],
            train_dataset=datasets.Dataset.from_list([{"prompt": prompt} for prompt in asked]),
        )
        trainer.remove_callback(PrinterCallback)
        # TRL's own choice is a fused step whose sums nobody confirms.
        trainer.optimizer = ops.AdamW(trainer.model.parameters(), lr=LEARNING_RATE)
        for model in (trainer.model, trainer.ref_model):
            model.model.register_forward_pre_hook(own_positions, with_kwargs=True)
        trainer.use_vllm, trainer._last_loaded_step = True, -1
        trainer.vllm_generation = CachedSampler(trainer.model, tokenizer)
        with mode:
            trainer.train()
    return keep.logged


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=3)
    steps = parser.parse_args().steps
    register()
    disable_progress_bar()
    mode = invariant_mode(strict=False)
    runs = {"stock": train(steps, nullcontext(), "sdpa"), "invariant mode": train(steps, mode, "samebits")}
    for name, logged in runs.items():
        print(
            f"\n{name}\n{'step':>4}  {'reward':>8}  {'largest difference':>18}  {'ratio':>23}  {'kl to reference':>15}"
        )
        for step, each in enumerate(logged, 1):
            ratio = f"{each[LEAST]:.9g} to {each[MOST]:.9g}"
            print(f"{step:>4}  {each['reward']:>8.4f}  {each[DIFFERENCE]:>18.3g}  {ratio:>23}  {each['kl']:>15.9g}")
    print(f"\nran as they are, without a guarantee: {dict(mode.unverified)}")


if __name__ == "__main__":
    main()
