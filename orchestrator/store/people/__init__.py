"""The people of a group: names and addresses, notes about them, and requests to forget one.

Start with `people.py`.
"""
