"""Rows for machines and lines for people: what the command line, HTTP and the console show.

Start with `status.py`.
"""
