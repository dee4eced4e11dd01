"""Take a message in: judge its trigger, store it, queue its turn, write its prompt.

Start with `intake.py`.
"""
