"""Kept logits: found by content, exact where they are said to be, whole after any kill, refused where they are not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from samebits.numerics.bits import same_bits
from samebits.numerics.recipes import make
from samebits.train import teacher_store
from samebits.train.contracts.teacher_logits import Form, largest
from samebits.train.teacher_store import TeacherStore, Tokens, key_of, sweep

VOCABULARY, ROWS = 300, 16
FORMS = {
    "full": Form(vocab_size=VOCABULARY, temperature=2.0),
    "bfloat16": Form(vocab_size=VOCABULARY, temperature=1.0, dtype="bfloat16"),
    "top 200": Form(vocab_size=VOCABULARY, temperature=1.0, top_k=200),
    "top 200, bfloat16": Form(vocab_size=VOCABULARY, temperature=1.0, top_k=200, dtype="bfloat16"),
}


def sequences(count: int, first: int = 0) -> list[Tokens]:
    return [np.arange(ROWS, dtype=np.int64) + number for number in range(first, first + count)]


def live(given: list[Tokens]) -> Tensor:
    """Logits that depend on each token alone, peaked as a language model's are."""
    rows = [torch.from_numpy(make("normal", (1, VOCABULARY), int(token) + 1)) * 4 for each in given for token in each]
    return torch.cat(rows)


def filled(folder: Path, form: Form, given: list[Tokens], tolerance: float = 1e-3) -> TeacherStore:
    store = TeacherStore(folder, "teacher", form)
    for group in store.missing(given):
        store.add(group, live, tolerance, 3)  # type: ignore[arg-type]
    store.look()
    return store


@pytest.mark.parametrize("name", FORMS)
def test_what_is_read_is_what_was_kept(name: str, tmp_path: Path) -> None:
    """FALSIFY-ALBOR-006 over 100 sequences, read backwards: bitwise where full, probabilities within the bound."""
    form, given = FORMS[name], sequences(100)
    store = filled(tmp_path, form, given)
    bound = {"float32": 1e-4, "bfloat16": 1e-3}[form.dtype]
    for each in reversed(given):
        found, wanted = store.logits(each), live([each])
        if form.exact:
            assert same_bits(found, wanted)
        off = (form.probabilities(found) - form.probabilities(wanted)).abs()
        assert float(off.max()) <= min(bound, store.error)
    assert (store.error == 0.0) == form.exact


def test_the_remainder_is_exact() -> None:
    """The kept probabilities are the live ones, and all others together are as probable as they were."""
    form, logits = Form(vocab_size=VOCABULARY, temperature=3.0, top_k=9), live(sequences(4))
    kept = form.kept(logits)
    p, q = form.probabilities(logits).double(), form.probabilities(form.restored(kept)).double()
    ids = kept["ids"].long()
    assert same_bits(form.restored(kept).gather(-1, ids), logits.gather(-1, ids))
    assert float((p.gather(-1, ids) - q.gather(-1, ids)).abs().max()) < 1e-6
    others = [each.scatter(-1, ids, 0.0).sum(-1) for each in (p, q)]
    assert float((others[0] - others[1]).abs().max()) < 1e-6 and float(others[0].max()) > 0.1


def test_a_remainder_of_nothing_is_no_probability() -> None:
    logits = torch.full((2, VOCABULARY), -200.0)
    logits[:, 7] = 0.0
    form = Form(vocab_size=VOCABULARY, temperature=1.0, top_k=1)
    kept = form.kept(logits)
    assert kept["rest"].tolist() == [-torch.inf] * 2
    assert form.error(logits, kept) == 0.0


def test_of_equals_the_smaller_tokens_are_kept() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0], [5.0, 5.0, 5.0, 5.0, 5.0, 5.0], [0.0, 1, 2, 3, 4, 5]])
    assert largest(logits, 3).tolist() == [[1, 2, 3], [0, 1, 2], [3, 4, 5]]


def test_too_little_is_refused_with_what_would_do(tmp_path: Path) -> None:
    form = Form(vocab_size=VOCABULARY, temperature=1.0, top_k=4)
    with pytest.raises(ValueError, match=r"top_k 4 in float32 puts a probability off by .*; allowed: at most 0.0001.*"):
        filled(tmp_path, form, sequences(2), 1e-4)
    assert not list(tmp_path.glob("logits-*"))
    with pytest.raises(ValueError, match="top_k: is 300 of 300 tokens; allowed: 1 to 299"):
        Form(vocab_size=VOCABULARY, temperature=1.0, top_k=VOCABULARY)


def folder_digest(folder: Path) -> str:
    state = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        state.update(path.name.encode() + path.read_bytes())
    return state.hexdigest()


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teacher_store, "SHARD_SEQUENCES", 4)


