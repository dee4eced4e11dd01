"""Foundations without knowledge of Andy: clock, event bus, wake-ups, supervision, logging.

Start with `clock.py`.
"""
