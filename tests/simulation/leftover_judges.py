"""Judge what is left over when all is quiet: nothing that waits, and nothing that nobody wants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World

MOST_TASKS = 60
"""Tasks that a host may have when all is quiet: its loops, and what they wait for."""
REPLY_SECONDS, MOST_REPLIES = 3_600.0, 1_000
"""The seconds for which answers to an agent's requests may lie there, and the largest number of them."""
LEFT_ROWS = {
    "A notice is still claimed": "SELECT group_folder, claim_turn FROM cross_session_notifications"
    " WHERE claim_turn IS NOT NULL",
    "A reminder is still being sent": "SELECT group_folder, id FROM notifications"
    " WHERE status = 'sending' OR claim_token IS NOT NULL",
    "A board is still leased": "SELECT group_folder, lease_owner FROM dashboards"
    " WHERE lease_owner IS NOT NULL",
    "A cycle of the loop is still leased": "SELECT group_folder, lease_owner FROM loop_state"
    " WHERE lease_owner IS NOT NULL",
    # Others, such as of a changed file, may wait for the agent's next wake by itself.
    "A wake request of a message was taken by nobody": "SELECT group_folder, kind, dedupe_key FROM wakes"
    " WHERE cycle_id IS NULL AND is_direct",
    "A cycle has not ended": "SELECT group_folder, id FROM cycles WHERE ended_ms IS NULL",
    "A task is still run": "SELECT task_id, id FROM task_run_logs WHERE status = 'running'",
    "Files of an undo are still to be put back": "SELECT group_folder, turn_id FROM undos"
    " WHERE has_files_due = 1",
    "A message is still to be withdrawn": "SELECT outbox_id FROM withdrawals WHERE state = 'due'",
    "A person is still to be forgotten": "SELECT group_folder, id FROM person_removals WHERE state = 'due'",
}
"""The query for each kind of rows that may not be left when all is quiet."""
LEFT_FILES = ("ipc/*/input/*.json", "ipc/*/messages/*", "ipc/*/tasks/*", "outgoing/*", "announcements/*")
"""Files of the host's data that may not be left when all is quiet."""

SENT_FILES = "SELECT file_path FROM outbox WHERE state = 'sent' AND file_path IS NOT NULL"
"""Copies of sent files stay for a while, for the owner's console."""


def left_over(world: World) -> Iterator[str]:
    """Yield what is left over when all is quiet."""
    for row in world.rows("SELECT id, kind, state FROM turns WHERE state IN ('queued', 'running')"):
        yield f"Turn {row['id']} ({row['kind']}) is still {row['state']}."
    for row in world.rows("SELECT id, state, text FROM outbox WHERE state IN ('held','pending','sending')"):
        yield f"Outgoing {row['id']} is still {row['state']}: {row['text']!r}"
    for row in world.rows("SELECT id FROM runs WHERE ended_ms IS NULL"):
        yield f"Run {row['id']} has not ended."
    for container in world.engine.containers.values():
        yield f"{container.process.name} is left over."
    for what, sql in LEFT_ROWS.items():
        for row in world.rows(sql):
            yield f"{what}: {', '.join(map(str, row))}"
    yield from _files_left(world)
    yield from _tasks_left(world)


def _files_left(world: World) -> Iterator[str]:
    sent = {Path(row["file_path"]).name for row in world.rows(SENT_FILES)}
    left = [path for pattern in LEFT_FILES for path in sorted(world.home.data.glob(pattern))]
    for path in (one for one in left if one.name not in sent):
        yield f"A file is left over: {path.relative_to(world.home.root)}"
    for path in sorted(world.home.root.rglob("*.partial")):
        yield f"A file that was being written is left over: {path.relative_to(world.home.root)}"
    # Answers to an agent are removed as it asks again, after an hour and beyond the thousandth.
    for folder in sorted(world.home.ipc.glob("*/replies")):
        times = [path.stat().st_mtime for path in folder.iterdir()]
        # What is left of a file after a failure of power has the time of the real clock.
        has_times = times and world.unsynced is None and not world.has_set_clock()
        is_old = has_times and max(times) - min(times) > REPLY_SECONDS
        if is_old or len(times) > MOST_REPLIES:
            yield f"{len(times)} old answers to an agent's requests are left in {folder.parent.name}"


def _tasks_left(world: World) -> Iterator[str]:
    """When all is quiet, no task of the host is left but its loops, however much it has lived through."""
    if world.tasks_when_quiet > MOST_TASKS:
        yield f"The host has {world.tasks_when_quiet} tasks though all is quiet: {world.names_of_tasks}"
