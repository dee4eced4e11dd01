"""The two kinds of agents: Claude, and one that needs no model."""
