"""Undoing a turn: each row that it changed, and the undos. Start with `turn_effects.py`."""
