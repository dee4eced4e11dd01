"""The only storage: SQLite, one module for each family of tables. Start with `database.py`.

Functions take the open transaction (or a reading connection) as their first argument, so that a caller can
combine several in one transaction. Only `database` opens, migrates and commits.
"""
