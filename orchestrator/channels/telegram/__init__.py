"""Telegram, by python-telegram-bot. `entities` and `updates` are pure. Start with `channel.py`."""
