"""The only storage: SQLite, one module for each family of tables. Start with `database.py`.

The modules lie in folders by subject; those on no subject of their own, such as the audit, lie beside them.

Most functions take the open transaction (or a reading connection) as their first argument, so that a caller
can combine several in one transaction; none of them commits. Only `database` opens the database for writing
and migrates it. The few functions that take its path read over a connection of their own.
"""
