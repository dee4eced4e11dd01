"""Carry out containers' commands, one module for each family. Start with `messages.py`."""
