from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orchestrator.containers import mounts
from orchestrator.containers.mounts import ContainerUser, FileRights, plan_mounts, prepare
from orchestrator.domain.errors import ContainerError
from orchestrator.domain.values import ChatJid, Folder, Group
from orchestrator.home import directory
from tests.support.buried import bury

FAMILY = Group(jid=ChatJid("local:family"), name="Family", folder=Folder("family"))
MAIN = Group(jid=ChatJid("local:main"), name="Main", folder=Folder("main"), is_main=True)
HOME = Path("/home/of/andy")
ME = os.geteuid()


def rows(planned) -> dict[str, tuple[str, str]]:
    return {
        mount.target: (str(mount.source.relative_to(HOME)), "rw" if mount.is_writable else "ro")
        for mount in planned
    }


def test_a_group_sees_its_own_directories_each_in_its_mode():
    assert rows(plan_mounts(FAMILY, home=HOME)) == {
        "/workspace/ipc/input": ("data/ipc/family/input", "ro"),
        "/workspace/ipc/replies": ("data/ipc/family/replies", "ro"),
        "/workspace/ipc/messages": ("data/ipc/family/messages", "rw"),
        "/workspace/ipc/tasks": ("data/ipc/family/tasks", "rw"),
        "/workspace/env": ("data/env/family", "ro"),
        "/workspace/group": ("groups/family", "rw"),
        "/home/andy/.claude": ("data/sessions/family/.claude", "rw"),
    }


def test_the_shared_directory_is_changed_in_main_alone():
    for has_global in (True, False):
        planned = rows(plan_mounts(MAIN, home=HOME, has_global=has_global))
        assert planned["/workspace/global"] == ("groups/global", "rw")
    assert rows(plan_mounts(FAMILY, home=HOME, has_global=True))["/workspace/global"] == (
        "groups/global",
        "ro",
    )


def test_main_sees_of_the_home_what_is_shown_and_read_only():
    planned = rows(plan_mounts(MAIN, home=HOME, shown=("groups", "README.md")))

    assert {target: row for target, row in planned.items() if target.startswith("/workspace/project")} == {
        "/workspace/project": ("data/project", "ro"),
        "/workspace/project/groups": ("groups", "ro"),
        "/workspace/project/README.md": ("README.md", "ro"),
    }


def test_nothing_that_may_hold_a_secret_is_ever_shown():
    assert not {".env", "data", "store", "andy.toml", ".git"} & set(directory.SHOWN_TO_MAIN)
    assert not [name for name in directory.SHOWN_TO_MAIN if name.startswith(".") or "/" in name]


def test_no_directory_is_written_by_two_groups():
    other = Group(jid=ChatJid("local:work"), name="Work", folder=Folder("work"))
    written = [
        mount.source
        for group in (FAMILY, other, MAIN)
        for mount in plan_mounts(group, home=HOME, has_global=True)
        if mount.is_writable
    ]

    assert len(written) == len(set(written)) == 13


def test_what_is_mounted_is_there_and_the_groups_own(tmp_path):
    planned = prepare(FAMILY, home=tmp_path, uid=ME)

    assert all(mount.source.is_dir() for mount in planned)
    modes = {mount.target: mount.source.stat().st_mode & 0o777 for mount in planned}
    assert modes["/workspace/ipc/input"] == modes["/workspace/env"] == 0o755
    assert modes["/workspace/ipc/tasks"] == modes["/home/andy/.claude"] == 0o700
    assert (tmp_path / "data" / "sessions").stat().st_mode & 0o077 == 0o011
    assert prepare(FAMILY, home=tmp_path, uid=ME) == planned


@pytest.mark.skipif(ME != 0, reason="only root gives away")
def test_what_a_container_writes_belongs_to_it_and_the_rest_to_the_host(tmp_path):
    group = tmp_path / "groups" / "family"
    group.mkdir(parents=True)
    (group / "CLAUDE.md").write_text("written by the host")

    planned = prepare(FAMILY, home=tmp_path, uid=1000)

    owners = {mount.target: mount.source.stat().st_uid for mount in planned}
    assert {target for target, uid in owners.items() if uid == 1000} == {
        mount.target for mount in planned if mount.is_writable
    }
    assert (group / "CLAUDE.md").stat().st_uid == 1000


@pytest.mark.skipif(ME != 0, reason="only root gives away")
def test_a_planted_link_is_given_to_nobody(tmp_path):
    prepare(FAMILY, home=tmp_path, uid=1000)
    secret = tmp_path / "secret"
    secret.write_text("mine")
    (tmp_path / "groups" / "family" / "link").symlink_to(secret)
    os.link(secret, tmp_path / "groups" / "family" / "hard")

    prepare(FAMILY, home=tmp_path, uid=1000)

    assert secret.stat().st_uid == 0


