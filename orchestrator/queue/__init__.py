"""Decide which turn runs next, and when a failed one is tried again. Start with `next_turns.py`."""
