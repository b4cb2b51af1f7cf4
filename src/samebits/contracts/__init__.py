"""The contract language: what an operator promises, in YAML whose every line is executed.

Knows no operator."""
