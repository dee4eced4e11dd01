"""Show a dashboard as data, and as text for an agent. Start with `summary.py`."""
