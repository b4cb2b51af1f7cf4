"""What training promises holds on the CPU: every obligation on its written cases, and every planted fault is caught."""

from __future__ import annotations

import pytest
from tests.contracts.judged import assert_holds, components_of, judgements_of

import samebits.train.contracts
from samebits.checker.obligations import Judgement
from samebits.checker.targets import specs
from samebits.contracts.registry import Component

COMPONENTS = components_of(samebits.train.contracts)
JUDGEMENTS = judgements_of(COMPONENTS)
# A minute and more each. Their receipts die with whatever they rest on, which `make test` compares.
LONG = {"ATTIDX-OB1", "GRADFLOW50M-OB1", "KDGAIN-OB1", "LAUNCHIDX-OB1", "LIBIDX-OB1"}


def test_what_is_left_to_the_long_run_exists() -> None:
    assert {judgement.obligation for judgement in JUDGEMENTS} >= LONG


@pytest.mark.parametrize(
    "judgement",
    [
        pytest.param(each, id=each.obligation, marks=pytest.mark.long if each.obligation in LONG else ())
        for each in JUDGEMENTS
    ],
)
def test_an_obligation_holds_and_its_faults_are_caught(judgement: Judgement) -> None:
    assert_holds(judgement)


def test_the_components_are_those_that_were_meant() -> None:
    """A folder that lost its contract would no longer be judged, and nobody would notice."""
    assert set(COMPONENTS) == {
        "accumulation_gpu",
        "attention_indices",
        "buf_size",
        "checkpoint",
        "data_parallel",
        "data_pipeline",
        "distill_gain",
        "distributed",
        "embed_grad",
        "gemm_args",
        "gpu_init",
        "gradient_accumulation",
        "gradflow",
        "gradflow_50m",
        "hyperparams",
        "kernel_sizes",
        "launch_indices",
        "library_indices",
        "observability",
        "product_sizes",
        "run_log",
        "settled",
        "settled_gpu",
        "stream_sync",
        "teacher_logits",
        "train_stable",
        "train_stable_350m",
        "training_config",
        "training_gpu",
        "unread_keys",
    }


@pytest.mark.parametrize("component", COMPONENTS.values(), ids=lambda component: component.name)
def test_a_component_is_complete(component: Component) -> None:
    """Contract, subject, reference, inputs and faults stand side by side."""
    names = {file.name for file in component.folder.iterdir()}
    assert {"__init__.py", "reference.py", "contract.yaml", "check.py", "faults.py"} <= names
    assert component.contract().contract == component.name
    assert {subject.spec for subject in component.contract().subjects.values()} <= set(specs(component))
