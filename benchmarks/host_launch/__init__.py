"""The host's path of a call of `linear` in C++, not in use: from Python's arguments to the driver's launch in one step.

Decides no bit: a launch is the one that samebits.ops.linear makes for the same sizes, layouts and formats, prepared by
its own Python (preparing.py) and kept (prepared.h). Where anybody listens, Python's function is called. Without a GPU a
stub of a driver (stub.py) records what either hands over; `benchmarks/gpu_host_launch.py` compares bits and times."""
