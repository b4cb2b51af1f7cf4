"""What a reader of configurations must do: read every number, and refuse by its name whatever nothing reads."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.contracts.predicates import difference
from samebits.train.contracts.unread_keys import KINDS, keys_of

ENDINGS = ("s", "_")
"""What makes another key of one that is read, unless that is read too."""


def refuses_what_nothing_reads(call: Call, tolerance: Tolerance) -> str:
    """Of each kind of configuration: every key of every section, misspelt, in the text and as a setting on top."""
    expected = call.reference(*call.arguments.values())
    row = {"table": call.arguments["table"][:1]}
    for kind, config in KINDS.items():
        wrong = difference(call.again({"kind": kind}), expected, tolerance, words=f"numbers of a {kind} configuration")
        if wrong:
            return wrong
        for section, keys in keys_of(config):
            for key in (f"{each}{ending}" for each in keys for ending in ENDINGS):
                path = f"{section}.{key}" if section else key
                for on_top in (False, True) if key not in keys else ():
                    said = call.refusal({"kind": kind, "more": path, "on_top": on_top}, **row)
                    if f"unknown key {key!r}" not in said:
                        return f"{kind}: {path} is not refused by its name; {said or 'nothing was said'}"
    return ""
