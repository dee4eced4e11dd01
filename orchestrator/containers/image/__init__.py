"""Build the agent image and check whether it is current. Start with `build.py`."""
