"""Undo a turn: its rows, files and messages. Start with `service.py`."""
