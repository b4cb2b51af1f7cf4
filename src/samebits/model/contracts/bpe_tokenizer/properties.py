"""What a tokenizer must do: lose no byte, know every byte, follow the plain rule, keep sentinels apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Final

import torch
from torch import Tensor

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.model.contracts.bpe_tokenizer import BYTES, SENTINELS

HASH_SEED: Final = 20011
_ELSEWHERE: Final = (
    "import json, sys, torch; from samebits.model.contracts.bpe_tokenizer import encoded;"
    " print(json.dumps(encoded(*map(torch.tensor, json.load(sys.stdin))).tolist()))"
)


def comes_back(call: Call, tolerance: Tolerance) -> str:
    """Every row of bytes is again what it was."""
    return difference(call.output, call.reference(*call.arguments.values()), tolerance, words="bytes")


def knows_every_byte(call: Call, tolerance: Tolerance) -> str:
    """Each of the 256 bytes alone is one id, and no two are the same."""
    ids = call.again(data=torch.arange(BYTES)[:, None])
    if ids.shape != (BYTES, 1):
        return f"the ids of every byte alone have shape {list(ids.shape)}; allowed: [{BYTES}, 1]"
    distinct = len(set(ids[:, 0].tolist()))
    return "" if distinct == BYTES else f"{BYTES} bytes have {distinct} ids; allowed: one each"


def follows_the_rule(call: Call, tolerance: Tolerance) -> str:
    """The lowest ranked pair first, the leftmost of several."""
    return difference(call.output, call.reference(*call.arguments.values()), tolerance, words="ids")


def stays_the_same(call: Call, tolerance: Tolerance) -> str:
    """The same ids in other calls, with the rows in another order; and of a written case in another process with a
    hash seed of its own."""
    data = call.arguments["data"]
    turned = call.again(data=data.flip(0)).flip(0)
    wrong = difference(turned, call.output, tolerance, words="the rows in another order")
    wrong = wrong or difference(call.again(), call.output, tolerance, words="the same call again")
    if wrong or call.inputs.ways is not None:
        return wrong
    elsewhere = _in_a_process(list(call.arguments.values()))
    return difference(elsewhere, call.output, tolerance, words=f"a process of hash seed {HASH_SEED}")


def _in_a_process(arguments: list[Tensor]) -> Tensor:
    """What the tokenizer itself gives there. One that dies is no answer, and none is made up for it."""
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE],
        input=json.dumps([each.tolist() for each in arguments]),
        text=True,
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": str(HASH_SEED), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    return torch.tensor(json.loads(done.stdout))


def has_every_id(call: Call, tolerance: Tolerance) -> str:
    """The vocabulary has the size asked for, and every id below it is one token's."""
    return difference(call.output, call.reference(*call.arguments.values()), tolerance, words="size and ids")


def sentinels_are_one_id(call: Call, tolerance: Tolerance) -> str:
    """Between two texts one id where sentinels are meant, and none where text is all that is meant."""
    row, rules = call.arguments["data"][:1], call.arguments["rules"]
    alone = call.again(data=row)[0]
    for place, sign in enumerate(SENTINELS):
        whole = torch.cat([row[0], torch.tensor(list(sign.encode())), row[0]])[None]
        number = torch.tensor([BYTES + len(rules) + place])
        wrong = difference(
            call.again(data=whole)[0], torch.cat([alone, number, alone]), tolerance, words=f"ids around {sign}"
        )
        plain = call.again({"special": False}, data=whole)
        wrong = wrong or difference(
            plain, call.reference(whole, rules, special=False), tolerance, words=f"ids of {sign} as text"
        )
        if wrong:
            return wrong
    return ""


def nothing_is_nothing(call: Call, tolerance: Tolerance) -> str:
    """The empty text has no ids and comes back; so do several of them."""
    for rows in (1, 3):
        found = call.again(data=torch.zeros(rows, 0, dtype=torch.int64))
        if found.shape != (rows, 0):
            return f"{rows} empty texts give shape {list(found.shape)}; allowed: [{rows}, 0]"
    return ""
