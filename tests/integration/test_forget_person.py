"""Forget a person: rows, contexts, snapshots, archives and files lose them; all else stays as it is."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from orchestrator.context import person_removal
from orchestrator.context.forget_requests import ForgetRequests, Wish, read
from orchestrator.context.person_removal import PersonRemovals, RemovalFacts
from orchestrator.domain.polls import Poll
from orchestrator.domain.values import ChatJid, Folder, MessageId, Role
from orchestrator.groups import memory_templates, people
from orchestrator.inbound.intake import Intake
from orchestrator.store.board import dashboards, worker_cycles
from orchestrator.store.board import notifications as board_notifications
from orchestrator.store.board import questions as board_questions
from orchestrator.store.board.notifications import HistoryEntry
from orchestrator.store.conversation import polls
from orchestrator.store.groups import groups
from orchestrator.store.loop import cycles, events
from orchestrator.store.notices import notices
from orchestrator.store.notices.notices import NewNotice, NoticeMaker
from orchestrator.store.people import removals as person_removals
from orchestrator.store.runs import sessions, turns
from tests.integration.test_group_memory import FAMILY, LONGEST_NAME, ODD_NAMES, SESSION, SHOWN_NAMES, WORK
from tests.integration.test_person_memory import JUN, MIN, MINA, PersonHouse
from tests.support.dashboards import a_notification, a_question
from tests.support.store_harness import StoreHarness

SECRET = "I collect zeppelins in secret"
ANSWER = "So zeppelins it is, dear collector"


class ForgetHouse(PersonHouse):
    """A group in which Mina has said and had noted much, and others something with it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        harness = self.harness
        self.removals = PersonRemovals(
            harness.database,
            self.recorder,
            home=self.home,
            clock=harness.clock,
            bus=harness.bus,
            on_notified=harness.wakeups.outbox.set,
        )
        self.deletions._removals = self.removals
        harness.intake = Intake(
            harness.database,
            clock=harness.clock,
            name="Andy",
            wakeups=harness.wakeups,
            bus=harness.bus,
            forget=ForgetRequests(harness.clock).answer,
        )

    async def fill(self) -> None:
        """Have everybody talk, and lay down what a host and its agents make of it."""
        archive = self.home / "groups" / FAMILY / "conversations" / "monday.md"
        archive.parent.mkdir()
        (self.home / "groups" / FAMILY / "attachments").mkdir()
        for name in ("mina.jpg", "jun.jpg"):
            (self.home / "groups" / FAMILY / "attachments" / name).write_text(f"a photo {name}")
        undo = self.home / "data" / "undo" / FAMILY
        undo.mkdir(parents=True)
        (undo / "content.md").write_text(SECRET)
        transcript = self.home / "data" / "sessions" / FAMILY / ".claude" / "projects" / "-workspace-group"
        transcript.mkdir(parents=True)
        (transcript / f"{SESSION}.jsonl").write_text(f'{{"message": "{SECRET}"}}\n')
        await self.harness.hear(SECRET, sender=MINA, sender_name="Mina", file="[image attachments/mina.jpg]")
        await self.harness.answer(ANSWER)
        await self.harness.hear(
            "[image] here", sender=JUN, sender_name="Jun", file="[image attachments/jun.jpg]"
        )
        await self.harness.answer("A nice one, Jun")
        await self.harness.deliver_all()
        await self.recorder.catch_up(FAMILY)
        said = await self.harness.messages()
        lines = [f'<message sender="{one.sender_name}" time="now">{one.text}</message>' for one in said[:1]]
        lines += ['<message sender="Jun" time="now">The dog is Bello</message>']
        archive.write_text(
            "# Monday\n\n**User**: <messages>\n" + "\n".join(lines) + f"\n</messages>\n\n**Andy**: {ANSWER}\n"
        )
        self.notes.write_text("# Family\n- Mina likes jazz\n- The dog is Bello\n")
        manager, now_ms = self.manager(), self.harness.clock.now_ms()
        manager.record_decision("Mina brings the cake", now_ms=now_ms)
        manager.record_decision("We go by train", now_ms=now_ms)
        manager.create_plan("A trip for Mina", tasks=["Call Mina's aunt", "tickets"], now_ms=now_ms)
        manager.snapshot(now_ms=now_ms)
        manager.record_decision("Minas Tirith is far", now_ms=now_ms)
        await self.say(JUN, "Jun", "remember")
        await self.note("Mina is allergic to nuts")
        await self.note("The dog is Bello")
        await self.use("save_insight", content="Mina gardens", category="life")
        await self.say(MINA, "Mina", "remember")
        await self.note("The wifi is in the hall")
        await self.note("Jun owes me five", people=["Jun"])
        await self.end_turn()
        async with self.harness.database.transaction() as tx:
            await sessions.put_current(tx, FAMILY, SESSION, now_ms=now_ms)

    async def tell(self, text: str, sender: str = MINA, name: str = "Mina", **more: object) -> str:
        """Have somebody write, and return what the host answers at once; empty where an agent is to."""
        before = len(await self.harness.outgoing())
        await self.harness.hear(text, sender=sender, sender_name=name, **more)
        return "\n".join(one.text for one in (await self.harness.outgoing())[before:])

    async def forget(self, sender: str = MINA, name: str = "Mina") -> str:
        """Have somebody forgotten who says so twice, and return what they read when it is done."""
        assert "yes, forget me" in await self.tell("@Andy forget me", sender, name)
        await self.tell("yes, forget me", sender, name)
        await self.deletions.sweep()
        return (await self.harness.outgoing())[-1].text

    async def due(self) -> int:
        async with self.harness.database.reading() as tx:
            return len(await person_removals.due(tx))


