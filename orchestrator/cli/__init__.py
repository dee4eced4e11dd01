"""The command line `andy`, one module for each family of commands. Start with `main.py`."""
