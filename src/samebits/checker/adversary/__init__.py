"""An adversary for anyone's function: calls that must agree, drawn from wide ranges, until two of them do not.

examining.py   one function from its name to a report
origins.py, processes.py, workers.py   where it comes from, the processes it runs in, and how they are asked
stranger_process.py, serving.py, calling.py, watching.py   the other side, which judges nothing
likeness.py, probing.py    which operator it is like, and what it takes
search.py, attempts.py   a fixed core, sweeps, sizes that its code names, draws; one call of them
trial.py, pool.py, layouts.py, situations.py, sizes.py   what a call can be
bench.py, ledger.py        calls made, and their bits compared as raw bytes
nearness.py, one_order.py  exact values; orders
shrinking.py, coverage.py  the smallest case that still shows it; what was tried, and what that bounds"""

from samebits.checker.adversary.examining import JUDGED, SECONDS, THOROUGH_SECONDS, Request, examine
from samebits.checker.adversary.origins import Origin, origin_of, origin_of_text

__all__ = ["JUDGED", "SECONDS", "THOROUGH_SECONDS", "Origin", "Request", "examine", "origin_of", "origin_of_text"]
