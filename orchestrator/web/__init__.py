"""The HTTP API on loopback. Start with `api.py`."""
