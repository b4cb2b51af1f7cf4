"""What merging and pruning promise, as contracts whose every line is executed: a folder each."""
