"""What the host must see of a run on a device: so many copies a step, the device's own weights, and no way round it."""

from __future__ import annotations

import torch

from samebits.contracts.call import Call
from samebits.contracts.language import Tolerance
from samebits.numerics.bits import same_bits
from samebits.train.contracts.training_gpu import HOST, KINDS


def copies_as_declared(
    call: Call, tolerance: Tolerance, *, to_device: int, to_host: int, waits: int, bytes_a_token: int, bytes_a_step: int
) -> str:
    """Every step copies, reads and waits as often as the contract says, whatever it computes."""
    wanted = [to_device, to_host, waits]
    most = bytes_a_token * len(call.arguments["text"]) + bytes_a_step
    for step, line in enumerate(call.output.tolist(), 1):
        for kind, count, allowed in zip(KINDS, line, wanted, strict=False):
            if count != allowed:
                return f"step {step}: {kind} {count} times; allowed: {allowed}"
        if line[-1] > most:
            return f"step {step}: {line[-1]} bytes are copied; allowed: {most}"
    return ""


def checkpoint_is_the_device(call: Call, tolerance: Tolerance) -> str:
    """The weights of a checkpoint are those on the device after the last step."""
    _, device, held = call.output
    differ = int((device.view(torch.int32) != held.view(torch.int32)).sum())
    return f"{differ} of {len(held)} weights of the checkpoint are not the device's" if differ else ""


def steps_change_weights(call: Call, tolerance: Tolerance) -> str:
    began, device, _ = call.output
    return "" if not same_bits(began, device) else f"{int(call.arguments['steps'])} steps changed no weight"


def losses_are_those_of_the_host(call: Call, tolerance: Tolerance) -> str:
    """The first loss is float64's, and all of them are the CPU's."""
    exact = float(call.reference(**call.arguments)[0])
    first = float(call.output[0])
    if abs(first - exact) > float(tolerance.value or 0.0) * abs(exact):
        return f"the first loss is {first}; in float64 {exact}"
    host = call.again(weights=call.arguments["weights"].cpu())
    differ = (call.output != host).nonzero().flatten().tolist()
    if differ:
        return f"step {differ[0] + 1}: the loss is {float(call.output[differ[0]])}; on the CPU {float(host[differ[0]])}"
    return ""


def refuses_a_device_that_is_not_there(call: Call, tolerance: Tolerance) -> str:
    """The CPU where it was asked for; a device that this machine does not have is refused."""
    if call.output.tolist() != [HOST]:
        return f"the CPU was asked for, and the weights are on {call.output.tolist()}"
    missing = torch.tensor([torch.cuda.device_count()])
    return (
        "" if call.refusal(device=missing) else f"cuda:{int(missing)} was asked for, is not there, and the run goes on"
    )