@pytest.fixture
async def house(store_harness: StoreHarness, tmp_path: Path) -> ForgetHouse:
    await store_harness.add_group("family", requires_trigger=False)
    (tmp_path / "groups" / "family").mkdir(parents=True)
    made = ForgetHouse(harness=store_harness, home=tmp_path)
    await made.fill()
    return made


async def test_what_they_chose_goes_and_what_others_chose_stays(house: ForgetHouse) -> None:
    poll = Poll(
        question="Tea?",
        options=("Yes", "No"),
        folder=FAMILY,
        chat_jid=ChatJid("local:family"),
        message_id=MessageId("P"),
    )
    async with house.harness.database.transaction() as tx:
        await polls.add(tx, poll)
        made = await polls.of_message(tx, poll.message_id)
        assert made is not None
        for voter, name in ((MINA, "Mina"), (JUN, "Jun")):
            vote = polls.PollVote(
                voter=voter,
                name=name,
                chosen=(0,),
                voted_ms=1,
                vote_id=MessageId(name),
                message_id=MessageId(name),
            )
            assert await polls.put_vote(tx, made, vote)
        asked = a_question(answer="Yes (Mina, Jun)", answered_ms=1)
        await dashboards.ensure(tx, FAMILY, now_ms=1)
        assert await board_questions.put(tx, asked, read_version=None)
    await house.forget()
    async with house.harness.database.reading() as tx:
        assert [one.name for one in await polls.votes_of(tx, made)] == ["Jun"]
        (question,) = await board_questions.every(tx, FAMILY)
    assert question.answer == "Yes (Jun)"


async def test_only_whole_names_leave_the_answers(house: ForgetHouse) -> None:
    asked = a_question(answer="Yes (Jan, Janet, Jan), No (Tom, Janet, Jan), Later (Jan)", answered_ms=1)
    async with house.harness.database.transaction() as tx:
        await dashboards.ensure(tx, FAMILY, now_ms=1)
        assert await board_questions.put(tx, asked, read_version=None)
        await board_questions.forget_names(tx, FAMILY, ["Jan"])
        (question,) = await board_questions.every(tx, FAMILY)
    assert question.answer == "Yes (Janet), No (Tom, Janet), Later"


