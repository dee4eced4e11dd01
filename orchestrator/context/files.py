"""`data/context/{folder}/.ai-brain/`: a group's `context.json` and `workflow.json`, changed one at a time.

    .ai-brain/
      context.json    what the conversation was about (short-lived)
      workflow.json   plans and their tasks (long-lived)
      snapshots/      both together, now and then
      documents/      finished plans that were moved out of workflow.json
      .context.lock

The directory is the host's own: no container writes there. All functions block for a few milliseconds; call
them in a thread. Every change is read, made and written under one exclusive lock, which the system releases
when its process dies.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import structlog
from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from orchestrator.base.redaction import BY_SHAPE, Redactor
from orchestrator.context import disk, memory, models, workflow
from orchestrator.context.models import Context
from orchestrator.context.snapshots import ContextSnapshots, SnapshotContents, stamp
from orchestrator.context.workflow import PlanRefused, Workflow
from orchestrator.domain.errors import ContextBusy
from orchestrator.groups.registration import checked_folder

log = structlog.get_logger(__name__)

DIRECTORY = ".ai-brain"
CONTEXT, WORKFLOW, LOCK = "context.json", "workflow.json", ".context.lock"
LOCK_SECONDS = 5.0
POLL_SECONDS = 0.01
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
CONTEXT_BYTES = 256 * 1024
WORKFLOW_BYTES = 1024 * 1024
READ_FACTOR = 4
"""The factor by which a file that a person edited may exceed its limit; the next save shortens it."""
MAX_SET_ASIDE = 5
"""The number of unreadable files of each name that are retained beside the good one."""


RepairKind = Literal["corrupt", "unknown_version", "dangling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRepair:
    """A part of a context that was found damaged at a load and repaired. The owner is notified once."""

    folder: str
    kind: RepairKind
    """`dangling`: the context named an active plan or task that was gone."""
    text: str
    """A sentence for a person."""
    moved_to: str | None = None
    """The name under which the bad file is stored beside the good one."""


Report = Callable[[ContextRepair], None]
"""Callback for a repair; called in the thread that made it."""


class ContextDraft:
    """A context and a workflow that a `with` block may replace; they are written unless it fails."""

    __slots__ = ("context", "workflow")

    def __init__(self, contents: SnapshotContents) -> None:
        """Begin with the stored contents."""
        self.context: Context = contents.context
        self.workflow: Workflow = contents.workflow

    @property
    def contents(self) -> SnapshotContents:
        """The present contents of the draft."""
        return SnapshotContents(context=self.context, workflow=self.workflow)


def context_path(contexts: Path, folder: str) -> Path:
    """Return the directory of a group's context under `contexts`. Raises `FolderRefused`."""
    return contexts / checked_folder(folder) / DIRECTORY


