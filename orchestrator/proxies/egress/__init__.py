"""The proxy by which a container reaches the hosts on its group's list. Start with `proxy.py`."""
