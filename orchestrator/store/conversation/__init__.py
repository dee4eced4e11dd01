"""Chats and their messages: those that came in, those that go out, search and polls.

Start with `messages.py`.
"""