def writer_name() -> str:
    """Return the name of this process as a writer: `host:pid:uuid`, different in each process."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFiles:
    """The files of one group. Nothing is on the disk until something is stored."""

    folder: str
    path: Path
    project_name: str = ""
    writer: str = field(default_factory=writer_name)
    report: Report = field(default=lambda _: None)
    lock_seconds: float = LOCK_SECONDS
    redactor: Redactor = BY_SHAPE

    @classmethod
    def of(
        cls,
        contexts: Path,
        folder: str,
        *,
        project_name: str = "",
        report: Report = lambda _: None,
        lock_seconds: float = LOCK_SECONDS,
        redactor: Redactor = BY_SHAPE,
    ) -> ContextFiles:
        """Return the files of the group with this folder name; nothing is created on the disk yet.

        `contexts` is the directory of all contexts (`data/context`). `project_name` is the title of a new
        workflow, by default the folder's name. `report` is called with each repair.

        Raises:
            FolderRefused: `folder` is not a valid folder name.
        """
        return cls(
            folder=folder,
            path=context_path(contexts, folder),
            project_name=project_name or folder,
            report=report,
            lock_seconds=lock_seconds,
            redactor=redactor,
        )

    @property
    def snapshots(self) -> ContextSnapshots:
        """The snapshots of the group."""
        return ContextSnapshots(self.path / "snapshots", self.redactor)

    def read(self, now_ms: int) -> SnapshotContents:
        """Return the stored context and workflow; empty ones if nothing is stored.

        Damaged files are repaired on the disk, and the repairs passed to the callback `report`.

        Raises:
            ContextBusy: another writer did not release the lock in time.
            OSError: the files cannot be read or repaired.
        """
        if not self.path.is_dir():
            return self._empty_contents(now_ms)
        # The repairs are written as the block begins; its draft is not changed, so nothing else is.
        with self.changing(now_ms) as draft:
            return draft.contents

    @contextmanager
    def changing(self, now_ms: int) -> Iterator[ContextDraft]:
        """Yield a draft of the stored context and workflow; after the block, write what it changed there.

        The group's lock is held from the read to the write. Damaged files are repaired before the block. If
        the block raises, nothing else is written. Directories are created where they are missing.

        Raises:
            ContextBusy: another writer did not release the lock in time.
            OSError: a file cannot be written; each is either as before or complete.
            PlanRefused: the workflow is too large for its file.
        """
        disk.make_private(
            self.path.parent.parent,
            self.path.parent,
            self.path,
            self.path / "snapshots",
            self.path / "documents",
        )
        with self._locked():
            # Under the lock no other writer can be at work.
            disk.sweep_partials(self.path)
            stored = self._read_repaired(now_ms)
            draft = ContextDraft(stored)
            yield draft
            self._write(stored, draft, now_ms)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the exclusive lock of the group's files during the block, and release it afterwards.

        Raises `ContextBusy` if it is not free within `lock_seconds`.
        """
        # No soft lock: its file would stay behind after a kill, while the system releases this one.
        lock = FileLock(
            self.path / LOCK,
            timeout=self.lock_seconds,
            mode=disk.FILE_MODE,
            poll_interval=POLL_SECONDS,
            fallback_to_soft=False,
        )
        try:
            lock.acquire()
        except Timeout as error:
            raise ContextBusy(self.folder) from error
        try:
            yield
        finally:
            lock.release()

    def _write(self, stored: SnapshotContents, draft: ContextDraft, now_ms: int) -> None:
        """Write those documents of a draft that are no longer the stored objects, the workflow first.

        With any change the context is written, too, with a new revision. The draft gets what was written.
        """
        if draft.context is not stored.context or draft.workflow is not stored.workflow:
            # The workflow's field `ai_session` has copies of decisions and open files. They follow every
            # change, so that a decision that was removed from the context does not stay there.
            draft.workflow = memory.with_ai_session(draft.workflow, memory.capped(draft.context).memory)
        if draft.workflow is not stored.workflow:
            draft.workflow = self._write_workflow(draft.workflow)
        if draft.context is not stored.context or draft.workflow is not stored.workflow:
            draft.context = self._with_new_revision(draft.context, now_ms)
            self._write_context(draft.context)

    def _with_new_revision(self, context: Context, now_ms: int) -> Context:
        """Return the context cut to its limits, with the next revision, the present time and this process."""
        return memory.capped(context).model_copy(
            update={
                "created_at": context.created_at or models.iso(now_ms),
                "updated_at": models.iso(now_ms),
                "revision": context.revision + 1,
                "writer": self.writer,
            }
        )

    def _write_workflow(self, plans: Workflow) -> Workflow:
        """Write the plans and return those written; the oldest finished ones move to `documents/` if the file
        would be too large.

        Raises:
            PlanRefused: the file would be too large, and no finished plan is left to move.
        """
        while len(data := self._encoded(plans)) > WORKFLOW_BYTES:
            plans, oldest = workflow.without_oldest_finished(plans)
            if oldest is None:
                raise PlanRefused("The plans take up all their room: complete or cancel the tasks of one.")
            folder = self.path / "documents" / _UNSAFE.sub("_", oldest.id)[:100]
            disk.make_private(folder)
            disk.write_durably(folder / "plan.json", self._encoded(oldest))
        disk.write_durably(self.path / WORKFLOW, data)
        return plans

    def _write_context(self, context: Context) -> None:
        """Write the context; if it is too large for its file, with its two newest messages only."""
        data = self._encoded(context)
        if len(data) > CONTEXT_BYTES:
            log.warning("context.cut", group=self.folder, bytes=len(data), limit=CONTEXT_BYTES)
            data = self._encoded(memory.with_two_messages(context))
        disk.write_durably(self.path / CONTEXT, data)

    def _write_document(self, name: str, document: dict[str, Any]) -> None:
        """Write a JSON document, with its secrets replaced, as the file `name` of the group's directory."""
        disk.write_durably(self.path / name, disk.encoded(document, self.redactor))

    def _encoded(self, document: BaseModel) -> bytes:
        """Return a document as the bytes of its file: JSON with the secrets replaced."""
        return disk.encoded(document.model_dump(mode="json"), self.redactor)

    def _empty_contents(self, now_ms: int) -> SnapshotContents:
        """Return an empty context and workflow."""
        return SnapshotContents(
            context=models.bootstrap(now_ms), workflow=workflow.bootstrap(self.project_name, now_ms)
        )

    def _read_repaired(self, now_ms: int) -> SnapshotContents:
        """Return the context and workflow on the disk, repaired where necessary.

        If the context names an active plan or task that is gone, that is corrected, written and reported.
        """
        plans = self._read_workflow(now_ms)
        context = self._read_context(now_ms)
        repaired_memory = memory.repaired(context, plans)
        if repaired_memory.note and repaired_memory.note != context.memory.note:
            self._report_repair("dangling", repaired_memory.note)
        # The same object means that nothing had to be repaired.
        if repaired_memory is not context.memory:
            context = self._with_new_revision(context.model_copy(update={"memory": repaired_memory}), now_ms)
            self._write_context(context)
        return SnapshotContents(context=context, workflow=plans)

    def _read_context(self, now_ms: int) -> Context:
        """Return the stored context; a new one if there is none, with the revision of the newest snapshot.

        A file that is corrupt or of a newer version is set aside and replaced.
        """
        try:
            document = disk.read_document(self.path / CONTEXT, most_bytes=CONTEXT_BYTES * READ_FACTOR)
            if document is None:
                return models.bootstrap(now_ms).model_copy(update={"revision": self._newest_revision()})
            _check_major(document, models.VERSION)
            return Context.model_validate(document)
        except _NewerVersion as error:
            return self._replace_unreadable(CONTEXT, "unknown_version", str(error), now_ms).context
        except (disk.Unreadable, ValidationError) as error:
            return self._replace_unreadable(CONTEXT, "corrupt", _first_line(error), now_ms).context

    def _read_workflow(self, now_ms: int) -> Workflow:
        """Return the stored workflow; a new one if there is none. A file of version 1 is converted.

        A file that is corrupt or of a newer version is set aside and replaced.
        """
        try:
            document = disk.read_document(self.path / WORKFLOW, most_bytes=WORKFLOW_BYTES * READ_FACTOR)
            if document is None:
                return workflow.bootstrap(self.project_name, now_ms)
            if _major(document) == "1":
                return self._migrate_to_version_2(document, now_ms)
            _check_major(document, workflow.VERSION)
            return Workflow.model_validate(document)
        except _NewerVersion as error:
            return self._replace_unreadable(WORKFLOW, "unknown_version", str(error), now_ms).workflow
        except (disk.Unreadable, ValidationError, ValueError) as error:
            return self._replace_unreadable(WORKFLOW, "corrupt", _first_line(error), now_ms).workflow

    def _migrate_to_version_2(self, document: dict[str, Any], now_ms: int) -> Workflow:
        """Convert a workflow of version 1 to version 2, write it, and return it.

        The old document is copied to the snapshots' directory.
        """
        converted = workflow.migrated(document, self.project_name, now_ms)
        self._write_document(f"snapshots/workflow-v1-{stamp(now_ms)}.json", document)
        self._write_document(WORKFLOW, converted.model_dump(mode="json"))
        return converted

    def _replace_unreadable(
        self, name: str, kind: Literal["corrupt", "unknown_version"], reason: str, now_ms: int
    ) -> SnapshotContents:
        """Rename an unusable file, and write it anew from the newest valid snapshot; empty if there is none.

        `name` is the file's name, of the context or the workflow. The renamed file stays; the repair is
        reported with `reason`. Return the new contents, of which only the part of this file was written.
        """
        aside = self._set_aside(name, kind, now_ms)
        newest = self.snapshots.newest_valid()  # (snapshot, its contents), or None
        contents = newest[1] if newest else self._empty_contents(now_ms)
        if name == CONTEXT:
            context = self._with_new_revision(
                contents.context.model_copy(update={"revision": self._newest_revision()}), now_ms
            )
            self._write_context(context)
            contents = SnapshotContents(context=context, workflow=contents.workflow)
        else:
            self._write_document(WORKFLOW, contents.workflow.model_dump(mode="json"))
        source = f"the snapshot {newest[0].name} was restored" if newest else "it starts empty"
        self._report_repair(kind, f"{name} of '{self.folder}' cannot be read ({reason}): {source}.", aside)
        return contents

    def _newest_revision(self) -> int:
        """Return the revision of the newest snapshot; 0 without one."""
        # A revision number must not be used twice, or the next snapshot would be taken for an older one.
        return max((snapshot.revision for snapshot in self.snapshots.listed()), default=0)

    def _set_aside(self, name: str, kind: RepairKind, now_ms: int) -> str:
        """Rename the bad file `name`, and return its new name; `kind` is its problem, see `ContextRepair`.

        Only the newest `MAX_SET_ASIDE` files that were renamed for the same problem stay; older ones are
        deleted.
        """
        stem = name.removesuffix(".json")
        label = "corrupt" if kind == "corrupt" else "other-version"
        aside = f"{stem}.{label}-{stamp(now_ms)}-{uuid.uuid4().hex[:6]}.json"
        (self.path / name).replace(self.path / aside)
        disk.sync(self.path)
        for old in sorted(self.path.glob(f"{stem}.{label}-*.json"))[:-MAX_SET_ASIDE]:
            if old.is_file():
                old.unlink()
        return aside

    def _report_repair(self, kind: RepairKind, text: str, moved_to: str | None = None) -> None:
        """Log a repair and report it; `moved_to` is the new name of the bad file, if there is one."""
        log.warning("context.repaired", group=self.folder, kind=kind, text=text, moved_to=moved_to)
        self.report(ContextRepair(folder=self.folder, kind=kind, text=text, moved_to=moved_to))


