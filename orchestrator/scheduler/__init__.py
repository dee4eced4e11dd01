"""Do what is due: reminders without a container, scheduled tasks as turns. Start with `loop.py`."""
