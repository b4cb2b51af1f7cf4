"""The engine behind HTTP: OpenAI's completions and chat completions, limits, health, metrics and a page to try it."""