class _NewerVersion(Exception):
    """A file has another major version than this program's, or none; mostly a newer program wrote it."""


def _major(document: dict[str, Any]) -> str:
    """Return the major number of a document's version; empty if it has none."""
    return str(document.get("version", "")).split(".")[0]


def _check_major(document: dict[str, Any], ours: str) -> None:
    """Raise `_NewerVersion` if a document has another major version than `ours`, such as `1.0`."""
    if _major(document) != ours.partition(".")[0]:
        raise _NewerVersion(f"its version is {document.get('version')!r}, known is {ours}")


def _first_line(error: Exception) -> str:
    """Return the first line of an error's text; its type if it has no text."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


GITIGNORE_LINE = f"{DIRECTORY}/".encode()
GIT_SECONDS = 10.0


def ignore_in_git(home: Path) -> bool:
    """Add `.ai-brain/`, where conversations are stored, to `home/.gitignore`; return whether it was added.

    Nothing is done where `home` is in no git work tree, or git ignores that directory already.

    Raises:
        OSError: `.gitignore` cannot be read or written.
    """
    if not _is_in_work_tree(home.resolve()) or _is_ignored(home):
        return False
    path = home / ".gitignore"
    # As bytes, as git itself reads the file: a person may have written it in any encoding.
    stored = path.read_bytes() if path.exists() else b""
    if GITIGNORE_LINE in stored.splitlines():
        return False
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "ab") as file:
        separator = b"" if not stored or stored.endswith(b"\n") else b"\n"
        file.write(separator + GITIGNORE_LINE + b"\n")
    return True


def _is_in_work_tree(home: Path) -> bool:
    """Return whether a folder is in a git repository."""
    return any((folder / ".git").exists() for folder in (home, *home.parents))


def _is_ignored(home: Path) -> bool:
    """Return whether git ignores the directories of contexts under `home`; False without git."""
    # One group's file stands for those of all groups; it need not exist.
    path = home / "data" / "context" / "main" / DIRECTORY / CONTEXT
    try:
        result = subprocess.run(
            # `--no-index`: by the rules alone, also for a file that is tracked already.
            ["git", "-C", home, "check-ignore", "--quiet", "--no-index", path],
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0
