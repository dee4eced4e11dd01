"""Prompts at set times with their runs, and the calendars that are followed. Start with `tasks.py`."""
