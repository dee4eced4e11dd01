"""The proxy that adds the model's key, and counts and limits what passes. Start with `proxy.py`."""
