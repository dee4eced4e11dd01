"""What a container may read of its group's context: both files, copied to `data/env/{folder}/`.

The directory is read-only in the container. Truth is the host's own files; these follow them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from agent_runner.wire.files import write_whole
from orchestrator.base.redaction import BY_SHAPE, Redactor
from orchestrator.context.files import CONTEXT, WORKFLOW
from orchestrator.context.snapshots import SnapshotContents

log = structlog.get_logger(__name__)

HOSTS_OWN = frozenset({"writer"})
"""What tells of the host's machine."""


@dataclass(slots=True)
class Copies:
    """Rewrites what has changed. Blocks; one call a group at a time."""

    root: Path
    """`data/env`"""
    redactor: Redactor = BY_SHAPE
    _written: dict[str, tuple[str, int]] = field(default_factory=dict)

    def write(self, folder: str, kept: SnapshotContents, *, is_new: bool = False) -> None:
        """Make the copies of a group true; `is_new` says that its container is new, and sees none yet."""
        version = (kept.context.writer, kept.context.revision)
        if not is_new and self._written.get(folder) == version:
            return
        context = kept.context.model_dump(mode="json", exclude=set(HOSTS_OWN))
        documents = {CONTEXT: context, WORKFLOW: kept.workflow.model_dump(mode="json")}
        try:
            for name, document in documents.items():
                text = json.dumps(self.redactor.redacted(document), ensure_ascii=False, indent=1)
                write_whole(self.root / folder / name, text + "\n")
        except FileNotFoundError:
            return  # no container of this group has been prepared yet
        except OSError as error:
            log.warning("context.not_copied", group=folder, reason=error.strerror)
            return
        self._written[folder] = version
