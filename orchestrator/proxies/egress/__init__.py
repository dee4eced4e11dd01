"""The way out: a proxy for containers whose group has a list of places it may reach."""