async def test_who_asks_twice_leaves_every_place(house: ForgetHouse) -> None:
    before = await house.everything()
    assert "zeppelin" in before
    reply = await house.forget()
    after = await house.everything()
    assert "zeppelin" not in after
    assert await house.found("zeppelins") == 0
    for gone in ("Mina brings", "allergic", "hall", "Call Mina", "gardens"):
        assert gone not in after, gone
    for left in (
        "We go by train",
        "Minas Tirith",
        "The dog is Bello",
        "Jun owes me five",
        "tickets",
        "A nice one",
    ):
        assert left in after, left
    assert {one.text for one in await house.notes_()} == {"The dog is Bello", "Jun owes me five"}
    assert "4 messages of yours" in reply
    assert "CLAUDE.md (1)" in reply
    files = house.home / "groups" / FAMILY / "attachments"
    assert {one.name for one in files.iterdir()} == {"jun.jpg"}
    assert not (house.home / "data" / "undo" / FAMILY).exists()
    assert not list((house.home / "data" / "sessions").rglob("*.jsonl"))
    async with house.harness.database.reading() as tx:
        assert await sessions.current(tx, FAMILY) is None
        names = {one.name for one in await people.known_people(tx, FAMILY)}
    assert names == {"Jun"}


async def test_what_only_snapshots_have_is_counted_once(house: ForgetHouse) -> None:
    manager, now_ms = house.manager(), house.harness.clock.now_ms()
    empty = manager.snapshots()[0].name
    manager.record_decision("Mina has the keys", now_ms=now_ms)
    for _ in range(2):
        manager.snapshot(now_ms=now_ms)
        manager.record_decision("We go by bus", now_ms=now_ms)
    manager.restore(empty, now_ms=now_ms)
    assert "Mina has the keys" not in manager.load(now_ms=now_ms).context.memory.last_decisions
    # One of these is in the context and in snapshots, the other in two snapshots alone.
    assert "2 decisions" in await house.forget()
    assert "Mina has the keys" not in await house.everything()


async def test_a_name_that_too_many_lines_have_is_reported(house: ForgetHouse) -> None:
    summary = "\n".join(f"Mina {number}" for number in range(60))
    assert house.manager().put_summary(
        summary,
        instead_of=house.manager().load(now_ms=0).context.conversation.running_summary,
        now_ms=house.harness.clock.now_ms(),
    )
    reply = await house.forget()
    assert "Mina brings the cake" in await house.everything()
    assert "The name is in 61 decisions and lines of the summary" in reply
    assert "결정과 요약 줄 61개에" in reply


async def test_an_archive_loses_their_messages_and_keeps_those_of_others(house: ForgetHouse) -> None:
    await house.forget()
    text = (house.home / "groups" / FAMILY / "conversations" / "monday.md").read_text()
    assert text == (
        '# Monday\n\n**User**: <messages>\n<message sender="Jun" time="now">The dog is Bello</message>\n'
        "</messages>\n\n**Andy**: [forgotten]\n"
    )


async def test_an_archive_keeps_answers_to_others_that_begin_like_a_short_one_to_the_person(
    house: ForgetHouse,
) -> None:
    for answer in ("OK", "So be it, dear Mina"):
        await house.harness.hear("the third time now", sender=MINA, sender_name="Mina")
        await house.harness.answer(answer)
    await house.harness.deliver_all()
    archive = house.home / "groups" / FAMILY / "conversations" / "monday.md"
    ours = "**Andy**: OK, Tuesday.\n\n**Andy**: OK\n\nOn Monday.\n\n**Andy**: "
    archive.write_text(f"{ours}OK\n\n**Andy**: So be it, dear Mina, and so on\n\n**Andy**: OK\n")
    await house.forget()
    assert archive.read_text() == (
        f"{ours}[forgotten]\n\n**Andy**: [forgotten], and so on\n\n**Andy**: [forgotten]\n"
    )


async def test_an_archive_keeps_the_bytes_of_others_that_are_no_text(house: ForgetHouse) -> None:
    archive = house.home / "groups" / FAMILY / "conversations" / "monday.md"
    theirs = "회의\0\r\n".encode("cp949")
    archive.write_bytes(theirs + archive.read_bytes() + theirs)

    await house.forget()

    content = archive.read_bytes()
    assert SECRET.encode() not in content
    assert content.startswith(theirs)
    assert content.endswith(theirs)


