"""Training: what a run will do is worked out and refused or accepted before any device time is spent."""
