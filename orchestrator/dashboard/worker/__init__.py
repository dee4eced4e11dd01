"""The background worker: the rules at each beat, and a model where there is something to judge.

Start with `loop.py`.
"""
