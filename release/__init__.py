"""A release of Andy: its files, images and tag, made and tried in a scratch clone before the tree changes.

Start with `__main__.py`; the decisions are in `decisions.py`, and import nothing that has an effect.
"""
