"""After training: models made from models, by merging, pruning and quantising; each is written whole or not at all.

Knows neither the trainer nor the engine."""
