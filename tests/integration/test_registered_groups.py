"""The list of all groups is read again only after one was changed, by whatever program."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.domain.values import ChatJid, Folder, Group
from orchestrator.groups import registration
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups

FAMILY = Group(jid=ChatJid("local:family"), name="Family", folder=Folder("family"))


async def test_the_groups_are_the_same_object_until_another_program_changes_one(database_path: Path) -> None:
    host, command = await Database.open(database_path), await Database.open(database_path)
    try:
        await command.write(lambda tx: registration.register(tx, FAMILY))
        first = await groups.registered(host)
        assert [one.folder for one in first] == ["family"]
        assert await groups.registered(host) is first

        await command.write(lambda tx: groups.set_config(tx, FAMILY.folder, {"timezone": "UTC"}, now_ms=1))
        second = await groups.registered(host)
        assert second[0].container_config == {"timezone": "UTC"}

        await command.write(
            lambda tx: registration.add_chat(tx, FAMILY.folder, ChatJid("local:two"), now_ms=1)
        )
        third = await groups.registered(host)
        assert third[0].other_chats == ("local:two",)

        await command.write(lambda tx: groups.remove(tx, FAMILY.folder))
        assert await groups.registered(host) == []
    finally:
        await host.close()
        await command.close()


async def test_a_change_that_was_rolled_back_leaves_no_revision_to_another_one(database_path: Path) -> None:
    database = await Database.open(database_path)
    revisions = []

    async def rename(tx: Tx, name: str) -> None:
        group = await groups.known(tx, FAMILY.folder)
        await groups.set_profile(tx, Group(jid=group.jid, name=name, folder=group.folder))
        revisions.append(await groups.revision(tx))
        if name == "never":
            raise RuntimeError(name)

    try:
        await database.write(lambda tx: registration.register(tx, FAMILY))
        with pytest.raises(RuntimeError):
            await database.write(lambda tx: rename(tx, "never"))
        await database.write(lambda tx: rename(tx, "Family 2"))
        assert revisions[0] != revisions[1]
    finally:
        await database.close()
