"""The messengers: where messages come from and replies go. Start with `description.py`."""
