"""Chats of this machine: at the terminal, over HTTP and in the console. Start with `channel.py`."""
