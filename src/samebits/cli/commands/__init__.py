"""One module a command: its options, one call, and how its result is printed."""
