"""`andy` in its container: it starts as root, becomes the owner of the home, and stays that.

Who owns `data/` on the host is not known before, and need not be told: whoever cloned Andy. If that is root,
the home is given to an ordinary user, whom agents run as, too.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from orchestrator import config

ROOT, ORDINARY = 0, 1000
OWN = ("groups", "data", "store")
NO_HOME = "/home/andy"


def main() -> None:
    """Step down where this is root, then run the command line."""
    if os.geteuid() == ROOT:
        become(take_over(config.home_directory(None)))
    from orchestrator.__main__ import main as andy

    andy()


def take_over(home: Path) -> os.stat_result | None:
    """Give root's files of a home to the ordinary user, if `data/` is root's; return whose it is then."""
    owner = _seen(home / "data")
    if owner is None or owner.st_uid != ROOT:
        return owner
    for name in OWN:
        _give(home / name)
    return _seen(home / "data")


def become(owner: os.stat_result | None) -> None:
    """Be that user from here on, without a way back: with root's number go its capabilities."""
    uid = owner.st_uid if owner is not None and owner.st_uid != ROOT else ORDINARY
    gid = owner.st_gid if owner is not None and owner.st_gid != ROOT else ORDINARY
    os.setgroups([ORDINARY])  # whose the filter's socket is
    os.setgid(gid)
    os.setuid(uid)
    os.environ["HOME"] = NO_HOME


def _give(folder: Path) -> None:
    """Change the owner of what is root's in it, itself included. Agents write here: no link is followed."""
    for here, _, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        del here
        if os.fstat(descriptor).st_uid == ROOT:
            os.fchown(descriptor, ORDINARY, ORDINARY)
        for name in names:
            _give_file(descriptor, name)


def _give_file(folder: int, name: str) -> None:
    seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if seen.st_uid == ROOT and stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
        os.chown(name, ORDINARY, ORDINARY, dir_fd=folder, follow_symlinks=False)


def _seen(path: Path) -> os.stat_result | None:
    try:
        return path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    main()
