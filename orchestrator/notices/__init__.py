"""Notices to an agent that outlive its container: its own to its future self, and the host's facts."""
