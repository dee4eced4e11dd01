"""Build the agent image and tell whether it is current. Start with `build.py`."""
