"""Matrix, by matrix-nio. `events` and `content` are pure. Start with `channel.py`."""
