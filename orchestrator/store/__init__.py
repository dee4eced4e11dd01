"""The only storage: SQLite, one module for each family of tables. Start with `database.py`.

The modules lie in folders by subject; those on no subject of their own, such as the audit, lie beside them.

Functions take the open transaction (or a reading connection) as their first argument, so that a caller can
combine several in one transaction. Only `database` opens, migrates and commits.
"""
