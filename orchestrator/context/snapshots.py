"""Write, list, pin and delete snapshots: each is one file with a context and its workflow.

A snapshot is `context-YYYYMMDDTHHMMSSZ-r<revision>.json`; an empty file of its name with `.pin` in place of
`.json` pins it. Which are given up is decided by `doomed`, which is pure. The rest blocks, and belongs under
the group's lock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.base.redaction import BY_SHAPE, Redactor
from orchestrator.context import disk, models, workflow
from orchestrator.context.models import Context
from orchestrator.context.workflow import Workflow
from orchestrator.domain.errors import BadRequest

NEWEST_KEPT = 48
DAYS_KEPT = 14
DAY_MS = 86_400_000
MAX_BYTES = 2 * 1024 * 1024
_NAME = re.compile(r"context-(\d{8}T\d{6}Z)-r(\d{1,12})\.json")
_STAMP = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSnapshot:
    """A group's snapshot, as its file name describes it."""

    name: str
    at_ms: int
    revision: int
    is_pinned: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotContents:
    """A context and the workflow that belongs to it."""

    context: Context
    workflow: Workflow


def stamp(at_ms: int) -> str:
    """Return epoch milliseconds in the form `20261122T093000Z`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(_STAMP)


def name_of(revision: int, at_ms: int) -> str:
    """Return the file name of a snapshot."""
    return f"context-{stamp(at_ms)}-r{revision}.json"


def parsed_name(name: str) -> ContextSnapshot | None:
    """Return what a file name says; None when it is not the name of a snapshot."""
    # Names come from people and from a directory, so nothing but a snapshot's own form passes.
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    try:
        at = datetime.strptime(found[1], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None
    return ContextSnapshot(name=name, at_ms=round(at.timestamp() * 1000), revision=int(found[2]))


def doomed(snapshots: Iterable[ContextSnapshot], *, now_ms: int) -> tuple[ContextSnapshot, ...]:
    """Return the snapshots to delete (C-22): 48, the newest of each day for 14 days, and pinned ones stay."""
    ordered = sorted(snapshots, key=_age, reverse=True)
    retained = {one.name for one in ordered[:NEWEST_KEPT]} | {one.name for one in ordered if one.is_pinned}
    days: set[int] = set()
    for one in ordered:
        day = one.at_ms // DAY_MS
        if day not in days and now_ms - one.at_ms <= DAYS_KEPT * DAY_MS:
            days.add(day)
            retained.add(one.name)
    return tuple(one for one in ordered if one.name not in retained)


@dataclass(frozen=True, slots=True)
class ContextSnapshots:
    """The snapshots of one group."""

    folder: Path
    redactor: Redactor = BY_SHAPE

    def listed(self) -> list[ContextSnapshot]:
        """Return all snapshots, newest first."""
        if not self.folder.is_dir():
            return []
        names = {path.name for path in self.folder.iterdir()}
        found = [
            ContextSnapshot(
                name=one.name,
                at_ms=one.at_ms,
                revision=one.revision,
                is_pinned=_pin(one.name) in names,
            )
            for name in names
            if (one := parsed_name(name)) is not None
        ]
        return sorted(found, key=_age, reverse=True)

    def create(self, contents: SnapshotContents, *, now_ms: int, reason: str) -> ContextSnapshot | None:
        """Write a snapshot and delete what retention does not keep; None when one of this revision exists."""
        # A revision never changes, so a second snapshot of it would only push an older one out.
        if any(one.revision == contents.context.revision for one in self.listed()):
            return None
        disk.make_private(self.folder)
        disk.sweep_partials(self.folder)
        name = name_of(contents.context.revision, now_ms)
        document = {
            "version": models.VERSION,
            "created_at": models.iso(now_ms),
            "reason": reason,
            "context": contents.context.model_dump(mode="json"),
            "workflow": contents.workflow.model_dump(mode="json"),
        }
        # Written before the old ones go: a full disk costs the new snapshot and no old one.
        disk.write_durably(self.folder / name, disk.encoded(document, self.redactor))
        for one in doomed(self.listed(), now_ms=now_ms):
            (self.folder / one.name).unlink(missing_ok=True)
        return ContextSnapshot(name=name, at_ms=now_ms // 1000 * 1000, revision=contents.context.revision)

    def read(self, name: str) -> SnapshotContents:
        """Return what a snapshot holds, checked.

        Raises:
            UnknownSnapshot: there is none of that name.
            SnapshotDamaged: it cannot be read.
        """
        if parsed_name(name) is None:
            raise UnknownSnapshot(name)
        try:
            found = disk.read_document(self.folder / name, most_bytes=MAX_BYTES)
        except disk.Unreadable as error:
            raise SnapshotDamaged(name, str(error)) from error
        if found is None:
            raise UnknownSnapshot(name)
        return _contents_of(name, found)

    def readable(self) -> Iterator[SnapshotContents]:
        """Yield what each readable snapshot holds, newest first."""
        # A damaged one is skipped: the others are still of use.
        for one in self.listed():
            with suppress(SnapshotDamaged, UnknownSnapshot):
                yield self.read(one.name)

    def rewrite(
        self,
        change: Callable[[Context], Context],
        change_plans: Callable[[Workflow], Workflow] = lambda plans: plans,
    ) -> None:
        """Change what is in all readable snapshots; both return the same object where nothing changes."""
        # What was taken back must go from here too, or a restore would bring it up again.
        for one in self.listed():
            with suppress(SnapshotDamaged, UnknownSnapshot):
                contents = self.read(one.name)
                changed = {"context": change(contents.context), "workflow": change_plans(contents.workflow)}
                was = {"context": contents.context, "workflow": contents.workflow}
                parts = {name: part for name, part in changed.items() if part is not was[name]}
                if parts:
                    self._put(one.name, {name: part.model_dump(mode="json") for name, part in parts.items()})

    def _put(self, name: str, parts: Mapping[str, Any]) -> None:
        """Write some parts of a snapshot again and keep the others as they are."""
        found = disk.read_document(self.folder / name, most_bytes=MAX_BYTES)
        disk.write_durably(self.folder / name, disk.encoded({**(found or {}), **parts}, self.redactor))

    def newest_valid(self) -> tuple[ContextSnapshot, SnapshotContents] | None:
        """Return the newest snapshot that can be read, with what it holds."""
        for one in self.listed():
            try:
                return one, self.read(one.name)
            except SnapshotDamaged:
                continue
        return None

    def pin(self, name: str) -> None:
        """Protect a snapshot from retention. Raises `UnknownSnapshot`."""
        self._known(name)
        # A file beside it and not a field in it: the snapshot itself is never written again for this.
        (self.folder / _pin(name)).touch(mode=disk.FILE_MODE)
        disk.sync(self.folder)

    def unpin(self, name: str) -> None:
        """Leave a snapshot to retention again. Raises `UnknownSnapshot`."""
        self._known(name)
        (self.folder / _pin(name)).unlink(missing_ok=True)

    def _known(self, name: str) -> None:
        if parsed_name(name) is None or not (self.folder / name).is_file():
            raise UnknownSnapshot(name)


def _age(snapshot: ContextSnapshot) -> tuple[int, int]:
    """Return the key that orders snapshots: a clock may have been set back, but no revision comes twice."""
    return snapshot.revision, snapshot.at_ms


def _pin(name: str) -> str:
    return f"{name.removesuffix('.json')}.pin"


def _contents_of(name: str, found: dict[str, Any]) -> SnapshotContents:
    # Only the major number must agree: a later minor version adds fields that can be passed over.
    version = str(found.get("version"))
    if version.partition(".")[0] != models.VERSION.partition(".")[0]:
        raise SnapshotDamaged(name, f"its version is {version}")
    try:
        return SnapshotContents(
            context=Context.model_validate(found.get("context")),
            workflow=Workflow.model_validate(found.get("workflow") or workflow.bootstrap("", 0)),
        )
    except ValidationError as error:
        raise SnapshotDamaged(name, str(error).splitlines()[0]) from error


class UnknownSnapshot(BadRequest):
    """There is no such snapshot."""

    code = "unknown_snapshot"
    http_status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no snapshot '{name}': 'andy context snapshots GROUP' lists them.")


class SnapshotDamaged(BadRequest):
    """The snapshot cannot be read."""

    code = "snapshot_damaged"
    http_status = 409

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"The snapshot '{name}' cannot be restored ({why}); nothing was changed.")
