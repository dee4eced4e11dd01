"""Write, list, pin and delete snapshots: each is one file with a context and its workflow.

A snapshot is `context-YYYYMMDDTHHMMSSZ-r<revision>.json`; an empty file of its name with `.pin` in place of
`.json` pins it. `surplus`, which is pure, decides which snapshots are deleted. The methods of
`ContextSnapshots` block. `create` and `rewrite` are called with the group's lock held.
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

MAX_NEWEST = 48
MAX_DAYS = 14
DAY_MS = 86_400_000
WRONG_TIMES = 4
"""Newest snapshots whose times may be wrong: a clock that is ahead for two hours must make none too old."""
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
    """Return the file name of the snapshot of this revision, taken at `at_ms` epoch milliseconds."""
    return f"context-{stamp(at_ms)}-r{revision}.json"


def parsed_name(name: str) -> ContextSnapshot | None:
    """Return the snapshot that a file name describes; None if it is not the name of a snapshot."""
    # Names come from people and from a directory, so nothing but a snapshot's own form passes.
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    try:
        at = datetime.strptime(match[1], _STAMP).replace(tzinfo=UTC)
    except ValueError:
        return None
    return ContextSnapshot(name=name, at_ms=round(at.timestamp() * 1000), revision=int(match[2]))


def surplus(snapshots: Iterable[ContextSnapshot], *, now_ms: int) -> tuple[ContextSnapshot, ...]:
    """Return the snapshots to delete, newest first.

    The newest 48 stay, the newest of each day (in UTC) for 14 days, and pinned ones. The days are counted
    back from the earliest time of the newest `WRONG_TIMES` + 1 snapshots, or from `now_ms` if that is before.
    So a group with few new snapshots has its old ones for longer.
    """
    ordered = sorted(snapshots, key=_age_key, reverse=True)
    before_ms = min([now_ms, *(snapshot.at_ms for snapshot in ordered[: WRONG_TIMES + 1])])
    retained = {snapshot.name for snapshot in ordered[:MAX_NEWEST]} | {
        snapshot.name for snapshot in ordered if snapshot.is_pinned
    }
    days: set[int] = set()
    for snapshot in ordered:
        day = snapshot.at_ms // DAY_MS
        if day not in days and before_ms - snapshot.at_ms <= MAX_DAYS * DAY_MS:
            days.add(day)
            retained.add(snapshot.name)
    return tuple(snapshot for snapshot in ordered if snapshot.name not in retained)


@dataclass(frozen=True, slots=True)
class ContextSnapshots:
    """The snapshots of one group."""

    folder: Path
    redactor: Redactor = BY_SHAPE

    def listed(self) -> list[ContextSnapshot]:
        """Return all snapshots in the folder, newest first; other files in it are ignored."""
        if not self.folder.is_dir():
            return []
        names = {path.name for path in self.folder.iterdir()}
        snapshots = [
            ContextSnapshot(
                name=parsed.name,
                at_ms=parsed.at_ms,
                revision=parsed.revision,
                is_pinned=_pin_name(parsed.name) in names,
            )
            for name in names
            if (parsed := parsed_name(name)) is not None
        ]
        return sorted(snapshots, key=_age_key, reverse=True)

    def create(self, contents: SnapshotContents, *, now_ms: int, reason: str) -> ContextSnapshot | None:
        """Write a snapshot of `contents` and return it; delete those that need not be retained any longer.

        Return None, without a change, if there is one of this revision. `reason` is stored with it.

        Raises:
            OSError: it cannot be written; the earlier snapshots are unchanged.
        """
        # A revision never changes, so a second snapshot of it would only push an older one out.
        if any(snapshot.revision == contents.context.revision for snapshot in self.listed()):
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
        for snapshot in surplus(self.listed(), now_ms=now_ms):
            (self.folder / snapshot.name).unlink(missing_ok=True)
        # In whole seconds, as the name has it: a later listing reads the time from the name.
        written_ms = now_ms // 1000 * 1000
        return ContextSnapshot(name=name, at_ms=written_ms, revision=contents.context.revision)

    def read(self, name: str) -> SnapshotContents:
        """Return the validated contents of a snapshot.

        Raises:
            UnknownSnapshot: no snapshot has this name.
            SnapshotDamaged: it cannot be read.
        """
        if parsed_name(name) is None:
            raise UnknownSnapshot(name)
        try:
            document = disk.read_document(self.folder / name, most_bytes=MAX_BYTES)
        except disk.Unreadable as error:
            raise SnapshotDamaged(name, str(error)) from error
        if document is None:
            raise UnknownSnapshot(name)
        return _contents_of(name, document)

    def readable(self) -> Iterator[SnapshotContents]:
        """Yield the contents of each readable snapshot, newest first; damaged ones are skipped."""
        for snapshot in self.listed():
            with suppress(SnapshotDamaged, UnknownSnapshot):
                yield self.read(snapshot.name)

    def rewrite(
        self,
        change: Callable[[Context], Context],
        change_plans: Callable[[Workflow], Workflow] = lambda plans: plans,
    ) -> None:
        """Replace the context and the workflow in all readable snapshots by what the two functions return.

        So a text that was deleted from the context does not return with a restored snapshot. A function that
        changes nothing must return its argument itself: a snapshot without any change is not written.
        """
        for snapshot in self.listed():
            with suppress(SnapshotDamaged, UnknownSnapshot):
                contents = self.read(snapshot.name)
                context, plans = change(contents.context), change_plans(contents.workflow)
                parts: dict[str, Any] = {}
                if context is not contents.context:
                    parts["context"] = context.model_dump(mode="json")
                if plans is not contents.workflow:
                    parts["workflow"] = plans.model_dump(mode="json")
                if parts:
                    self._replace_parts(snapshot.name, parts)

    def _replace_parts(self, name: str, parts: Mapping[str, Any]) -> None:
        """Replace top-level fields of a snapshot's document by those of `parts`.

        The others stay unchanged.
        """
        document = disk.read_document(self.folder / name, most_bytes=MAX_BYTES)
        disk.write_durably(self.folder / name, disk.encoded({**(document or {}), **parts}, self.redactor))

    def newest_valid(self) -> tuple[ContextSnapshot, SnapshotContents] | None:
        """Return the newest snapshot that can be read, with its contents; None if there is none."""
        for snapshot in self.listed():
            try:
                return snapshot, self.read(snapshot.name)
            except SnapshotDamaged:
                continue
        return None

    def pin(self, name: str) -> None:
        """Protect a snapshot from being deleted when it is old. Raises `UnknownSnapshot`."""
        self._raise_if_unknown(name)
        # A file beside the snapshot, not a field in it: pinning never rewrites the snapshot itself.
        (self.folder / _pin_name(name)).touch(mode=disk.FILE_MODE)
        disk.sync(self.folder)

    def unpin(self, name: str) -> None:
        """Let a protected snapshot be deleted again when it is old. Raises `UnknownSnapshot`."""
        self._raise_if_unknown(name)
        (self.folder / _pin_name(name)).unlink(missing_ok=True)

    def _raise_if_unknown(self, name: str) -> None:
        """Raise `UnknownSnapshot` if there is no snapshot of this name."""
        if parsed_name(name) is None or not (self.folder / name).is_file():
            raise UnknownSnapshot(name)


def _age_key(snapshot: ContextSnapshot) -> tuple[int, int]:
    """Return the key that orders snapshots by age: revisions first, since a clock may have been set back."""
    return snapshot.revision, snapshot.at_ms


def _pin_name(name: str) -> str:
    """Return the name of the file that pins a snapshot."""
    return f"{name.removesuffix('.json')}.pin"


def _contents_of(name: str, document: dict[str, Any]) -> SnapshotContents:
    """Return the contents of the document of the snapshot `name`.

    Raises:
        SnapshotDamaged: its version is not known, or it is not valid.
    """
    # Only the major number must agree: a later minor version adds fields that can be ignored.
    version = str(document.get("version"))
    if version.partition(".")[0] != models.VERSION.partition(".")[0]:
        raise SnapshotDamaged(name, f"its version is {version}")
    try:
        return SnapshotContents(
            context=Context.model_validate(document.get("context")),
            workflow=Workflow.model_validate(document.get("workflow") or workflow.bootstrap("", 0)),
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

    def __init__(self, name: str, reason: str) -> None:
        """`reason` finishes the sentence "it cannot be restored"."""
        super().__init__(f"The snapshot '{name}' cannot be restored ({reason}); nothing was changed.")
