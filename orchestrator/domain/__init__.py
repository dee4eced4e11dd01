"""Values, errors and protocols of the host, without I/O. Start with `values.py`."""
