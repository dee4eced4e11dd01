"""New databases of a test process are copies of one that was migrated: each migration from nothing takes
as much time as a hundred copies.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

from orchestrator.store import database as store_database

prepare_from_nothing = store_database._prepare
_MIGRATIONS = store_database.migrations


@contextmanager
def new_databases_copied_from(template: Path) -> Iterator[None]:
    """Begin each database that is opened where none was as a copy of `template`.

    A test that puts other migrations in the place of Andy's gets those.
    """

    def prepare(path: Path) -> None:
        if store_database.migrations is _MIGRATIONS and not path.exists():
            # What is wrong with the place is reported by what opens the database.
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(template, path)
        prepare_from_nothing(path)

    with patch.object(store_database, "_prepare", prepare):
        yield
