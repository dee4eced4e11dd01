"""The outside world: where messages come from and replies go."""
