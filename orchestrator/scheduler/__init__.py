"""Do what is due: send reminders, turn scheduled tasks into turns. Start with `loop.py`."""
