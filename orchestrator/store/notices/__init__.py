"""Notices for a group's agent: those of the host and of agents, and the turns that claim them.

Start with `notices.py`.
"""
