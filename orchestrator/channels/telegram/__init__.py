"""Telegram, by python-telegram-bot.

`incoming_text`, `markup` and `updates` are pure. Start with `channel.py`.
"""
