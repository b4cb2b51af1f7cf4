"""An adversary for anyone's function: calls that must agree, drawn from wide ranges, until two of them do not.

examining.py   one function from name to report         origins.py, processes.py   where it comes from, where it runs
probing.py     what it is like and what it takes         stranger_process.py, calling.py   the other side, which judges nothing
search.py      core, sweeps, named sizes, draws          trial.py, pool.py, layouts.py, situations.py, sizes.py   what a call can be
ledger.py      bits compared on raw bytes                nearness.py, one_order.py   exact values, orders
shrinking.py   the smallest case that still shows it     coverage.py   what was tried and what that bounds"""

from samebits.checker.adversary.examining import JUDGED, SECONDS, THOROUGH_SECONDS, Request, examine
from samebits.checker.adversary.origins import Origin, origin_of, origin_of_text

__all__ = ["JUDGED", "SECONDS", "THOROUGH_SECONDS", "Origin", "Request", "examine", "origin_of", "origin_of_text"]
