"""Decide what a dashboard calls for by itself. Pure. Start with `plan.py`."""
