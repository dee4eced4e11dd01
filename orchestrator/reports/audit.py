"""Reports the audit and whether its chain holds, as rows for machines and lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict
from zoneinfo import ZoneInfo

from orchestrator.base.clock import local_second
from orchestrator.base.redaction import redact
from orchestrator.base.tables import table
from orchestrator.domain.values import Folder
from orchestrator.store import audit as audit_store
from orchestrator.store.audit import AuditView
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import commands
from orchestrator.store.runs.commands import CommandView

CHECK_MS = 10 * 60_000
"""Milliseconds for which the console trusts verified rows; `andy audit verify` reads all rows each time."""


async def rows(
    tx: Tx,
    folder: str | None,
    *,
    since_ms: int,
    limit: int,
    before_id: int | None = None,
    only_refused: bool = False,
) -> list[AuditView]:
    """Return the newest rows of the audit, at most `limit`, oldest of them first.

    `folder` is the group, None for all. Only rows since `since_ms` (epoch ms) count. With `before_id`, only
    rows with a smaller `id` count: the page before. With `only_refused`, only refusals to containers,
    programs and pages.
    """
    # The name of a group that exists may be written in upper or lower case. The rows of a group that is gone
    # stay in the audit; they are found only by its name as it was.
    known_folder = None
    if folder is not None:
        group = await groups.by_folder(tx, folder)
        known_folder = Folder(folder) if group is None else group.folder
    return await audit_store.newest(
        tx,
        limit=limit,
        folder=known_folder,
        since_ms=since_ms,
        before_id=before_id,
        only_refused=only_refused,
    )


async def command_rows(
    tx: Tx, folder: str | None, *, limit: int, before_number: int | None = None
) -> list[CommandView]:
    """Return the latest requests of containers to the host, at most `limit`, each with its answer.

    They are newest first, without secrets. `folder` is the group, None for all. With `before_number`, only
    those with a smaller number count: the next page. Raises `UnknownGroup`.
    """
    known_folder = None if folder is None else (await groups.known(tx, folder)).folder
    rows = await commands.newest(tx, known_folder, limit=limit, before_number=before_number)
    return [{**row, "text": redact(row["text"])} for row in rows]


def lines(rows: list[AuditView], *, zone: ZoneInfo) -> list[str]:
    """Return the rows of the audit as a table for people."""
    if not rows:
        return ["Nothing is recorded."]
    head = ("row", "time", "group", "what", "how")
    return table(
        head,
        [
            (
                str(row["id"]),
                local_second(row["at_ms"], zone),
                row["group"] or "",
                row["kind"],
                detail_text(row["detail"]),
            )
            for row in rows
        ],
    )


def detail_text(detail: Mapping[str, object]) -> str:
    """Return the details of a row of the audit as one line, `name=value …`, cut to 160 characters.

    Details that are None, False, zero or an empty text are left out.
    """
    fields = (f"{name}={value}" for name, value in detail.items() if value not in (None, "", 0))
    return " ".join(" ".join(fields).split())[:160]


class AuditVerdictView(TypedDict):
    """The result of checking the chain; `fault` is None when each row is as it was written."""

    rows: int
    head: str
    fault: str | None
    ok: bool


class CheckedAudit(AuditVerdictView):
    """A verdict that may trust rows that were checked before; `whole_ms` is when all were last read."""

    whole_ms: int


async def verify(tx: Tx) -> AuditVerdictView:
    """Return whether every row of the audit is there as it was written, by the checksums that link them."""
    return _verdict_row(await audit_store.verify(tx))


class AuditCheck:
    """Checks the chain for the console: all rows once in a while, and in between only the new ones."""

    def __init__(self) -> None:
        self._last_verdict: audit_store.ChainVerdict | None = None
        self._all_read_ms = 0
        """When all rows were last read, in epoch ms."""

    async def verify(self, tx: Tx, *, now_ms: int, reads_all: bool = False) -> CheckedAudit:
        """Return whether every row of the audit is there as it was written, and when all were last read.

        Rows that were found good are not read again for `CHECK_MS`, unless `reads_all`. `whole_ms` of the
        result is when all rows were last read, in epoch ms.
        """
        trusted = self._last_verdict
        # A row may be changed after it was checked: all are read again after a while, and after a fault.
        # `abs`, because the last time lies in the future after the clock was set back.
        is_old = abs(now_ms - self._all_read_ms) > CHECK_MS
        if reads_all or is_old or trusted is None or trusted.fault is not None:
            trusted = None
        # Only the rows that were added after a trusted verdict are read; without one, all rows are.
        verdict = await audit_store.verify(tx, after=trusted)
        if trusted is None:
            self._all_read_ms = now_ms
        self._last_verdict = verdict
        return {**_verdict_row(verdict), "whole_ms": self._all_read_ms}


def _verdict_row(verdict: audit_store.ChainVerdict) -> AuditVerdictView:
    """Return the result of checking the audit as the API and `--json` show it; `ok` says that it is whole.

    `rows` is the number of sound rows, and `head` the checksum of the last of them.
    """
    return {
        "rows": verdict.rows,
        "head": verdict.head,
        "fault": verdict.fault,
        "ok": verdict.fault is None,
    }


def verdict_lines(verdict: AuditVerdictView) -> list[str]:
    """Return the result of checking the audit as one line for people."""
    if verdict["ok"]:
        return [f"All {verdict['rows']:,} rows are as they were written. The newest is {verdict['head']}"]
    count = f"{verdict['rows']:,}"
    return [f"The audit is broken: {verdict['fault']}. The {count} rows before are as they were written."]
