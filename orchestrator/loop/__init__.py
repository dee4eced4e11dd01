"""Wake a group's agent by itself: at the time it chose, or when something happens.

Start with `wake_policy.py`.
"""
