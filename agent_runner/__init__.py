"""The program inside a group's container. It never imports the host. Start with `session.py`."""
