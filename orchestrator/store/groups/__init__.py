"""The groups, each with an agent, and the changes of their names, settings and memory.

Start with `groups.py`.
"""
