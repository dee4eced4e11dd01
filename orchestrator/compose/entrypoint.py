"""The entry point of Andy's container: it starts as root, then becomes the owner of the home for good.

That owner is not known before, and need not be named: it is whoever cloned Andy, or created the folder. If it
is root, the home is given to an ordinary user, whom agents run as, too.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.home.directory import home_directory

ROOT, ORDINARY = 0, 1000
"""The numbers of root, and of the ordinary user that the image has."""
OWN_FOLDERS = ("groups", "data", "store", "backups")
"""The directories of a home that Andy itself writes."""
ORDINARY_HOME = "/home/andy"
"""The home directory of the ordinary user; that of root, in `HOME` so far, is closed to it."""


@dataclass(frozen=True, slots=True)
class User:
    """The user that Andy and its agents run as."""

    uid: int
    gid: int


def main() -> None:
    """Drop root's rights, then run the command line with the arguments of this program.

    Before `up`, root's files in the home become those of the new user.
    """
    if os.geteuid() == ROOT:
        # Without an option: the home that `ANDY_HOME` names.
        home = home_directory(None)
        user = owner_of(home)
        if sys.argv[1:2] == ["up"]:
            take_over(home, user)
        become(user)
    os.execv(sys.executable, [sys.executable, "-m", "orchestrator", *sys.argv[1:]])  # noqa: S606


def owner_of(home: Path) -> User:
    """Return the user whom Andy is to run as: the owner of the home's folder `data`, if that is not root.

    Otherwise it is the owner of the home, and if that is root, too, an ordinary user.
    """
    # `data/` first: an earlier start gave it to the user that Andy ran as then. The home itself may still be
    # root's.
    for folder in (home / "data", home):
        try:
            status = folder.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if status.st_uid != ROOT:
            # Never with root's group: the ordinary user's takes its place.
            return User(status.st_uid, status.st_gid or ORDINARY)
    return User(ORDINARY, ORDINARY)


def take_over(home: Path, user: User) -> None:
    """Make `user` the owner of root's files in those folders of a home that Andy writes.

    `sudo andy restore`, for example, leaves such files.
    """
    # Only Andy's own directories: the home may be a checkout with files of its owner in it.
    for name in OWN_FOLDERS:
        if (home / name).is_dir():
            _give(home / name, user)


def become(user: User) -> None:
    """Change this process from root to `user` for good: root's capabilities go with root's id.

    `HOME` becomes the home of the ordinary user, whoever `user` is: it is the one that the image has.
    """
    # The socket of the filter, by which alone Andy reaches Docker, belongs to the ordinary user's group. It
    # has the same number as that user.
    os.setgroups([ORDINARY])
    # The group before the user: without root's id the group can no longer be changed.
    os.setgid(user.gid)
    os.setuid(user.uid)
    os.environ["HOME"] = ORDINARY_HOME


def _give(folder: Path, user: User) -> None:
    """Make `user` the owner of root's files and folders in a folder.

    Agents write there, so no link is followed, and files with several names are skipped. Files and folders
    whose owner cannot be changed are skipped, too.
    """
    for _, _, names, descriptor in os.fwalk(folder, follow_symlinks=False):
        # A folder whose owner cannot be changed, as on a read-only mount, must not prevent the start.
        with suppress(OSError):
            if os.fstat(descriptor).st_uid == ROOT:
                os.fchown(descriptor, user.uid, user.gid)
        for name in names:
            with suppress(OSError):  # or an agent that still runs has removed it meanwhile
                _give_file(descriptor, name, user)


def _give_file(folder_fd: int, name: str, user: User) -> None:
    """Make `user` the owner of the file `name` in an open folder, if it is root's and has no other name."""
    status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    # A hard link could be a file of root's elsewhere, and would be given away with its other name.
    if status.st_uid == ROOT and stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        os.chown(name, user.uid, user.gid, dir_fd=folder_fd, follow_symlinks=False)


if __name__ == "__main__":
    main()