async def test_an_archive_of_hostile_text_is_gone_through_once_and_keeps_it(house: ForgetHouse) -> None:
    archive = house.home / "groups" / FAMILY / "conversations" / "monday.md"
    quoting = '<message sender="Jun" time="now"><quoted_message from="Mina">remember</quoted_message>'
    hostile = '<message sender="a"><quoted_message from="">\n\n**' * 100_000 + '<message sender=""' * 50_000
    archive.write_text(f"{quoting}Yes</message>\n{hostile}")

    await house.forget()

    is_as_wanted = archive.read_text() == f'<message sender="Jun" time="now">Yes</message>\n{hostile}'
    assert is_as_wanted, "two such texts are too long to be shown"


async def test_it_is_asked_once_and_says_what_goes_and_what_stays(house: ForgetHouse) -> None:
    english = await house.tell("@Andy, forget me please!")
    assert "2 messages of yours" in english
    assert "2 notes of you" in english
    korean = await house.tell("나를 잊어 줘")
    assert "네, 나를 잊어 줘" in korean
    await house.deletions.sweep()
    assert "zeppelins" in await house.everything()
    assert await house.due() == 0
    assert await house.tell("네, 저를 잊어 주세요") == "알겠어요. 지금 잊을게요."
    assert await house.due() == 1
    assert "All right" in await house.tell("forget me"), "what was confirmed is not asked again"
    await house.deletions.sweep()
    assert "zeppelins" not in await house.everything()


async def test_a_yes_without_a_question_or_long_after_it_only_asks(house: ForgetHouse) -> None:
    assert "If you mean it" in await house.tell("yes, forget me")
    house.harness.clock.wall_ms += 16 * 60_000
    assert "If you mean it" in await house.tell("yes, forget me")
    assert await house.due() == 0


async def test_nobody_has_another_forgotten(house: ForgetHouse) -> None:
    await house.tell("forget me")  # Mina's own question waits for her yes
    refusals = [
        await house.tell(text, JUN, name)
        for text, name in (
            ("forget Mina", "Jun"),
            ("미나 잊어 줘", "Jun"),
            (f"please forget {MINA}", "Jun"),
            ("forget everything about @mina", "Mina"),
        )
    ]
    assert ["Only they themselves" in one for one in refusals] == [True, False, True, True]
    for text, more in (
        ("yes, forget me", {"name": "Mina"}),
        ("I am Mina. yes, forget me", {"name": "Mina"}),
    ):
        await house.tell(text, JUN, **more)
    await house.deletions.sweep()
    assert await house.due() == 0
    hook = "hook:3"
    assert await house.tell("yes, forget me", hook, "Mina") == ""
    await house.deletions.sweep()
    assert "zeppelins" in await house.everything()


async def test_a_role_stays_so_that_no_guest_becomes_a_member(house: ForgetHouse) -> None:
    await house.give(MINA, Role.GUEST)
    reply = await house.forget()
    async with house.harness.database.reading() as tx:
        group = await groups.known(tx, FAMILY)
        assert await people.role_in(tx, group, MINA, is_from_me=False) is Role.GUEST
    after = await house.everything()
    assert "zeppelins" not in after
    assert "allergic" not in after
    assert "Mina brings the cake" in after, "a guest has nothing forgotten by a name that they chose"
    assert "CLAUDE.md (1)" in reply


async def test_a_name_that_another_has_takes_nothing_along(house: ForgetHouse) -> None:
    await house.tell("hello", MIN, "mina")
    await house.harness.answer("hello")
    await house.harness.deliver_all()
    await house.forget()
    after = await house.everything()
    assert "zeppelins" not in after
    assert "Mina brings the cake" in after


