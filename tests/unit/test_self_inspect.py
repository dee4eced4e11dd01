"""Which container this is, and where the host has what it sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.compose.self_inspect import BindMount, mount_of_source, own_id
from orchestrator.containers.docker.host_paths import HostPaths
from orchestrator.domain.errors import ContainerError

ID = "0123456789abcdef" * 4
TABLE = f"""\
21 20 0:5 / /proc rw - proc proc rw
32 20 8:1 /var/lib/docker/containers/{ID}/resolv.conf /etc/resolv.conf rw - ext4 /dev/sda1 rw
33 20 8:1 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/sda1 rw
"""


def mounts(source: str, destination: str, *, is_writable: bool = True, kind: str = "bind") -> BindMount:
    return BindMount(source=source, destination=destination, is_writable=is_writable, kind=kind)


MOUNTS = (
    mounts("/srv/checkout", "/andy", is_writable=False),
    mounts("/srv/checkout/groups", "/andy/groups"),
    mounts("/mnt/big/data", "/andy/data"),
    mounts("/srv/checkout/store", "/andy/store"),
    mounts("/home/me/photos", "/home/me/photos", is_writable=False),
    mounts("/var/lib/docker/volumes/engine/_data", "/run/andy", kind="volume"),
)
SIBLINGS = HostPaths(own_id=ID, mounts=MOUNTS, address="172.18.0.2")


def test_a_container_knows_its_id_by_the_hostname_that_the_engine_mounts(tmp_path):
    (tmp_path / "mountinfo").write_text(TABLE)
    assert own_id(tmp_path / "mountinfo") == ID


def test_a_host_has_none(tmp_path):
    (tmp_path / "mountinfo").write_text("21 20 0:5 / /proc rw - proc proc rw\n")
    assert own_id(tmp_path / "mountinfo") is None
    assert own_id(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("path", "on_host"),
    [
        ("/andy/groups/family", "/srv/checkout/groups/family"),
        ("/andy/data/ipc/family/input", "/mnt/big/data/ipc/family/input"),
        ("/andy/docs", "/srv/checkout/docs"),
        ("/andy", "/srv/checkout"),
        ("/home/me/photos", "/home/me/photos"),
    ],
)
def test_a_path_is_where_its_innermost_mount_comes_from(path, on_host):
    assert SIBLINGS.on_host(Path(path)) == Path(on_host)


def test_a_path_of_this_container_alone_is_refused_with_the_line_to_add():
    line = "Add '- /opt/notes:/opt/notes:ro' to the 'volumes' of 'andy' in docker-compose.override.yml, then"
    with pytest.raises(ContainerError, match=line):
        SIBLINGS.on_host(Path("/opt/notes"))


def test_a_home_whose_folders_are_all_mounted_for_writing_is_taken():
    SIBLINGS.check_home(Path("/andy"))


@pytest.mark.parametrize("missing", ["groups", "data", "store"])
def test_a_home_with_a_folder_that_is_not_mounted_is_refused_with_the_line_to_add(missing):
    fewer = tuple(one for one in MOUNTS if one.destination != f"/andy/{missing}")
    lone = HostPaths(own_id=ID, mounts=fewer, address=None)

    with pytest.raises(ContainerError, match=f"Add '- ./{missing}:/andy/{missing}'"):
        lone.check_home(Path("/andy"))


def test_a_folder_of_the_owner_is_shown_when_it_is_mounted_by_itself():
    assert SIBLINGS.mount_hindrance(Path("/home/me/photos")) is None
    for path in ("/home/me/photos/2026", "/home/me", "/run/andy"):
        assert f"'- {path}:{path}:ro'" in (SIBLINGS.mount_hindrance(Path(path)) or "")


@pytest.mark.parametrize("path", ["/srv/checkout/groups/../store", "groups", "/srv/checkout-2/x", "/srv"])
def test_a_path_that_leads_elsewhere_lies_in_no_mount(path):
    found = mount_of_source(MOUNTS, path)
    assert found is None
