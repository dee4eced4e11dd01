"""The console's pages, one module each, found by their `PAGE`. Start with `now.py`."""
