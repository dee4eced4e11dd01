"""The home of one Andy: its directory, its lock, and the settings stored in it. Start with `directory.py`."""
