"""What the engine promises beside what its model promises, a component each."""
