"""Access that the owner allows: calls of unknown chats, approvals, secret addresses, browsers.

Start with `approvals.py`.
"""
