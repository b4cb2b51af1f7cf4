"""A distillation from its configuration to its last checkpoint: judged before a step, logits kept first if wanted.

The steps are those of `running`, with the loss of `distill`. What a kill leaves of kept logits are whole shards. Ranks
share the sequences of which logits are kept, then the lanes; each has the teacher to itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samebits.model.loading import load
from samebits.model.model import Model
from samebits.model.tokenizer import Tokenizer
from samebits.model.weights import count
from samebits.parallel.agreeing import agree
from samebits.parallel.collectives import gathered_integers
from samebits.parallel.grid import Grid
from samebits.parallel.world import World
from samebits.records.durable import make_directory, only_writer
from samebits.train.assessment import Assessment, assess, data_of, shape_of, words_of
from samebits.train.configuration import comparable
from samebits.train.contracts.teacher_logits import Form
from samebits.train.data import Data
from samebits.train.data_order import sequences_of
from samebits.train.display import Screen, Silent
from samebits.train.distill import LiveTeacher, StoredTeacher, Teacher, parts_of, teacher_digest
from samebits.train.distill_configuration import DistillConfig
from samebits.train.running import RefusedError, Summary, refuse_if_trained, run, trained
from samebits.train.teacher_store import TeacherStore, Tokens, is_store, sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """All that a distillation needs, judged: nothing is written yet."""

    config: DistillConfig
    data: Data
    assessment: Assessment
    teacher: Model
    digest: str
    """Of the teacher."""
    form: Form
    store: TeacherStore | None

    def sequences(self) -> Iterator[Tokens]:
        """Of all steps, in the order of the data, each once."""
        training, steps = self.config.training, self.assessment.run.steps
        order = {"seed": training.seed, "sequences": len(self.data), "batch": training.global_batch_size}
        seen = {place for step in range(1, steps + 1) for place in sequences_of(step, **order).tolist()}
        return (self.data.sequence(place)[0] for place in sorted(seen))

    def facts(self) -> dict[str, Any]:
        """What is said of the teacher."""
        said: dict[str, Any] = {
            "model": self.config.distillation.teacher_model_name_or_path,
            "digest": self.digest,
            "parameters": count(self.teacher.config),
            "logits": "live" if self.store is None else str(self.store.folder),
        }
        if self.store is None:
            return said
        groups = self.store.missing(self.sequences())
        rows = sum(len(inputs) for group in groups for inputs in group)
        missing = {"sequences": sum(map(len, groups)), "bytes": rows * self.form.row_bytes}
        held = {"shards": len(self.store.shards), "bytes": self.store.size, "largest_error": self.store.error}
        return said | {"form": self.form.facts(), "exact": self.form.exact, "held": held, "missing": missing}


def prepare(config: DistillConfig) -> Prepared:
    """Loads teacher and data, and refuses in one line what does not fit."""
    section, shape = config.distillation, shape_of(config)
    folder = None if section.teacher_logits is None else Path(section.teacher_logits)
    if folder is not None and not is_store(folder):
        raise ValueError(f"distillation.teacher_logits: {folder} holds something else; allowed: a new folder")
    loaded = load(section.teacher_model_name_or_path, section.teacher_dtype, config.training.device)
    teacher = loaded.model.config
    if teacher.vocab_size != shape.vocab_size:
        sizes = f"vocab_size is {shape.vocab_size} in the student, {teacher.vocab_size} in the teacher"
        raise ValueError(f"distill: {sizes}; they must agree")
    if config.data.max_length > teacher.max_position_embeddings:
        positions = f"{config.data.max_length}, the teacher has {teacher.max_position_embeddings} positions"
        raise ValueError(f"distill: data.max_length is {positions}; allowed: no more than those")
    _same_words(words_of(config), loaded.tokenizer)
    form = Form(
        vocab_size=shape.vocab_size, temperature=section.temperature, top_k=section.top_k, dtype=section.logits_dtype
    )
    digest = teacher_digest(loaded.model)
    store = None if folder is None else TeacherStore(folder, digest, form)
    data = data_of(config)
    found = assess(config, shape, data)
    _fits(config, found, teacher.vocab_size, count(teacher))
    return Prepared(
        config=config, data=data, assessment=found, teacher=loaded.model, digest=digest, form=form, store=store
    )


def distill(
    prepared: Prepared,
    folder: Path,
    *,
    resume: bool = False,
    allow_changes: Sequence[str] = (),
    screen: Screen | None = None,
    grid: Grid | None = None,
) -> Summary:
    """Trains into a folder, as `running.run` does, on every rank at once."""
    config, grid = prepared.config, grid or Grid(world=World())
    if not prepared.assessment.allowed:
        raise RefusedError(prepared.assessment)
    if grid.tensor != 1:
        raise ValueError(f"distill: {grid.tensor} ranks share the weights; allowed: ranks that share lanes")
    refuse_if_trained(folder, trained(folder), resume)
    screen = screen if screen is not None and grid.world.rank == 0 else Silent()
    teacher: Teacher = LiveTeacher(model=prepared.teacher)
    if prepared.store is not None:
        teacher = StoredTeacher(store=filled(prepared, grid.world, screen))
    parts = parts_of(config.distillation, teacher, prepared.digest, prepared.form)
    return run(
        config,
        folder,
        resume=resume,
        allow_changes=allow_changes,
        screen=screen,
        parts=parts,
        grid=grid,
        data=prepared.data,
    )


def filled(prepared: Prepared, world: World, screen: Screen) -> TeacherStore:
    """The store with all sequences of the run; each rank computes its share of what is missing."""
    store, section = prepared.store, prepared.config.distillation
    assert store is not None
    live = LiveTeacher(model=prepared.teacher)
    with _alone(store.folder, world):
        store.verify()
        agreed = {"teacher": prepared.digest, "data": f"sha256:{prepared.data.digest()}", "store": store.digest()}
        agree(world, "teacher", comparable(prepared.config) | agreed)
        for line in store.damaged:
            screen.note(f"computed again: {line}")
        groups = store.missing(prepared.sequences())
        own = groups[world.rank :: world.size]
        for number, group in enumerate(own, 1):
            screen.note(f"teacher logits: shard {number} of {len(own)}, {len(group)} sequences")
            store.add(group, live.of, section.tolerance, prepared.config.training.micro_batch_size)
        # No rank reads before all have written.
        gathered_integers(world.group, [len(own)])
    store.look()
    if store.error > section.tolerance:
        held = f"{store.folder} holds a probability that is off by {store.error:.3g}"
        raise ValueError(f"distillation.logits_tolerance: {held}; allowed: at most {section.tolerance:g}")
    return store


@contextmanager
def _alone(folder: Path, world: World) -> Iterator[None]:
    """For one run at a time; its first rank keeps the folder for all of them."""
    if world.rank:
        yield
        return
    make_directory(folder)
    with only_writer(folder) as alone:
        if not alone:
            raise ValueError(f"{folder}: another run fills it; allowed: one at a time")
        sweep(folder)
        yield


def _same_words(words: Tokenizer, teachers: Tokenizer) -> None:
    """Tokens must mean the same to both; chat templates and ends may differ."""
    own, other = (replace(each, bos=None, eos=(), template=None).digest() for each in (words, teachers))
    if own != other:
        tokens = f"data.tokenizer has {words.vocabulary} tokens ({own[:12]}), the teacher's {teachers.vocabulary}"
        raise ValueError(f"distill: {tokens} ({other[:12]}); they must be the same")


def _fits(config: DistillConfig, found: Assessment, vocab_size: int, parameters: int) -> None:
    """Beside the run itself: the teacher's weights, and logits of both and their gradient for one micro-batch."""
    size = 4 if config.distillation.teacher_dtype == "float32" else 2
    logits = 3 * 4 * vocab_size * config.data.max_length * config.training.micro_batch_size
    total, here = found.memory.total + size * parameters + logits, found.memory.here
    if here is not None and total > here:
        shares = f"the teacher takes {size * parameters:,} of them, the logits of a micro-batch {logits:,}"
        raise ValueError(f"distill: about {total:,} bytes are needed, {here:,} are here; {shares}")
