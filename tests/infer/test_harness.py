"""samebits behind lm-evaluation-harness's model interface: its three questions, answered alike in any batch size."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.infer import minimal_harness
from tests.infer.minimal_harness import MODELS, Instance

from samebits.infer.evaluate_tasks import pair_of
from samebits.model import Batch
from samebits.model.loading import load
from samebits.records.packages import MissingPackageError

PAIRS = [("The sky is", " blue"), ("", "no context"), ("spaces  ", "here"), ("x" * 40, " ü"), ("The sky is", " green")]
TEXTS = ["short", "a longer text " * 20, "another"]


@pytest.fixture
def harness() -> Iterator[None]:
    minimal_harness.install()
    yield
    minimal_harness.remove()


def made(**options: Any) -> Any:
    import samebits.infer.harness  # noqa: F401

    named = ",".join(f"{key}={value}" for key, value in {"pretrained": "tiny@0", "max_length": 120, **options}.items())
    return MODELS["samebits"].create_from_arg_string(named)  # type: ignore[attr-defined]


def asked(*args: Any) -> Instance:
    return Instance(args=args)


@pytest.mark.usefixtures("harness")
def test_loglikelihoods_are_the_forward_pass_in_any_batch_size() -> None:
    loaded, requests = load("tiny@0"), [asked(*pair) for pair in PAIRS]
    one, many = made(batch_size=1), made(batch_size=16)
    found = one.loglikelihood(requests)
    assert found == many.loglikelihood(requests)
    for (context, continuation), (value, greedy) in zip(PAIRS, found, strict=True):
        pair = pair_of(loaded.tokenizer, context, continuation)
        with torch.no_grad():
            hidden = loaded.model.hidden(Batch.of([pair.tokens[:-1]]))
            own = loaded.model.logprobs(hidden, torch.tensor(pair.tokens[1:])).tolist()[-len(pair.continuation) :]
            best = loaded.model.logits(hidden)[-len(pair.continuation) :].argmax(-1).tolist()
        assert value == math.fsum(own) and greedy is (tuple(best) == pair.continuation)
    assert [each[0] for each in one.cache_hook.added] == ["loglikelihood"] * len(PAIRS)


@pytest.mark.usefixtures("harness")
def test_rolling_predicts_every_token_once() -> None:
    requests = [asked(each) for each in TEXTS]
    found = made(batch_size=1).loglikelihood_rolling(requests)
    assert found == made(batch_size=5).loglikelihood_rolling(requests) and all(value < 0 for value in found)
    loaded = load("tiny@0")
    tokens = [256, *loaded.tokenizer.encode(TEXTS[0])]
    with torch.no_grad():
        own = loaded.model.logprobs(loaded.model.hidden(Batch.of([tokens[:-1]])), torch.tensor(tokens[1:]))
    assert found[0] == math.fsum(own.tolist())


@pytest.mark.usefixtures("harness")
def test_answers_end_before_their_stop_texts() -> None:
    options = {"max_gen_toks": 12, "do_sample": False}
    requests = [asked(context, options) for context, _ in PAIRS]
    one, many = made(batch_size=1), made(batch_size=16)
    whole = one.generate_until(requests)
    assert whole == many.generate_until(requests)
    stop = whole[0][3]
    ended = many.generate_until([asked(PAIRS[0][0], {**options, "until": [stop]})])
    assert ended == [whole[0][: whole[0].index(stop)]]
    sampled = {"max_gen_toks": 12, "do_sample": True, "temperature": 1.5, "seed": 3}
    assert (
        one.generate_until([asked("a", sampled)]) == many.generate_until([asked("b", sampled), asked("a", sampled)])[1:]
    )
    assert one.generate_until([]) == [] and one.loglikelihood([]) == []


@pytest.mark.usefixtures("harness")
def test_what_is_not_honoured_is_refused() -> None:
    with pytest.raises(ValueError, match="generation has 'num_beams'; allowed: until, do_sample"):
        made().generate_until([asked("a", {"num_beams": 4})])
    with pytest.raises(ValueError, match="batch_size is 'auto'; allowed: a whole number"):
        made(batch_size="auto")
    with pytest.raises(ValueError, match="max_length is 5000; allowed: 2 to 1023"):
        made(max_length=5000)


def test_without_the_package_one_line_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    minimal_harness.remove()
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(
        MissingPackageError, match=r"'lm_eval', which is not installed; pip install samebits\[evaluate\]"
    ):
        import samebits.infer.harness  # noqa: F401
