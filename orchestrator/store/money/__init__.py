"""The use of the model service, and the budgets that limit it. Start with `usage.py`."""
