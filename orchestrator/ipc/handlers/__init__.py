"""Carry out what containers ask, one module for each family of commands. Start with `messages.py`."""