@pytest.mark.parametrize(
    "place", ["groups/family", "data/ipc/family/tasks", "data/sessions", "data/env/family"]
)
def test_a_link_in_the_way_is_refused_and_not_followed(tmp_path, place):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o711)
    link = home / place
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)

    with pytest.raises(ContainerError, match=link.name):
        prepare(FAMILY, home=home, uid=ME)

    assert list(elsewhere.iterdir()) == []
    assert elsewhere.stat().st_mode & 0o777 == 0o711


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "groups").mkdir()
    (tmp_path / "groups" / "family").write_text("")

    with pytest.raises(ContainerError, match="family"):
        prepare(FAMILY, home=tmp_path, uid=ME)


def test_a_folder_that_cannot_be_opened_is_not_called_a_link(tmp_path, monkeypatch):
    real_open = os.open

    def refused(path, flags, *rest, **named):
        if path == "family":
            raise OSError(errno.EMFILE, "Too many open files")
        return real_open(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(ContainerError, match=r"cannot be used \(Too many open files\)") as error:
        prepare(FAMILY, home=tmp_path, uid=ME)
    assert "link" not in str(error.value)


def test_a_new_folder_whose_mode_cannot_be_set_is_named_and_closed(tmp_path, monkeypatch):
    opened, real_open = set(), os.open

    def fchmod(descriptor, mode):
        raise OSError(errno.EPERM, "Operation not permitted")

    def noted(path, flags, *rest, **named):
        descriptor = real_open(path, flags, *rest, **named)
        opened.add(descriptor)
        return descriptor

    monkeypatch.setattr(os, "fchmod", fchmod)
    monkeypatch.setattr(os, "open", noted)
    with pytest.raises(ContainerError, match=r"cannot be used \(Operation not permitted\)"):
        prepare(FAMILY, home=tmp_path, uid=ME)
    assert opened
    for descriptor in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.mark.parametrize("folder", ["../other", "/etc", ".."])
def test_a_folder_name_that_leads_elsewhere_is_refused(tmp_path, folder):
    stray = Group(jid=ChatJid("local:x"), name="x", folder=Folder(folder))

    with pytest.raises(ContainerError):
        prepare(stray, home=tmp_path, uid=ME)


def test_main_gets_stand_ins_for_what_is_there_alone(tmp_path):
    for name in (".env", "andy.toml", "README.md"):
        (tmp_path / name).write_text("x")
    (tmp_path / "store").mkdir()
    (tmp_path / "docs").symlink_to(tmp_path / "store")

    planned = prepare(MAIN, home=tmp_path, uid=ME)

    view = tmp_path / "data" / "project"
    assert sorted(path.name for path in view.iterdir()) == ["README.md", "groups"]
    assert (view / "README.md").read_text() == ""
    assert {mount.target for mount in planned if "/project/" in mount.target} == {
        "/workspace/project/groups",
        "/workspace/project/README.md",
    }


def test_what_a_restricted_container_left_is_removed_however_deep_it_is(tmp_path: Path) -> None:
    no_files = FileRights(reads=False, writes=False)
    prepare(FAMILY, home=tmp_path, uid=ME, rights=no_files)
    left = tmp_path / "data/sessions/family/apart/group"
    outside = tmp_path / "outside"
    outside.mkdir()
    (left / "link").symlink_to(outside)
    bury(left, depth=3_000)

    prepare(FAMILY, home=tmp_path, uid=ME, rights=no_files)

    assert list(left.iterdir()) == []
    assert outside.is_dir()


def test_a_file_that_is_gone_before_it_is_given_away_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, ...]] = []
    listed = os.listdir
    monkeypatch.setattr(mounts.os, "geteuid", lambda: mounts.ROOT)
    monkeypatch.setattr(mounts.os, "fchown", lambda *owned: given.append(owned))
    monkeypatch.setattr(mounts.os, "listdir", lambda descriptor: ["gone", *listed(descriptor)])

    prepare(FAMILY, home=tmp_path, uid=12345)

    assert len(given) == 4  # the directories that a container writes


def test_the_command_that_gives_a_folder_to_its_user_changes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my andy"
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(ContainerError, match=f"sudo chown -R 1234 '{folder}'"):
            mounts._give_to_container(descriptor, folder, ContainerUser(uid=1234, gid=1234))
    finally:
        os.close(descriptor)
