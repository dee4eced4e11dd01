"""Ground that knows nothing of Andy: clock, event bus, wake-ups, supervision, logging.

Start with `clock.py`.
"""
