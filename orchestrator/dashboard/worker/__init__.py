"""The background worker: runs the rules at a fixed interval, and asks a model where judgement is needed.

Start with `loop.py`.
"""
