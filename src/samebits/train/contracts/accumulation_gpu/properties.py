"""What must be true of sums on a device: they are those of the host, and passes bring nothing back."""

from __future__ import annotations

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance


def sums_stay_and_are_those_of_the_host(call: Call, tolerance: Tolerance) -> str:
    """Gradients and loss have the host's bits; something comes back as often in many passes as in one."""
    host = call.again(weights=call.arguments["weights"].cpu())
    differ = (call.output[:-2] != host[:-2]).nonzero().flatten().tolist()
    if differ:
        place = differ[0]
        return (
            f"{len(differ)} sums differ, first {place}: {float(call.output[place])}; on the host {float(host[place])}"
        )
    in_passes, in_one = call.output[-2:].tolist()
    if in_passes != in_one:
        return f"something comes back {in_passes:.0f} times in passes, and {in_one:.0f} times in one pass"
    return ""