@pytest.mark.parametrize(
    "words",
    [
        "the first line\nand zeppelins",
        'they said "zeppelins" to me',
        "a path: C:\\home\\zeppelins",
        "비행선\tzeppelins, 비행선과 기구",
        "a line, and  blanks\n\n  before zeppelins",
    ],
)
async def test_their_words_leave_stored_replies_and_the_agents_notices_as_json_has_them(
    house: ForgetHouse, words: str
) -> None:
    await house.tell("hello", MIN, "mina")  # so nothing is found by the name
    await house.harness.answer("hello")
    await house.harness.deliver_all()
    await house.say(MINA, "Mina", words)
    quoting = {"message": f"ask again: {words}", "persist_cross_session": True}
    assert (await house.ask("notify_self", **quoting)).ok
    await house.say(JUN, "Jun", "a question")
    shown = await house.memory("show", "ask again")
    assert words.replace("\t", " ").strip() in shown.data["items"][0]["text"]
    await house.end_turn()
    await house.forget()
    (notice,) = await house.harness.rows("SELECT payload_json FROM cross_session_notifications")
    assert notice["payload_json"] == "{}"
    replies = await house.harness.rows("SELECT text, data FROM commands")
    assert [one for one in replies if "zeppelins" in f"{one['text']}{one['data']}"] == []
    assert "zeppelins" not in await house.everything()


async def test_notes_about_them_leave_stored_replies_as_json_has_them(house: ForgetHouse) -> None:
    await house.tell("hello", MIN, "mina")  # so nothing is found by the name
    await house.harness.answer("hello")
    await house.harness.deliver_all()
    await house.say(JUN, "Jun", "remember")
    reply = await house.note(f'calls it "the airship"{" and more" * 40}', people=[MINA])
    assert "airship" in reply.data["text"]
    assert "airship" in (await house.memory("show", "airship")).text
    await house.end_turn()
    await house.forget()
    replies = await house.harness.rows("SELECT text, data FROM commands")
    assert [one for one in replies if "airship" in f"{one['text']}{one['data']}"] == []


async def test_their_words_leave_stored_replies_that_have_them_without_a_secret(house: ForgetHouse) -> None:
    words = "the airship opens with password: hunter2hunter2 at the pier"
    await house.tell("hello", MIN, "mina")  # so nothing is found by the name
    await house.harness.answer("hello")
    await house.harness.deliver_all()
    await house.say(MINA, "Mina", words)
    await house.end_turn()
    await house.say(JUN, "Jun", "remember")
    reply = await house.note(f"it is: {words}", people=["Jun"])
    assert "airship opens with password: [redacted]" in reply.data["text"]
    await house.end_turn()
    await house.forget()
    replies = await house.harness.rows("SELECT text, data FROM commands")
    assert [one for one in replies if "airship" in f"{one['text']}{one['data']}"] == []


async def test_what_the_host_recorded_of_board_and_loop_loses_them(house: ForgetHouse) -> None:
    changed = HistoryEntry(
        folder=FAMILY,
        notification_id="n_001",
        at_ms=1,
        what="reworded",
        by="user",
        detail={"from": f"Ask: {SECRET}", "to": "Tea"},
    )
    async with house.harness.database.transaction() as tx:
        await dashboards.ensure(tx, FAMILY, now_ms=1)
        assert await board_notifications.put(
            tx, a_notification(message="Tea", task_id=None), read_version=None
        )
        await board_notifications.add_history(tx, changed)
        cycle = await worker_cycles.begin(tx, FAMILY, "rules", trigger={}, now_ms=1)
        skipped = [{"what": "question", "why": f"DUPLICATE: {SECRET}"}, {"what": "question", "why": "full"}]
        await worker_cycles.end(tx, cycle, "noop", detail={"skipped": skipped}, error=SECRET, now_ms=1)
        for group in (FAMILY, WORK):
            await events.append(
                tx, "action:loop", group=group, now_ms=1, event="schedule", reason="Mina gardens at nine"
            )
        turn_id = await turns.add_answered(
            tx, FAMILY, ChatJid("local:family"), reason="", now_ms=1, role=Role.OWNER
        )
        turn = await turns.get(tx, turn_id)
        assert turn is not None
        loop_cycle = await cycles.begin(tx, turn, set_by=None, now_ms=1)
        await cycles.note_wake_request(
            tx, loop_cycle, raw="30m", reason=SECRET, asked_ms=1, at_ms=None, is_soonest=False
        )

    await house.forget()

    assert "zeppelin" not in await house.everything()
    history, worker, *loop = await house.harness.rows(
        "SELECT detail_json AS text FROM notification_history"
        " UNION ALL SELECT detail_json FROM worker_cycles UNION ALL SELECT data_json FROM events"
    )
    assert json.loads(history["text"]) == {"from": "", "to": "Tea"}
    left = [{"what": "question", "why": ""}, {"what": "question", "why": "full"}]
    assert json.loads(worker["text"]) == {"skipped": left}
    assert [json.loads(one["text"])["reason"] for one in loop] == ["", "Mina gardens at nine"]


