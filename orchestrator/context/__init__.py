"""Store what a group's conversation is about, so that it outlives the agent's session.

Start with `context_manager.py`.
"""
