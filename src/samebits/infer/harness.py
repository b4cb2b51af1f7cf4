"""samebits as a model of lm-evaluation-harness (lm-eval 0.4): its requests go through our engine, in any batch size.

Importing this module registers the model under the name `samebits`; it needs the package lm-eval, which nothing else
here does. An answer depends on its request and the weights alone, so that `batch_size` decides speed and no bit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from samebits.infer.engine import Engine
from samebits.infer.evaluate_tasks import pair_of, prefix_of
from samebits.infer.request import Request, Sampling
from samebits.infer.scoring import Pair, Scorer, rolling
from samebits.model.loading import load
from samebits.records.packages import MissingPackageError

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ModuleNotFoundError as error:
    needs = "needs the package 'lm_eval', which is not installed; pip install samebits[evaluate]"
    raise MissingPackageError(f"samebits.infer.harness {needs}") from error

DEFAULT_LENGTH: Final = 2048
DEFAULT_ANSWER: Final = 256
# How many tokens an answer may have goes by many names.
LENGTHS: Final = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
# Of what may be asked for an answer, what is honoured; anything else is refused rather than ignored.
HONOURED: Final = ("until", "do_sample", "temperature", "top_p", "top_k", "seed", *LENGTHS)


@register_model("samebits")
class SamebitsLM(LM):  # type: ignore[misc]
    """A model and its tokenizer, asked by the harness."""

    def __init__(
        self,
        pretrained: str = "smollm2",
        dtype: str = "float32",
        device: str | None = "cpu",
        batch_size: int | str = 16,
        max_length: int | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        """`pretrained`: a folder with config.json, a .gguf file, smollm2, or a preset with its seed, tiny@0."""
        super().__init__()
        if not str(batch_size).isdigit():
            raise ValueError(
                f"samebits: batch_size is {batch_size!r}; allowed: a whole number, for any gives these bits"
            )
        loaded = load(pretrained, dtype, device or "cpu")
        self.words = loaded.tokenizer
        self.scorer = Scorer(loaded.model, batch_size=int(batch_size))
        self.longest = min(DEFAULT_LENGTH, self.scorer.longest) if max_length is None else int(max_length)
        if not 2 <= self.longest <= self.scorer.longest:
            raise ValueError(f"samebits: max_length is {self.longest}; allowed: 2 to {self.scorer.longest}")

    @property
    def tokenizer_name(self) -> str:
        return f"samebits-{self.words.digest()}"

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        if not add_generation_prompt:
            raise ValueError("samebits: add_generation_prompt is False; allowed: True, as the template is written")
        return self.words.chat(chat_history)

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(logprob of the continuation, whether greedy decoding gives it) of each (context, continuation)."""
        pairs = [pair_of(self.words, *request.args, special=True).within(self.longest) for request in requests]
        found = [(each.loglikelihood, bool(each.greedy)) for each in self.scorer.score(pairs, greedy=True)]
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """The logprob of each text after the token that begins it, every token predicted once."""
        windows: list[list[Pair]] = [
            rolling(self.words.encode(request.args[0]), prefix_of(self.words), self.longest) for request in requests
        ]
        scored = iter(self.scorer.score([pair for each in windows for pair in each]))
        found = []
        for request, each in zip(requests, windows, strict=True):
            total = math.fsum(logprob for _ in each for logprob in next(scored).logprobs)
            found.append(total)
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The text that follows each context, up to the first of its stop texts."""
        asked = [self._asked(*request.args) for request in requests]
        if not asked:
            return []
        engine = self.scorer.engine(max(len(each.prompt) + each.max_tokens for each, _ in asked))
        found = _answers(engine, [each for each, _ in asked], [stops for _, stops in asked], self.words.text)
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, answer)
        return found

    def _asked(self, context: str, options: Mapping[str, Any]) -> tuple[Request, list[str]]:
        """A request, and the texts that end its answer. The context is cut from the left where it is too long."""
        if unknown := sorted(options.keys() - set(HONOURED)):
            raise ValueError(f"samebits: generation has {unknown[0]!r}; allowed: {', '.join(HONOURED)}")
        lengths = [int(options[name]) for name in LENGTHS if options.get(name) is not None]
        most = min(lengths[0] if lengths else DEFAULT_ANSWER, self.longest - 1)
        until = options.get("until") or []
        tokens = self.words.encode(context) or [prefix_of(self.words)]
        temperature = float(options.get("temperature") or 0.0)
        sampled = options.get("do_sample", temperature > 0.0)
        sampling = Sampling(
            temperature=(temperature or 1.0) if sampled else 0.0,
            top_k=int(options.get("top_k") or 0),
            top_p=float(options.get("top_p") or 1.0),
            seed=int(options.get("seed") or 0),
        )
        prompt = tuple(tokens[-(self.longest - most) :])
        request = Request(prompt=prompt, max_tokens=most, sampling=sampling, stop=frozenset(self.words.eos))
        return request, [until] if isinstance(until, str) else [str(each) for each in until]


def _answers(engine: Engine, requests: Sequence[Request], stops: Sequence[list[str]], text: Any) -> list[str]:
    """Texts of all answers; one whose stop text has come is cancelled, and ends before it."""
    tickets = {engine.submit(request): place for place, request in enumerate(requests)}
    tokens: list[list[int]] = [[] for _ in requests]
    ended = [False] * len(requests)
    while not engine.idle:
        for event in engine.step():
            place = tickets[event.ticket]
            if ended[place] or event.token < 0 or event.token in requests[place].stop:
                continue
            tokens[place].append(event.token)
            if any(stop in text(tokens[place]) for stop in stops[place]):
                ended[place] = True
                engine.cancel(event.ticket)
    return [_before(text(each), stops[place]) for place, each in enumerate(tokens)]


def _before(answer: str, stops: Sequence[str]) -> str:
    """Up to the first of the stop texts."""
    return answer[: min((answer.find(stop) for stop in stops if stop in answer), default=len(answer))]
