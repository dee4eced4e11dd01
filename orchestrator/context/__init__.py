"""Keep what a group's conversation was about, so that it outlives its session.

Start with `context_manager.py`.
"""
