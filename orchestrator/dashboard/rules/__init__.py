"""Decide which changes, questions and notifications a dashboard needs. Pure. Start with `plan.py`."""
