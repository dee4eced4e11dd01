"""Groups come and go; their files, their history and what waited for an answer do not get lost."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from agent_runner.wire.mailbox import RegisterGroup
from orchestrator.domain.errors import BadRequest, UnknownGroup
from orchestrator.domain.values import LiveRun, RunId, RunState, TurnState
from orchestrator.groups import memory_templates, name_and_trigger, registration
from orchestrator.groups.changes import configure
from orchestrator.groups.reconciler import GroupReconciler
from orchestrator.groups.registration import AlreadyRegistered, FolderRefused, Registration
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.groups import groups
from orchestrator.store.runs import sessions
from tests.support.reminders import put_reminder
from tests.support.store_harness import a_group
from tests.support.until import until


async def register(store_harness, **fields):
    async with store_harness.database.transaction() as tx:
        return await registration.register(tx, Registration(**fields).to_group(1))


async def unregister(store_harness, folder):
    async with store_harness.database.transaction() as tx:
        return await registration.unregister(tx, folder, now_ms=store_harness.clock.now_ms())


async def test_a_chat_or_a_folder_in_any_case_is_registered_once(store_harness):
    await register(store_harness, folder="family")
    with pytest.raises(AlreadyRegistered):
        await register(store_harness, folder="Family", jid="x@g.us")
    with pytest.raises(AlreadyRegistered):
        await register(store_harness, folder="other", jid="local:family")


async def test_one_more_chat_is_advised_for_a_taken_folder_and_not_for_a_taken_chat(store_harness):
    await register(store_harness, folder="family")
    with pytest.raises(AlreadyRegistered, match="'family': take it off first"):
        await register(store_harness, folder="other", jid="local:family")
    with pytest.raises(AlreadyRegistered, match=r"add-chat family x@g\.us"):
        await register(store_harness, folder="family", jid="x@g.us")
    with pytest.raises(AlreadyRegistered, match=r"registered for local:family already\.$"):
        await register(store_harness, folder="family")


@pytest.mark.parametrize("is_group", [True, False])
async def test_a_registered_chat_stays_what_its_messenger_says(store_harness, is_group):
    await store_harness.hear("hi", is_group=is_group)
    await register(store_harness, folder="family")
    assert await store_harness.rows("SELECT is_group FROM chats") == [{"is_group": is_group}]


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"folder": "../x"}, FolderRefused),
        ({"folder": "Global"}, FolderRefused),
        ({"folder": "errors"}, FolderRefused),
        ({"folder": "a" * 65}, FolderRefused),
        ({"folder": "a", "jid": "two words"}, BadRequest),
        ({"folder": "a", "jid": "line\nbreak"}, BadRequest),
        ({"folder": "a", "jid": "unseen\u202e"}, BadRequest),
        ({"folder": "a", "name": " \n "}, BadRequest),
        ({"folder": "a", "trigger": "@" + "a" * 64}, BadRequest),
        ({"folder": "a", "config": {"memory": 1}}, BadRequest),
    ],
)
async def test_what_cannot_be_registered_is_refused_whole(store_harness, fields, error):
    with pytest.raises(error):
        await register(store_harness, **fields)
    assert await store_harness.rows("SELECT * FROM registered_groups") == []
    assert await store_harness.rows("SELECT * FROM chats") == []


async def test_nobody_becomes_main_by_asking(store_harness):
    assert "is_main" not in Registration.model_fields
    assert "is_main" not in RegisterGroup.model_fields
    with pytest.raises(ValueError, match="is_main"):
        Registration.model_validate({"folder": "x", "is_main": True})


async def test_main_stays(store_harness):
    async with store_harness.database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=1)
    with pytest.raises(BadRequest, match="main group cannot be removed"):
        await unregister(store_harness, "main")
    with pytest.raises(UnknownGroup):
        await unregister(store_harness, "nobody")


async def test_what_waited_for_an_answer_fails_and_the_chat_is_told_once(store_harness):
    group = await store_harness.add_group("family")
    accepted = await store_harness.hear("@Andy hi")
    await store_harness.hear("and this")
    async with store_harness.database.transaction() as tx:
        await put_reminder(tx, group, text="x", due_ms=10**13, now_ms=1)
    departure = await unregister(store_harness, "FAMILY")

    turn = await store_harness.turn(accepted.turn_id)
    assert (turn.state, turn.reason) == (TurnState.FAILED, registration.GONE)
    (told,) = await store_harness.outgoing()
    assert "I will not answer this" in told.text
    assert (departure.failed_turns, departure.reminders) == (1, 1)
    assert "reminders stay set" in departure.explain()


async def test_a_turn_that_runs_may_end_after_its_group_is_gone(store_harness):
    await store_harness.add_group("family")
    await store_harness.hear("@Andy hi")
    turn, run, _ = await store_harness.start_next()
    await unregister(store_harness, "family")
    from agent_runner.wire.frames import Result, TurnEnd

    await store_harness.take(run, Result(n=1, turn=turn.id, result="late"))
    await store_harness.take(run, TurnEnd(n=2, turn=turn.id))
    assert (await store_harness.turn(turn.id)).state is TurnState.ANSWERED
    assert [one.text for one in await store_harness.outgoing()] == ["late"]


async def test_a_group_that_comes_back_has_its_session_and_its_history(store_harness):
    group = await store_harness.add_group("family")
    await store_harness.hear("@Andy one")
    await store_harness.answer("first")
    async with store_harness.database.transaction() as tx:
        await sessions.put_current(tx, group.folder, "session-1", now_ms=1)
    await unregister(store_harness, "family")
    assert (await store_harness.hear("@Andy two")).outcome == "unregistered"

    await register(store_harness, folder="family")
    await store_harness.hear("@Andy three")
    _, _, order = await store_harness.start_next()
    assert "three" in order.prompt
    assert "@Andy one" not in order.prompt
    async with store_harness.database.reading() as tx:
        assert await sessions.current(tx, group.folder) == "session-1"
    assert [one.text for one in await store_harness.messages()] == ["@Andy one", "@Andy three"]


async def test_a_configuration_is_changed_key_by_key(store_harness):
    await store_harness.add_group("family", container_config={"memory_mb": 512})
    async with store_harness.database.transaction() as tx:
        await configure(tx, "family", {"cpus": 1, "memory_mb": None}, by="a test", now_ms=5)
        assert (await groups.known(tx, "family")).container_config == {"cpus": 1.0}
    with pytest.raises(BadRequest, match="'colour'"):
        async with store_harness.database.transaction() as tx:
            await configure(tx, "family", {"colour": "red"}, by="a test", now_ms=5)


# The folder and its memory


@pytest.fixture
def home(tmp_path):
    (tmp_path / "groups").mkdir()
    return tmp_path


def test_a_new_group_begins_with_a_memory_of_its_own(home):
    assert memory_templates.ensure_memory(home, a_group("family"), assistant="Ada")
    text = (home / "groups/family/CLAUDE.md").read_text()
    assert "You are Ada in the chat" in text
    assert '"Family"' in text
    assert "{" not in text
    assert [one.name for one in (home / "groups/family").iterdir()] == ["CLAUDE.md"]


def test_main_is_told_how_to_administer_and_the_others_share_one_file(home):
    assert memory_templates.ensure_memory(home, a_group("main", is_main=True), assistant="Andy")
    assert "register_group" in (home / "groups/main/CLAUDE.md").read_text()
    assert memory_templates.ensure_shared_memory(home, assistant="Andy")
    assert "register_group" not in (home / "groups/global/CLAUDE.md").read_text()


def test_a_memory_that_is_there_is_never_overwritten(home):
    (home / "groups/family").mkdir()
    (home / "groups/family/CLAUDE.md").write_text("mine")
    assert not memory_templates.ensure_memory(home, a_group("family"), assistant="Andy")
    assert (home / "groups/family/CLAUDE.md").read_text() == "mine"


@pytest.mark.parametrize("is_dangling", [True, False])
def test_a_planted_link_is_neither_followed_nor_replaced(home, tmp_path, is_dangling):
    secret = tmp_path / "secret"
    if not is_dangling:
        secret.write_text("kept")
    (home / "groups/family").mkdir()
    (home / "groups/family/CLAUDE.md").symlink_to(secret)
    assert not memory_templates.ensure_memory(home, a_group("family"), assistant="Andy")
    assert secret.exists() is not is_dangling
    (home / "groups/other").symlink_to(tmp_path)
    with pytest.raises(OSError, match="other"):
        memory_templates.ensure_memory(home, a_group("other"), assistant="Andy")


# What follows in the running host


class Pool:
    def __init__(self):
        self.runs = []
        self.retired = []
        self.laid = []

    def live(self):
        return self.runs

    async def retire(self, folder):
        self.retired.append(folder)
        self.runs = [run for run in self.runs if run.folder != folder]


async def test_a_group_that_comes_gets_its_folder_and_one_that_goes_loses_its_container(store_harness):
    pool = Pool()
    group = await store_harness.add_group("family")
    pool.runs = [a_run(folder, started_wall_ms=0) for folder in ("family", "left-over")]
    async with running_upkeep(store_harness, pool):
        await until(lambda: pool.retired == ["left-over"], "what nobody registered is closed")
        assert pool.laid == ["family"]
        await store_harness.add_group("work")
        store_harness.bus.publish("command.register_group", group="main", detail="ok")
        await until(lambda: pool.laid == ["family", "work"], "the folder of the new group")
        await unregister(store_harness, group.folder)
        store_harness.bus.publish("group.unregistered", group="family")
        await until(lambda: pool.retired == ["left-over", "family"], "its container is closed")


async def test_a_container_that_is_older_than_its_groups_configuration_is_closed(store_harness):
    pool = Pool()
    await store_harness.add_group("family", container_config={"egress": "open"})
    await store_harness.add_group("work")
    pool.runs = [a_run("family", started_wall_ms=100), a_run("work", started_wall_ms=100)]
    async with running_upkeep(store_harness, pool):
        await set_up(store_harness, {"egress": "none"}, now_ms=100)
        store_harness.bus.publish("group.configured", group="family")
        await until(lambda: pool.retired == ["family"], "what could reach the internet is closed")
        pool.runs.append(a_run("family", started_wall_ms=101))
        store_harness.bus.publish("group.configured", group="work")
        await store_harness.add_group("late")
        store_harness.bus.publish("group.registered", group="late")
        await until(lambda: "late" in pool.laid, "it has looked again")
    assert pool.retired == ["family"], "its next one has the new configuration"


async def test_a_change_made_while_the_host_was_down_closes_what_it_adopts(store_harness):
    pool = Pool()
    await store_harness.add_group("family", container_config={"egress": "open"})
    await set_up(store_harness, {"egress": None}, now_ms=200)
    pool.runs = [a_run("family", started_wall_ms=100)]
    async with running_upkeep(store_harness, pool):
        await until(lambda: pool.retired == ["family"], "it is closed at the first look")


async def set_up(store_harness, changes, *, now_ms):
    async with store_harness.database.transaction() as tx:
        await configure(tx, "family", changes, by="a test", now_ms=now_ms)


def a_run(folder, *, started_wall_ms):
    return LiveRun(
        id=RunId(f"{folder}-{started_wall_ms}"),
        folder=folder,
        is_isolated=False,
        state=RunState.IDLE,
        started_ms=0,
        started_wall_ms=started_wall_ms,
    )


@asynccontextmanager
async def running_upkeep(store_harness, pool):
    upkeep = GroupReconciler(
        store_harness.database,
        ensure_folder=lambda group: pool.laid.append(group.folder),
        clear=lambda group: None,
        live=pool.live,
        retire=pool.retire,
        bus=store_harness.bus,
    )
    task = asyncio.create_task(upkeep.run(), name="upkeep")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


# Main in another chat

OWNER_CHAT = "4917@s.whatsapp.net"


async def test_main_moves_with_what_it_has_set_and_keeps_its_history(store_harness):
    await store_harness.add_group("main", is_main=True, requires_trigger=False)
    await store_harness.hear("before", "main")
    await store_harness.answer("said", folder="main")
    async with store_harness.database.transaction() as tx:
        main = await groups.known(tx, "main")
        await put_reminder(tx, main, text="tea", due_ms=2**41, now_ms=1)
        moved = await registration.move_main(tx, OWNER_CHAT, now_ms=5)
        again = await registration.move_main(tx, OWNER_CHAT, now_ms=6)
        (reminder,) = await board_notifications.reminders(tx)
        found = await groups.known(tx, "main")

    assert moved == again == found
    assert (found.jid, found.is_main, reminder.message) == (OWNER_CHAT, True, "tea")
    assert {row["chat_jid"] for row in await store_harness.rows("SELECT chat_jid FROM messages")} == {
        "local:main"
    }
    noted = await store_harness.rows("SELECT kind FROM audit WHERE kind = 'group.moved'")
    assert len(noted) == 1


@pytest.mark.parametrize("jid", ["local:family", "", "two words", "x" * 201])
async def test_main_moves_to_no_chat_of_another_group_and_to_no_nonsense(store_harness, jid):
    await store_harness.add_group("main", is_main=True, requires_trigger=False)
    await store_harness.add_group("family")

    with pytest.raises(BadRequest):
        async with store_harness.database.transaction() as tx:
            await registration.move_main(tx, jid, now_ms=1)
    async with store_harness.database.reading() as tx:
        assert (await groups.known(tx, "main")).jid == "local:main"


async def test_main_does_not_move_while_it_is_being_asked(store_harness):
    await store_harness.add_group("main", is_main=True, requires_trigger=False)
    await store_harness.hear("a question", "main")

    with pytest.raises(BadRequest, match="unanswered message"):
        async with store_harness.database.transaction() as tx:
            await registration.move_main(tx, OWNER_CHAT, now_ms=1)


@pytest.mark.parametrize("trigger", ["...", ".*", "`andy`", "https://x.example/andy", "\u200b"])
def test_a_trigger_that_nobody_can_type_is_not_taken_from_a_person(trigger):
    with pytest.raises(name_and_trigger.ProfileRefused, match="what people type"):
        registration.Registration(folder="chess", trigger=trigger).to_group(1)
    with pytest.raises(name_and_trigger.ProfileRefused, match="what people type"):
        name_and_trigger.with_profile(a_group(), name_and_trigger.GroupProfile(trigger=trigger))


async def test_a_group_goes_on_with_the_trigger_that_it_has(store_harness):
    group = await store_harness.add_group("chess", trigger="!")
    profile = name_and_trigger.GroupProfile(name="Chess", trigger="!", requires_trigger=True)
    assert name_and_trigger.with_profile(group, profile).trigger == "!"
    async with store_harness.database.transaction() as tx:
        changed = await registration.add_chat(tx, "chess", "local:other", now_ms=1)
    assert changed.trigger == "!"
