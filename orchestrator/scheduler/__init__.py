"""Do what is due: turn scheduled tasks into turns. Start with `loop.py`."""
