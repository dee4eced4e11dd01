"""Take back what a turn did: rows, files and messages. Start with `service.py`."""
