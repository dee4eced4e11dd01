"""A filter before Docker's socket that passes on only the requests Andy needs. Start with `requests.py`."""
