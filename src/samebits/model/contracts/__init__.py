"""What the model's layer promises, a component each: its tokenizer, its forward pass, its cache; what holds for every
operator below it."""
