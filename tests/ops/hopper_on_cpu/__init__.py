"""A machine that runs kernels of Gluon for Hopper on the CPU, bit for bit, and looks for faults in their waiting.

running.py runs a kernel, launching.py the project's own launches; language.py and hopper.py are what a kernel calls;
values.py and functions.py compute, global_memory.py and shared.py hold; machine.py says who runs when, and finding.py
what can be wrong. assembly.py runs what stands in a kernel as PTX.

The threads of a partition are one here, but in assembly: what a compiler does to keep its warps together is not looked
at, nor are layouts, registers, or a copy over shared memory that threads have read without a fence."""
