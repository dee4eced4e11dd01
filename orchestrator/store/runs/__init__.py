"""Turns of agents, and the runs of containers that carry them: sessions, tool calls, outages.

Start with `turns.py`.
"""
