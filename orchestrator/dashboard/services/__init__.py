"""Change a dashboard: one module each for tasks, questions, notifications, knowledge.

Start with `tasks.py`.
"""
