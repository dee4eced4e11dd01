"""Containers of a Docker engine. Start with `runtime.py`."""
