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
    """Return the newest rows, or those with an `id` below `before_id`, oldest first.

    Only rows since `since_ms`. With `only_refused`, only refusals to containers, programs and pages.
    """
    # The group is not looked up: its rows stay in the audit when the group is gone.
    known_folder = Folder(folder) if folder is not None else None
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
    """Return the latest commands of containers, newest first, each with its answer. Raises `UnknownGroup`."""
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
    """Return a row's details in one short line, without those that are empty or zero."""
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
    """Return whether every row is there as it was written."""
    return _verdict_row(await audit_store.verify(tx))


class AuditCheck:
    """Checks the chain for the console: all rows once in a while, and in between only the new ones."""

    def __init__(self) -> None:
        self._known: audit_store.ChainVerdict | None = None
        self._whole_ms = 0

    async def verify(self, tx: Tx, *, now_ms: int, reads_all: bool = False) -> CheckedAudit:
        """Return what `verify` returns, and as `whole_ms` when all rows were last read.

        Rows that were found good less than `CHECK_MS` ago are trusted, unless `reads_all`.
        """
        trusted = self._known
        # A row may be changed after it was checked: all are read again after a while, and after a fault.
        if reads_all or trusted is None or trusted.fault is not None or now_ms - self._whole_ms > CHECK_MS:
            trusted = None
        verdict = await audit_store.verify(tx, after=trusted)
        if trusted is None:
            self._whole_ms = now_ms
        self._known = verdict
        return {**_verdict_row(verdict), "whole_ms": self._whole_ms}


def _verdict_row(verdict: audit_store.ChainVerdict) -> AuditVerdictView:
    """Return a verdict as the API and `--json` show it: `ok` is true where there is no fault."""
    return {
        "rows": verdict.rows,
        "head": verdict.head,
        "fault": verdict.fault,
        "ok": verdict.fault is None,
    }


def verdict_lines(verdict: AuditVerdictView) -> list[str]:
    """Return the verdict on the chain as one line for people."""
    if verdict["ok"]:
        return [f"All {verdict['rows']:,} rows are as they were written. The newest is {verdict['head']}"]
    count = f"{verdict['rows']:,}"
    return [f"The audit is broken: {verdict['fault']}. The {count} rows before are as they were written."]
