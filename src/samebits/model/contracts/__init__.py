"""What the model's layer promises, a component each: its words."""
