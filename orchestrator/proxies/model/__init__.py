"""The proxy that adds the model's key, and counts and bounds what passes. Start with `proxy.py`."""
