"""`kill -9` of the host between claiming a notification, sending it and marking it: told, and told once.

Only in `make soak`: the simulated world kills its host after each effect of a reminder, too.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest

from tests.processes.andy import until
from tests.processes.killable_andy import MortalAndy
from tests.support.skips import only_in_soak

pytestmark = [pytest.mark.host, only_in_soak, pytest.mark.timeout(2400)]
MOST_POINTS = 120


def put(andy: MortalAndy, text: str) -> None:
    """Write a notification that is due now, as another process would."""
    now_ms = round(time.time() * 1000)
    with closing(sqlite3.connect(andy.home / "store" / "messages.db", timeout=30)) as connection, connection:
        connection.execute(
            "INSERT INTO dashboards (group_folder, created_ms) VALUES ('main', 1) ON CONFLICT DO NOTHING"
        )
        connection.execute(
            "INSERT INTO notifications (group_folder, id, message, due_ms, type, priority, status,"
            " created_by, created_ms, version)"
            " VALUES ('main', ?, ?, ?, 'reminder', 'medium', 'pending', 'user', ?, 1)",
            (f"n_{text}", text, now_ms, now_ms),
        )


def undelivered(andy: MortalAndy) -> int:
    (row,) = andy.rows("SELECT count(*) AS n FROM notifications WHERE status <> 'delivered'")
    return int(row["n"])


def test_at_25_no_point_between_claim_and_mark_is_a_bad_one_to_die_at(tmp_path: Path) -> None:
    texts = []
    deaths = 0
    with MortalAndy(tmp_path / "home") as andy:
        for point in range(1, MOST_POINTS):
            andy.kill()
            texts.append(f"p{point:03d}")
            put(andy, texts[-1])
            andy.start_to_die_at(point)
            until(lambda: andy.is_dead() or undelivered(andy) == 0, what=f"dead or done at point {point}")
            if not andy.is_dead():
                break
            assert andy.has_died_by_kill()
            deaths += 1
        else:
            pytest.fail("the work has no end")
        ids = defaultdict(set)
        for line in (andy.home / "data" / "seen").read_text().splitlines():
            shown = json.loads(line)
            ids[shown["text"]].add(shown["id"])
    assert deaths > 6, "a delivery has more points than that"
    assert sorted(text for text in ids if text in texts) == texts, "each was told"
    assert {len(found) for text, found in ids.items() if text in texts} == {1}, "under one id each"