async def test_archives_of_any_number_and_long_notes_are_searched(house: ForgetHouse) -> None:
    folder = house.home / "groups" / FAMILY
    for number in range(210):
        (folder / "conversations" / f"2026-01-01-{number:03}.md").write_text("**User**: fine\n")
    (folder / "long.md").write_text("The dog is Bello\n" * 5_000 + "Mina likes tea\n")
    reply = await house.forget()
    assert "zeppelin" not in (folder / "conversations" / "monday.md").read_text()
    assert "long.md (1)" in reply
    assert "Not searched" not in reply


async def test_an_archive_with_the_longest_name_loses_their_messages(house: ForgetHouse) -> None:
    archives = house.home / "groups" / FAMILY / "conversations"
    (archives / LONGEST_NAME).write_text((archives / "monday.md").read_text())
    reply = await house.forget()
    assert "2 archived conversations" in reply
    assert [path.name for path in archives.iterdir() if SECRET in path.read_text()] == []
    assert await house.due() == 0


async def test_files_that_are_not_searched_for_a_person_are_named(
    house: ForgetHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_templates, "MAX_TEXT_BYTES", 100)
    (house.home / "groups" / FAMILY / "link.md").symlink_to(house.notes)
    reply = await house.forget()
    assert "Not searched: conversations/monday.md, link.md" in reply
    assert "찾아보지 못한 파일: conversations/monday.md, link.md" in reply


