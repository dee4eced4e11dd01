"""The HTTP API on loopback. Start with `app.py`."""