class KilledError(BaseException):
    """The end of a process."""


@pytest.mark.usefixtures("small_shards")
def test_killed_at_every_write_and_filled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is cut short, before or after a write, the bytes of the store are those of one go."""
    form, given = FORMS["top 200"], sequences(14)
    whole = filled(tmp_path / "whole", form, given)
    assert len(whole.shards) == 4
    real = teacher_store.put_in_one_move
    for moment in range(9):
        folder, seen = tmp_path / f"{moment}", []

        def dying(path: Path, data: bytes, moment: int = moment, seen: list[int] = seen) -> None:
            if len(seen) == moment:
                path.with_name(f"{path.name}.part").write_bytes(data[: len(data) // 2])
                raise KilledError
            seen.append(1)
            real(path, data)

        with monkeypatch.context() as patch:
            patch.setattr(teacher_store, "put_in_one_move", dying)
            with pytest.raises(KilledError):
                filled(folder, form, given)
        sweep(folder)
        again = filled(folder, form, given)
        assert folder_digest(folder) == folder_digest(tmp_path / "whole") and again.digest() == whole.digest()


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("damage", ["a bit", "cut", "gone", "marker"])
def test_a_damaged_shard_is_computed_again(damage: str, tmp_path: Path) -> None:
    form, given = FORMS["full"], sequences(10)
    whole = filled(tmp_path, form, given)
    before, victim = folder_digest(tmp_path), tmp_path / sorted(whole.shards)[1]
    data = bytearray(victim.read_bytes())
    if damage == "a bit":
        data[-5] ^= 1
        victim.write_bytes(data)
    elif damage == "cut":
        victim.write_bytes(data[:-1])
    elif damage == "gone":
        victim.unlink()
    else:
        victim.with_suffix(".json").write_text('{"size": 3}')
    store = TeacherStore(tmp_path, "teacher", form)
    store.verify()
    assert len(store.damaged) == 1 and victim.stem in store.damaged[0] and "\n" not in store.damaged[0]
    if damage == "a bit":
        unverified = TeacherStore(tmp_path, "teacher", form)
        with pytest.raises(ValueError, match="was written as blake"):
            [unverified.logits(each) for each in given]
    (group,) = store.missing(given)
    store.add(group, live, 0.0, 3)  # type: ignore[arg-type]
    assert folder_digest(tmp_path) == before


@pytest.mark.usefixtures("small_shards")
def test_only_what_is_missing_is_computed(tmp_path: Path) -> None:
    """Another run sees other sequences of the same data: those that are held are not asked of the teacher again."""
    store = filled(tmp_path, FORMS["full"], sequences(10))
    missing = store.missing([*sequences(3, first=20), *sequences(10), *sequences(2, first=30)])
    assert [[int(each[0]) for each in group] for group in missing] == [[20, 21, 22], [30, 31]]


def test_another_teacher_or_form_is_refused(tmp_path: Path) -> None:
    filled(tmp_path, FORMS["top 200"], sequences(2))
    with pytest.raises(ValueError, match=r"holds teacher logits with teacher 'teacher', the run has 'other'; allowed"):
        TeacherStore(tmp_path, "other", FORMS["top 200"])
    with pytest.raises(ValueError, match=r"holds teacher logits with top_k 200, the run has None; allowed"):
        TeacherStore(tmp_path, "teacher", Form(vocab_size=VOCABULARY, temperature=1.0, dtype="float32"))
    with pytest.raises(ValueError, match=r"with temperature 1.0, the run has 2.0"):
        TeacherStore(tmp_path, "teacher", Form(vocab_size=VOCABULARY, temperature=2.0, top_k=200))


def test_a_sequence_that_is_not_held_is_no_other(tmp_path: Path) -> None:
    """Found by content: another order, and other neighbours, change nothing; an unknown sequence is an error."""
    store = filled(tmp_path, FORMS["full"], sequences(3))
    assert same_bits(store.logits(sequences(1, first=2)[0]), live(sequences(1, first=2)))
    with pytest.raises(
        ValueError, match=r"holds no logits of the sequence that begins with \[3, 4, 5, 6, 7, 8, 9, 10\]"
    ):
        store.logits(sequences(1, first=3)[0])
    assert key_of(sequences(1)[0]) != key_of(sequences(1)[0][::-1].copy())


def test_what_is_not_finite_is_never_kept(tmp_path: Path) -> None:
    store = TeacherStore(tmp_path, "teacher", FORMS["full"])
    with pytest.raises(ValueError, match="the teacher's logits are not finite"):
        store.add(sequences(1), lambda given: live(list(given)) * torch.nan, 1.0, 1)
    assert not list(tmp_path.iterdir())
