"""Dashboards: tasks, questions, notifications, knowledge, and the worker's cycles.

Start with `dashboards.py`.
"""
