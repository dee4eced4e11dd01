"""A filter for Docker's socket that passes only the requests that Andy needs. Start with `requests.py`."""
