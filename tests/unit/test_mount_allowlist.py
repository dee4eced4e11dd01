"""Folders of the owner's: what is shown, how, and what never is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.containers.mount_allowlist import MountAllowlist, MountRequester, MountRules, decide
from orchestrator.groups.owner import OwnerFile
from orchestrator.groups.settings import MountRequest
from tests.support.store_harness import a_group

OWN_HOME = Path("/home/me")
ASKER = MountRequester(
    is_main=False, owner_home=OWN_HOME, protected=(Path("/home/me/andy/data"), Path("/home/me/.config/andy"))
)


def rules(**changes):
    fields = {
        "allowedRoots": [
            {"path": "~/projects", "allowReadWrite": True},
            {"path": "~/projects/closed"},
            {"path": "/srv/photos"},
        ],
        "blockedPatterns": ["token", "*.kdbx"],
        "nonMainReadOnly": False,
    }
    return MountRules.model_validate({**fields, **changes})


def granted(*wishes, asker=ASKER, given=None, links=None, missing=()):
    """Decide on a disk where every path is there, but for links and what is missing."""

    def resolve(path):
        return None if str(path) in missing else Path((links or {}).get(str(path), path))

    return decide([MountRequest(**wish) for wish in wishes], given or rules(), asker, resolve=resolve)


def shown(extra):
    return {mount.target: (str(mount.source), mount.is_writable) for mount in extra.mounts}


def test_a_folder_under_an_allowed_root_is_shown_read_only():
    extra = granted({"path": "~/projects/shop"}, {"path": "/srv/photos", "name": "Bilder 사진"})
    assert shown(extra) == {
        "/workspace/extra/shop": ("/home/me/projects/shop", False),
        "/workspace/extra/Bilder 사진": ("/srv/photos", False),
    }
    assert extra.refusals == ()


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ({"path": "/etc"}, "none of the 'allowedRoots'"),
        ({"path": "/home/me/projects-old"}, "none of the 'allowedRoots'"),
        ({"path": "projects/shop"}, "has to begin with '/' or '~'"),
        ({"path": "~root/projects"}, "has to begin with"),
        ({"path": "~/projects/gone"}, "no such folder"),
        ({"path": "~/projects/.ssh/keys", "name": "keys"}, "'.ssh' in"),
        ({"path": "~/projects/shop/.ENV", "name": "env"}, "'.ENV' in"),
        ({"path": "~/projects/shop/.env.local", "name": "env"}, "'.env.local' in"),
        ({"path": "~/projects/token"}, "'token' in"),
        ({"path": "~/projects/my.kdbx"}, "'my.kdbx' in"),
        ({"path": "~/projects/link"}, "none of the 'allowedRoots'"),
        ({"path": "~/projects/keys"}, "'.gnupg' in"),
        ({"path": "/home/me/andy/data/sessions"}, "Andy's own"),
        ({"path": "/home/me/Andy/DATA"}, "Andy's own"),
        ({"path": "/home/me"}, "Andy's own"),
        ({"path": "/"}, "no name"),
        ({"path": "/", "name": "all"}, "Andy's own"),
        ({"path": "~/.config/andy/mount-allowlist.json"}, "Andy's own"),
        ({"path": "~/projects/shop", "name": "a:b"}, "'a:b' is no name"),
        ({"path": "~/projects/shop", "name": "../x"}, "is no name"),
        ({"path": "~/projects/shop", "name": ".."}, "is no name"),
        ({"path": "~/projects/shop", "name": " "}, "is no name"),
        ({"path": "~/projects/shop", "name": "a\x00b"}, "is no name"),
    ],
)
def test_what_may_not_be_shown_is_refused_with_the_reason(wish, why):
    extra = granted(
        wish,
        {"path": "~/projects/other"},
        links={"/home/me/projects/link": "/etc/shadow", "/home/me/projects/keys": "/home/me/.gnupg/x"},
        missing={"/home/me/projects/gone"},
    )
    assert why in extra.refusals[0]
    assert list(shown(extra)) == ["/workspace/extra/other"], "the rest goes on"


def test_a_pattern_is_a_whole_name_and_not_a_piece_of_one():
    extra = granted({"path": "~/projects/tokenizer"}, {"path": "~/projects/mycredentials"})
    assert extra.refusals == ()
    assert len(extra.mounts) == 2


def test_a_name_is_given_once_also_in_another_case():
    extra = granted({"path": "~/projects/shop"}, {"path": "/srv/photos/Shop"})
    assert list(shown(extra)) == ["/workspace/extra/shop"]
    assert "taken by another" in extra.refusals[0]


@pytest.mark.parametrize(
    ("path", "is_main", "non_main_read_only", "is_writable"),
    [
        ("~/projects/shop", True, True, True),
        ("~/projects/shop", False, False, True),
        ("~/projects/shop", False, True, False),
        ("~/projects/closed/x", True, False, False),
        ("/srv/photos", True, False, False),
    ],
)
def test_writing_takes_the_wish_the_root_and_main(path, is_main, non_main_read_only, is_writable):
    asker = MountRequester(is_main=is_main, owner_home=OWN_HOME, protected=())
    given = rules(nonMainReadOnly=non_main_read_only)
    extra = granted(
        {"path": path, "writable": True}, {"path": path, "name": "again"}, asker=asker, given=given
    )
    assert [mount.is_writable for mount in extra.mounts] == [is_writable, False]
    assert bool(extra.refusals) is not is_writable, "a wish granted by half is told"


# The file and the disk


@pytest.fixture
def place(tmp_path):
    owner_home = tmp_path / "me"
    for folder in ("photos/2026", "andy/data", "andy/groups/family", ".config/andy"):
        (owner_home / folder).mkdir(parents=True)
    return owner_home


def allowlist(place):
    file = OwnerFile(place / ".config/andy/mount-allowlist.json", MountRules)
    return MountAllowlist(file, home=place / "andy", owner_home=place)


def write(place, fields):
    (place / ".config/andy/mount-allowlist.json").write_text(
        fields if isinstance(fields, str) else json.dumps(fields)
    )


def wishing(*paths):
    return a_group(container_config={"mounts": [{"path": path} for path in paths]})


def test_without_a_list_nothing_is_shown_and_the_next_look_sees_a_new_one(place):
    decider = allowlist(place)
    assert decider.grant(a_group()).refusals == (), "nobody asked"
    (told,) = decider.grant(wishing("~/photos")).refusals
    assert "there is no list" in told
    assert str(place / ".config/andy/mount-allowlist.json") in told
    write(place, {"allowedRoots": [{"path": "~/photos"}]})
    assert shown(decider.grant(wishing("~/photos"))) == {
        "/workspace/extra/photos": (str(place / "photos"), False)
    }
    write(place, {"allowedRoots": []})
    assert decider.grant(wishing("~/photos")).mounts == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Invalid JSON"),
        ("[]", "should be an object"),
        (
            '{"allowedRoots": [{"path": "~/photos", "allowReadWrite": "yes"}]}',
            "allowedRoots.0.allowReadWrite",
        ),
        ('{"allowRoots": []}', "allowRoots: Extra inputs"),
    ],
)
def test_a_broken_list_shows_nothing_and_says_where(place, text, why):
    write(place, text)
    extra = allowlist(place).grant(wishing("~/photos"))
    assert extra.mounts == ()
    assert why in extra.refusals[0]


def test_links_are_followed_before_anything_is_checked(place):
    write(place, {"allowedRoots": [{"path": "~/photos"}, {"path": "~/album"}]})
    (place / "photos/out").symlink_to("/etc")
    (place / "photos/own").symlink_to(place / "andy/groups/family")
    (place / "photos/loop").symlink_to(place / "photos/loop")
    (place / "album").symlink_to(place / "photos")
    os.mkfifo(place / "photos/pipe")
    wishes = ("~/photos/out", "~/photos/own", "~/photos/loop", "~/photos/pipe", "~/album/2026")
    extra = allowlist(place).grant(wishing(*wishes))
    assert shown(extra) == {"/workspace/extra/2026": (str(place / "photos/2026"), False)}
    assert [line.split(" ")[0] for line in extra.refusals] == list(wishes[:4])


@pytest.mark.parametrize("path", ["~/andy", "~/andy/data", "~/andy/groups/family", "~/.config/andy", "~"])
def test_what_is_andys_own_is_never_shown_even_when_it_is_allowed(place, path):
    write(place, {"allowedRoots": [{"path": "~", "allowReadWrite": True}]})
    (told,) = allowlist(place).grant(wishing(path)).refusals
    assert "Andy's own" in told


def test_a_folder_that_containers_cannot_be_given_is_refused_with_the_line_to_add():
    asker = MountRequester(
        is_main=True,
        owner_home=OWN_HOME,
        protected=(),
        mount_hindrance=lambda path: None if path.name == "seen" else f"Add '- {path}:{path}'.",
    )
    path = str(OWN_HOME / "projects")

    extra = granted({"path": f"{path}/seen"}, {"path": f"{path}/unseen"}, asker=asker)

    assert [mount.source.name for mount in extra.mounts] == ["seen"]
    assert extra.refusals == (f"{path}/unseen is not shown: Add '- {path}/unseen:{path}/unseen'.",)
