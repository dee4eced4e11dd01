"""Values, errors, settings and protocols of the host. Start with `values.py`."""
