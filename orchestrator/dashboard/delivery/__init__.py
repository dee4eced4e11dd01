"""Send notifications at their time, and read what people reply to them.

Start with `due_notifications.py`.
"""
