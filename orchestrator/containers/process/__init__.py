"""Ordinary processes with the same wire as containers, for demos and tests. Start with `runtime.py`."""
