"""Give an ordinary process what a container has: symbolic links for the mounts, and a small environment."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import structlog

from orchestrator.base import dirfd
from orchestrator.domain.protocols import ContainerSpec, Mount

log = structlog.get_logger(__name__)

WORKSPACE = PurePosixPath("/workspace")
CONFIG = PurePosixPath("/home/andy/.claude")
PASSED_ON = (
    "LANG",
    "LC_ALL",
    "PATH",
    "TZ",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)


@dataclass(frozen=True, slots=True)
class ProcessLayout:
    """The directory of one run, with links to the mounts and a home directory."""

    run: Path

    @property
    def workspace(self) -> Path:
        """The directory in place of `/workspace`."""
        return self.run / "workspace"

    @property
    def home(self) -> Path:
        """The agent's home directory."""
        return self.run / "home"

    @property
    def identity(self) -> Path:
        """The file with the process's number and start time."""
        return self.run / "identity"

    @property
    def mark(self) -> str:
        """The environment entry, `NAME=VALUE`, that all processes of this run have, and no others."""
        return f"ANDY_WORKSPACE={self.workspace}"

    def make(self, mounts: Sequence[Mount]) -> None:
        """Create the run's directory, with its home directory and with the links that represent `mounts`.

        Raises:
            OSError: a mount's source is missing, or the run has a directory already.
        """
        self.run.mkdir(parents=True, mode=0o700)
        for folder in (self.workspace, self.home, self.workspace / "group"):
            folder.mkdir()
        for link, source in links(mounts).items():
            source.stat()  # raises if it is missing; a link to it would not
            path = self.workspace / link
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():  # the folder `group`, which was created above
                path.rmdir()
            path.symlink_to(source)

    def remove(self) -> None:
        """Remove the directory and its links without following them. A missing directory is no error.

        If it cannot be removed, that is logged, and the next start of the host tries again.
        """
        if self.run.exists():
            # A program that left the run may still write there. That must not end the host, nor its start.
            try:
                dirfd.remove_tree(self.run)
            except OSError as error:
                log.warning("process.not_removed", run=self.run.name, reason=str(error))


def links(mounts: Sequence[Mount]) -> dict[PurePosixPath, Path]:
    """Return the symbolic links that represent mounts: by the path under the workspace, the target. Pure.

    Mounts outside of the container's `/workspace` are left out. A mount that contains other mounts gets no
    link but becomes a plain directory. With a link, the inner links would be created in its source, and files
    that inner mounts are to hide would be visible.
    """
    targets = {PurePosixPath(mount.target): mount.source.absolute() for mount in mounts}
    above = {parent for target in targets for parent in target.parents}
    return {
        target.relative_to(WORKSPACE): source
        for target, source in targets.items()
        if target.is_relative_to(WORKSPACE) and target != WORKSPACE and target not in above
    }


def environment(layout: ProcessLayout, spec: ContainerSpec, host: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of an agent's process. Pure.

    They are a few harmless ones of the `host`'s environment, those of the `spec`, and those that name the
    run's directories. No other variable of the host is passed, so none of its secrets is.
    """
    passed_on = {name: host[name] for name in PASSED_ON if name in host}
    mark_name, _, workspace = layout.mark.partition("=")
    run_variables = {mark_name: workspace, "HOME": str(layout.home), "PYTHONUNBUFFERED": "1"}
    for mount in spec.mounts:
        if PurePosixPath(mount.target) == CONFIG:
            run_variables["CLAUDE_CONFIG_DIR"] = str(mount.source.absolute())
    return {**passed_on, **spec.environment, **run_variables}


def host_environment() -> Mapping[str, str]:
    """Return the environment of this host's own process."""
    return os.environ
