"""The registered groups: registration, settings, memory templates, the owner's rules.

Start with `registration.py`.
"""
