"""The HTTP API for programs: one module for each family of routes. Start with `routes.py`."""
