"""The folder of receipts: one file a contract, one line a receipt, those of several machines side by side.

What many receipts of a file share, machine and versions and library, is in a line of its own and is named by its
hash. A line whose content and id disagree, or that speaks about another contract, is handed out as false; one of an
older schema counts for nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from samebits.contracts.receipts import SCHEMA, Receipt
from samebits.records.durable import put_in_one_move
from samebits.records.plain_file import read_plain

SUFFIX = ".jsonl"
MOST_BYTES = 1 << 28
_CONTRACT = re.compile(r"[a-z][a-z0-9_]*")


class ReceiptError(ValueError):
    """A receipt that cannot be believed or read: file, line, why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shelf:
    """What the file of one contract holds."""

    receipts: tuple[Receipt, ...] = ()
    false: tuple[str, ...] = ()
    """Lines whose content and id disagree or that speak about another contract, each with its place."""
    outdated: int = 0
    """Lines of an older schema."""


class Store:
    """A folder with one file a contract. Writing replaces the line that spoke about the same thing on the same kind of
    machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look(self, contract: str) -> Shelf:
        """Everything in a contract's file; an empty shelf where nothing was run. A line that is no receipt raises."""
        receipts, false, outdated = dict[str, Receipt](), list[str](), 0
        shared: dict[str, dict[str, str]] = {}
        for where, document in self._lines(contract):
            if "facts" in document:
                _share(document, shared, where)
            elif document.get("schema") != SCHEMA:
                outdated += 1
            else:
                stated = document.pop("id", "")
                receipt = _receipt(document, shared, where)
                if receipt.identity != stated:
                    false.append(f"{where}: {receipt}: content and id disagree; a receipt is made, never edited")
                elif receipt.contract != contract:
                    # What holds for all of one contract's code, its types, would else count for any other's.
                    false.append(f"{where}: {receipt}: speaks about {receipt.contract!r}; allowed: {contract!r}")
                else:
                    receipts[stated] = receipt  # a line that stands there twice is one receipt
        return Shelf(receipts=tuple(receipts.values()), false=tuple(false), outdated=outdated)

    def read(self, contract: str) -> list[Receipt]:
        """The receipts of a contract; a false line is a ReceiptError."""
        shelf = self.look(contract)
        if shelf.false:
            raise ReceiptError(shelf.false[0])
        return list(shelf.receipts)

    def seconds(self, contract: str) -> dict[tuple[str, int, str], float]:
        """How long what a receipt tells took last time, whatever its schema: by obligation, level and what ran."""
        found: dict[tuple[str, int, str], float] = {}
        for _, document in self._lines(contract):
            # A line of another schema may have other names for these.
            with contextlib.suppress(KeyError, TypeError, ValueError):
                found[document["obligation"], document["level"], document["by"]] = float(document["seconds"])
        return found

    def _lines(self, contract: str) -> Iterator[tuple[str, dict[str, Any]]]:
        path = self.folder / f"{contract}{SUFFIX}"
        if not os.path.lexists(path):
            return
        try:
            text = read_plain(path, MOST_BYTES).decode()
        except UnicodeDecodeError as error:
            raise ReceiptError(f"{path}: no receipts: {error}") from error
        for number, line in enumerate(text.splitlines(), 1):
            where = f"{path}:{number}"
            if not line:
                continue
            try:
                document = json.loads(line, object_pairs_hook=_once)
            except (ValueError, RecursionError) as error:
                raise ReceiptError(f"{where}: no receipt: {error}") from error
            if not isinstance(document, dict):
                raise ReceiptError(f"{where}: no receipt: {line[:40]}")
            yield where, document

    def write(self, receipts: Iterable[Receipt]) -> None:
        """Adds receipts, file by file; each file is replaced in one step."""
        by_contract: dict[str, list[Receipt]] = {}
        for receipt in receipts:
            by_contract.setdefault(receipt.contract, []).append(receipt)
        self.folder.mkdir(parents=True, exist_ok=True)
        for contract, added in by_contract.items():
            kept = {receipt.key: receipt for receipt in (*self.read(contract), *added)}
            path = self.folder / f"{contract}{SUFFIX}"
            lines = "\n".join(_file([kept[key] for key in sorted(kept)]))
            put_in_one_move(path, f"{lines}\n".encode())


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A mapping of a line. A reader sees the first of two equal keys and a parser takes the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)[:40]!r} is there twice")
    return found


def _file(receipts: Iterable[Receipt]) -> Iterator[str]:
    """The lines of a file: what is shared where it is first needed, then each receipt."""
    told: set[str] = set()
    for receipt in receipts:
        document = asdict(receipt)
        facts = document["where"]
        name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
        if name not in told:
            told.add(name)
            yield json.dumps({"where": name, "facts": facts}, sort_keys=True)
        yield json.dumps({"id": receipt.identity, **document, "where": name}, sort_keys=True)


def _share(document: dict[str, Any], shared: dict[str, dict[str, str]], where: str) -> None:
    """Keeps what a line says for the receipts behind it that name it."""
    name, facts = document.get("where"), document["facts"]
    if not isinstance(name, str) or not _fits(facts, dict[str, str]):
        raise ReceiptError(f"{where}: no receipt: where and facts must be a text and a mapping of texts")
    shared[name] = facts


def _receipt(document: dict[str, Any], shared: dict[str, dict[str, str]], where: str) -> Receipt:
    try:
        named = document["where"]
        if named not in shared:
            raise ValueError(f"where is {str(named)[:40]!r}; allowed: a name that a line above gives to its facts")
        whole = {**document, "where": shared[named]}
        for name, kind in _kinds().items():
            if name in whole and not _fits(whole[name], kind):
                raise TypeError(f"{name} is {str(whole[name])[:40]!r}; allowed: {getattr(kind, '__name__', kind)}")
        return Receipt(**whole)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ReceiptError(f"{where}: no receipt: {' '.join(str(error).split())}") from error


@cache
def _kinds() -> dict[str, Any]:
    """What a receipt holds, by name."""
    return get_type_hints(Receipt)


def _fits(value: object, kind: Any) -> bool:
    """Whether a value of a line is what a receipt holds there: a text that says "no" would count as true."""
    if get_origin(kind) is dict:
        return isinstance(value, dict) and all(_fits(each, get_args(kind)[1]) for each in value.values())
    if kind in (int, float):
        # No count and no time is negative or endless, and a bool is no number.
        if isinstance(value, bool) or not isinstance(value, int | float) or (kind is int and isinstance(value, float)):
            return False
        return math.isfinite(value) and value >= 0
    return type(value) is kind


def folder_digest(folder: Path) -> str:
    """One SHA-256 of all receipts in a folder, by file name and content: what a signature speaks for."""
    whole = hashlib.sha256()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if _CONTRACT.fullmatch(path.stem) is None:
            # A name with a line break in it would read like the digest of another file.
            raise ValueError(f"{folder}: {path.name!r} is no contract's file; allowed: small letters, digits and _")
        whole.update(f"{path.name} {hashlib.sha256(read_plain(path, MOST_BYTES)).hexdigest()}\n".encode())
    return whole.hexdigest()
