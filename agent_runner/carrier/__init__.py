"""Run the agent of a group on another machine than the host's. Start with `carrier.py`."""
