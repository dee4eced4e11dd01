"""The one truth: SQLite, one module for each family of tables. Start with `database.py`.

Functions take the open transaction (or a reading connection) first, so that a caller joins several of them
into one. Only `database` opens, migrates and commits.
"""