async def test_recorded_texts_that_are_too_short_are_not_compared(
    house: ForgetHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house.harness.database.transaction() as tx:
        await events.append(tx, "action:loop", group=FAMILY, now_ms=1, event="schedule", reason="tea")
        await events.append(tx, "action:loop", group=FAMILY, now_ms=1, event="schedule", reason=SECRET)
    compared: list[str] = []
    contains_any = person_removal._contains_any

    def counted(text: str, known_texts: Collection[str]) -> bool:
        compared.append(text)
        return contains_any(text, known_texts)

    monkeypatch.setattr(person_removal, "_contains_any", counted)
    await house.forget()
    assert SECRET in compared
    assert "tea" not in compared
    assert SECRET not in await house.everything()


async def test_names_of_files_that_no_message_can_have_do_not_stop_it(house: ForgetHouse) -> None:
    folder = house.home / "groups" / FAMILY
    for place in (folder, folder / "conversations"):
        for name in ODD_NAMES:
            (place / f"link-{os.fsdecode(name)}").symlink_to(house.notes)
            (place / os.fsdecode(name)).write_text("Mina is here\n")
    reply = await house.forget()
    assert "zeppelin" not in await house.everything()
    assert f"Not searched: conversations/link-{SHOWN_NAMES[0]}, conversations/link-{SHOWN_NAMES[1]}" in reply
    assert f"conversations/{SHOWN_NAMES[1]} (1)" in reply
    assert await house.due() == 0


async def test_a_group_that_cannot_be_searched_stops_no_other(
    house: ForgetHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.harness.add_group(WORK)
    async with house.harness.database.transaction() as tx:
        for folder in (FAMILY, WORK):
            group = await groups.known(tx, folder)
            await person_removal.request(tx, group, [MINA], by="console", is_sure=True, now_ms=1)
            await sessions.request_new_session(tx, folder)
    forget_files = person_removal._forget_files

    def broken(home: Path, manager: object, facts: RemovalFacts, **more: object) -> object:
        if facts.group.folder == FAMILY:
            raise ValueError("an odd file")
        return forget_files(home, manager, facts, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(person_removal, "_forget_files", broken)
    with pytest.raises(ExceptionGroup) as failed:
        await house.deletions.sweep()
    assert [str(error) for error in failed.value.exceptions] == ["an odd file"]
    async with house.harness.database.reading() as tx:
        assert [removal.folder for removal in await person_removals.due(tx)] == [FAMILY]
        assert await sessions.groups_with_deleted_text(tx) == [], (
            "the deletions of messages are carried out, too"
        )
    monkeypatch.undo()
    await house.deletions.sweep()
    assert await house.due() == 0


@pytest.mark.parametrize("error", [OSError(30, "Read-only file system"), ValueError("an odd file")])
async def test_a_removal_that_fails_is_reported_once_to_the_chat_and_to_the_owner(
    house: ForgetHouse, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await house.harness.add_group("main", is_main=True)

    def broken(*_: object, **more: object) -> object:
        raise error

    monkeypatch.setattr(person_removal, "_forget_files", broken)
    await house.tell("@Andy forget me")
    await house.tell("yes, forget me")
    before = await house.harness.outgoing()
    for _ in range(2):
        with suppress(ExceptionGroup):
            await house.deletions.sweep()
    sent = (await house.harness.outgoing())[len(before) :]
    assert [one.folder for one in sent] == [FAMILY, "main"]
    assert "could not forget you yet" in sent[0].text
    reason = error.strerror if isinstance(error, OSError) else "ValueError"
    assert "'family'" in sent[1].text
    assert f"{reason}." in sent[1].text
    assert sent[1].text.startswith("⚠️ A person in 'family' could not be forgotten yet: ")
    monkeypatch.undo()
    await house.deletions.sweep()
    assert await house.due() == 0
    assert "Forgotten: " in (await house.harness.outgoing())[-1].text


@pytest.mark.parametrize("error", [OSError(30, "Read-only file system"), ValueError("an odd file")])
async def test_a_removal_that_is_done_is_not_said_to_have_failed_where_the_context_cannot_be_written_after_it(
    house: ForgetHouse, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await house.harness.add_group("main", is_main=True)
    await house.tell("@Andy forget me")
    await house.tell("yes, forget me")
    before = await house.harness.outgoing()
    catch_up = house.recorder.catch_up
    problems: list[Exception | None] = [None, error]

    async def broken(folder: Folder) -> None:
        problem = problems.pop(0) if problems else None
        if problem is not None:
            raise problem
        await catch_up(folder)

    monkeypatch.setattr(house.recorder, "catch_up", broken)
    with house.harness.bus.listening("person.forgotten") as events:
        await house.deletions.sweep()
        assert events.get_nowait().group == FAMILY
    (report,) = (await house.harness.outgoing())[len(before) :]
    assert report.text.startswith("Forgotten: ")


async def test_reminders_to_itself_behind_many_other_notices_lose_them(house: ForgetHouse) -> None:
    await house.say(JUN, "Jun", "a question")
    quoting = {"message": "ask Mina again", "persist_cross_session": True}
    assert (await house.ask("notify_self", **quoting)).ok
    await house.end_turn()
    async with house.harness.database.transaction() as tx:
        for _ in range(201):
            news = NewNotice(
                folder=FAMILY, maker=NoticeMaker.HOST, event_type="news", source="host", payload={}
            )
            await notices.add(tx, news, now_ms=2)
    await house.forget()
    assert (
        await house.harness.rows(
            "SELECT id FROM cross_session_notifications WHERE payload_json LIKE '%Mina%'"
        )
        == []
    )


async def test_it_waits_for_the_turn_that_runs(house: ForgetHouse) -> None:
    await house.say(JUN, "Jun", "a long question")
    await house.tell("forget me")
    assert "as soon as" in await house.tell("yes, forget me")
    await house.deletions.sweep()
    assert await house.due() == 1
    assert "zeppelins" in await house.everything()
    await house.end_turn()
    await house.deletions.sweep()
    assert "zeppelins" not in await house.everything()


@pytest.mark.parametrize(
    "step", ["_forget_in_context", "_searchable_notes", "_delete_attachments", "_forget_board"]
)
async def test_a_host_that_dies_in_between_finishes_at_its_next_start(
    house: ForgetHouse, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    class Killed(BaseException):
        """Ends the host there, as a kill does."""

    def die(*_: object, **__: object) -> None:
        raise Killed

    await house.tell("forget me")
    await house.tell("yes, forget me")
    with monkeypatch.context() as patch:
        patch.setattr(person_removal, step, die)
        with pytest.raises(Killed):
            await house.deletions.sweep()
    assert await house.due() == 1
    again = ForgetHouse(harness=house.harness, home=house.home)
    await again.deletions.sweep()
    assert await again.due() == 0
    after = await again.everything()
    assert "zeppelin" not in after
    assert "Mina brings" not in after
    assert "The dog is Bello" in after


async def test_files_that_cannot_be_reached_are_not_taken_for_deleted(
    house: ForgetHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = person_removal.inner

    def too_many_open(parent_fd: int, name: str) -> AbstractContextManager[int]:
        if name == "attachments":
            raise OSError(errno.EMFILE, "Too many open files")
        return enter(parent_fd, name)

    await house.tell("forget me")
    await house.tell("yes, forget me")
    with monkeypatch.context() as patch:
        patch.setattr(person_removal, "inner", too_many_open)
        await house.deletions.sweep()
    assert await house.due() == 1
    await house.deletions.sweep()
    assert await house.due() == 0
    assert not (house.home / "groups" / FAMILY / "attachments" / "mina.jpg").exists()


async def test_copies_for_undoing_that_cannot_be_deleted_are_tried_again_before_it_is_done(
    house: ForgetHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = os.unlink

    def refuse(path: str | Path, *, dir_fd: int | None = None) -> None:
        if Path(path).name == "content.md":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        delete(path, dir_fd=dir_fd)

    await house.tell("forget me")
    await house.tell("yes, forget me")
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        await house.deletions.sweep()
    assert await house.due() == 1
    assert "could not forget you yet" in (await house.harness.outgoing())[-1].text
    await house.deletions.sweep()
    assert await house.due() == 0
    assert not (house.home / "data" / "undo" / FAMILY).exists()


async def test_the_owner_has_somebody_forgotten_by_address(house: ForgetHouse) -> None:
    async with house.harness.database.transaction() as tx:
        person = await person_removal.request_by_owner(tx, FAMILY, MINA, by="console", now_ms=1)
    assert person.name == "Mina"
    await house.deletions.sweep()
    assert "zeppelins" not in await house.everything()


async def test_what_somebody_writes_after_the_owners_request_stays(house: ForgetHouse) -> None:
    async with house.harness.database.transaction() as tx:
        await person_removal.request_by_owner(tx, FAMILY, MINA, by="console", now_ms=1)
    await house.tell("hello again", MINA, "Mina")
    await house.harness.answer("Hello")
    await house.deletions.sweep()
    assert await house.due() == 0
    assert "hello again" in await house.everything()
    assert "zeppelins" not in await house.everything()


async def test_what_they_write_afterwards_is_another_matter(house: ForgetHouse) -> None:
    await house.forget()
    await house.tell("hello again", MINA, "Mina")
    await house.deletions.sweep()
    assert "hello again" in await house.everything()


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("forget me", Wish.FORGET),
        ("Please, forget me completely!", Wish.FORGET),
        ("forget everything you know about me", Wish.FORGET),
        ("erase me", Wish.FORGET),
        ("yes, forget me", Wish.CONFIRM),
        ("Yes please forget me", Wish.CONFIRM),
        ("나를 잊어 줘", Wish.FORGET),
        ("저를 잊어 주세요", Wish.FORGET),
        ("날 잊어버려", Wish.FORGET),
        ("나에 대한 것을 다 지워 줘", Wish.FORGET),
        ("네, 나를 잊어 줘", Wish.CONFIRM),
        ("응 날 잊어줘", Wish.CONFIRM),
        ("forget it", None),
        ("forget Mina", None),
        ("don't forget me", None),
        ("forget me not", None),
        ("forget me and call Bob", None),
        ("yes", None),
        ("나를 잊지 마", None),
        ("저녁 약속 잊어 줘", None),
        ("나무를 지워 줘", None),
    ],
)
def test_only_a_whole_message_says_it(text: str, wish: Wish | None) -> None:
    assert read(text) is wish
