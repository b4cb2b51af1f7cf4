"""The virtual cluster: distributed programs as cooperative ranks of one process, timed, and attacked from a seed."""
