"""What a group is shown of its memory, and takes back: rows, notes, contexts, snapshots, the index."""

from __future__ import annotations

import errno
import itertools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent_runner.wire.mailbox import Reply
from orchestrator.context import group_memory
from orchestrator.context.context_manager import ContextManager
from orchestrator.context.deletions import DeletionSync
from orchestrator.context.group_memory import GroupMemory
from orchestrator.context.recorder import ContextRecorder
from orchestrator.context.tokens import EstimatingCounter
from orchestrator.domain.dashboard import Person
from orchestrator.domain.errors import ContextBusy
from orchestrator.domain.values import Folder, Message
from orchestrator.groups import memory_templates
from orchestrator.ipc.command_dispatcher import CommandDispatcher
from orchestrator.notices.service import NoticeService
from orchestrator.scheduler.timing import schedule_reader
from orchestrator.scheduler.when import point_ms
from orchestrator.store import audit
from orchestrator.store.board import knowledge as board_knowledge
from orchestrator.store.conversation import message_search
from orchestrator.store.groups import changes as group_changes
from orchestrator.store.groups import groups
from orchestrator.store.groups.changes import GroupChange, GroupPart
from orchestrator.store.loop import events
from orchestrator.store.notices import notices
from orchestrator.store.notices.notices import NewNotice, NoticeMaker
from orchestrator.store.runs import sessions
from tests.support.command_dispatchers import dashboards_of
from tests.support.store_harness import SEOUL, StoreHarness

FAMILY, WORK = Folder("family"), Folder("work")
NOTES = "# Family\n- Jane likes jazz on Sundays\n- The dog is Bello\n"
NOTICES = "cross_session_notifications"
TEXTS = (".md", ".json", ".jsonl")
SESSION = "11111111-2222-3333-4444-555555555555"


@dataclass
class MemoryHouse:
    """Two groups whose agents have noted much; what was said went through the real intake and outbox."""

    harness: StoreHarness
    home: Path

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)
        self.recorder = ContextRecorder(
            self.harness.database,
            contexts=self.home / "data" / "context",
            env=self.home / "data" / "env",
            counter=EstimatingCounter(),
            clock=self.harness.clock,
            bus=self.harness.bus,
            name="Andy",
            on_notified=self.harness.wakeups.outbox.set,
        )
        self.deletions = DeletionSync(
            self.harness.database,
            self.recorder,
            clock=self.harness.clock,
            bus=self.harness.bus,
            name="Andy",
            on_forgetting=lambda _: None,
            session_files=self.home / "data" / "sessions",
        )
        self.dispatcher = CommandDispatcher(
            self.harness.database,
            clock=self.harness.clock,
            read_time=point_ms,
            times=schedule_reader(lambda _: SEOUL),
            zone_of=lambda _: SEOUL,
            wakeups=self.harness.wakeups,
            bus=self.harness.bus,
            dashboards=dashboards_of(self.harness, lambda _: SEOUL),
            notices=NoticeService(clock=self.harness.clock),
            contexts=GroupMemory(
                self.harness.database,
                self.recorder,
                home=self.home,
                clock=self.harness.clock,
                bus=self.harness.bus,
            ),
        )

    def manager(self, folder: Folder = FAMILY) -> ContextManager:
        return self.recorder.manager(folder)

    @property
    def notes(self) -> Path:
        return self.home / "groups" / FAMILY / "CLAUDE.md"

    async def ask(self, type_: str, /, *, by: str = FAMILY, **fields: Any) -> Reply:
        async with self.harness.database.reading() as tx:
            group = await groups.known(tx, by)
        body = {"type": type_, "requestId": f"r{next(self.numbers)}", **fields}
        return await self.dispatcher.handle(group, "request", json.dumps(body).encode())

    async def memory(self, action: str, about: str = "", *, by: str = FAMILY) -> Reply:
        return await self.ask("remember", by=by, tool="memory", arguments={"action": action, "about": about})

    async def use(self, tool: str, **arguments: Any) -> None:
        assert (await self.ask("dashboard", tool=tool, arguments=arguments)).ok

    async def everything(self) -> str:
        """All that lies in the database and in the files of the home, as text."""
        tables = await self.harness.rows(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'message_search%'"
        )
        rows = [await self.harness.rows(f"SELECT * FROM {table['name']}") for table in tables]
        files = [path.read_text() for path in self.home.rglob("*") if path.suffix in TEXTS and path.is_file()]
        return "\n".join([json.dumps(rows, ensure_ascii=False, default=str), *files])

    async def found(self, word: str) -> int:
        async with self.harness.database.reading() as tx:
            return len(await message_search.find(tx, [word], limit=50))


@pytest.fixture
async def filled(store_harness: StoreHarness, tmp_path: Path) -> MemoryHouse:
    for folder in (FAMILY, WORK):
        await store_harness.add_group(folder)
        (tmp_path / "groups" / folder / "conversations").mkdir(parents=True)
    (tmp_path / "groups" / "global").mkdir()
    (tmp_path / "groups" / "global" / "USER.md").write_text("# Who\n\n(Write here)\nThe owner is Min.\n")
    home = MemoryHouse(store_harness, tmp_path)
    home.notes.write_text(NOTES)
    (home.notes.parent / "conversations" / "monday.md").write_text("Jane: I like jazz\nAndy: fine\n")
    transcript = tmp_path / "data" / "sessions" / FAMILY / ".claude" / "projects" / "-workspace-group"
    transcript.mkdir(parents=True)
    (transcript / f"{SESSION}.jsonl").write_text('{"message": "I like jazz"}\n')
    await store_harness.hear("@Andy I like jazz")
    await store_harness.answer("So you like jazz!")
    await store_harness.deliver_all()
    await home.recorder.catch_up(FAMILY)
    manager, now_ms = home.manager(), store_harness.clock.now_ms()
    manager.record_decision("A jazz concert for Jane", now_ms=now_ms)
    manager.record_decision("We go by train", now_ms=now_ms)
    manager.create_plan("Jazz night", tasks=["tickets"], now_ms=now_ms)
    manager.snapshot(now_ms=now_ms)
    manager.create_plan("Garden", now_ms=now_ms)
    change = GroupChange(
        folder=FAMILY, part=GroupPart.MEMORY, at_ms=1, by="cli", before="", after=NOTES, added=3, removed=0
    )
    async with store_harness.database.transaction() as tx:
        await group_changes.add(tx, change)
        await sessions.put_current(tx, FAMILY, SESSION, now_ms=now_ms)
    await store_harness.hear("@Andy go on")
    await store_harness.start_next()
    await home.use("save_insight", content="Jane collects jazz records", category="life")
    await home.use("create_task", title="Water the plants")
    async with store_harness.database.transaction() as tx:
        await board_knowledge.put_person(
            tx, Person(folder=FAMILY, id="person_1", body={"name": "Jane", "notes": "plays jazz piano"})
        )
    note = {"message": "ask about the jazz concert", "persist_cross_session": True}
    assert (await home.ask("notify_self", **note)).ok
    async with store_harness.database.transaction() as tx:
        work = await board_knowledge.insights(tx, WORK)
        assert not work
    home.manager(WORK).record_decision("Jazz in the office", now_ms=now_ms)
    return home


async def test_a_group_is_shown_what_is_remembered_in_all_places(filled: MemoryHouse) -> None:
    shown = await filled.memory("show")
    assert shown.ok
    texts = {(one["kind"], one["text"]) for one in shown.data["items"]}
    assert texts >= {
        ("note", "- Jane likes jazz on Sundays"),
        ("owner", "The owner is Min."),
        ("decision", "A jazz concert for Jane"),
        ("plan", "Jazz night — tickets"),
        ("insight", "Jane collects jazz records"),
        ("person", "name: Jane, notes: plays jazz piano"),
        ("reminder", "ask about the jazz concert"),
    }
    assert "office" not in shown.text
    assert (shown.data["messages"], shown.data["board"]) == (3, {"tasks": 1, "reminders": 0})
    of_work = await filled.memory("show", by=WORK)
    kinds = [(one["kind"], one["text"]) for one in of_work.data["items"]]
    assert kinds == [("owner", "The owner is Min."), ("decision", "Jazz in the office")]
    assert await filled.harness.rows("SELECT 1 FROM commands WHERE type LIKE '%memory%'") == []


async def test_messages_with_the_words_that_are_looked_up_are_counted(filled: MemoryHouse) -> None:
    async def line_about(words: str) -> str:
        return (await filled.memory("show", words)).text.splitlines()[-1]

    assert await line_about("jazz") == "2 messages of the asker or yours have these words."
    assert await line_about("so jazz") == "1 message of the asker or yours has these words."


async def test_what_is_taken_back_leaves_every_place(filled: MemoryHouse) -> None:
    assert "jazz" in (await filled.everything()).lower()
    shown = await filled.memory("show", "JAZZ")
    assert (len(shown.data["items"]), shown.data["said"]) == (6, 2)

    done = await filled.memory("forget", "jazz")
    assert (done.ok, "jazz" in done.text.lower()) == (True, False), done.text
    for turn in await filled.harness.rows("SELECT id FROM turns WHERE state = 'running'"):
        await filled.harness.rows(
            "UPDATE turns SET state = 'answered', ended_ms = 1 WHERE id = ?", turn["id"]
        )
    await filled.deletions.sweep()

    left = [line for line in (await filled.everything()).splitlines() if "jazz" in line.lower()]
    # Another group's decision stays, in its context and in its workflow.
    assert [line.strip() for line in left] == ['"Jazz in the office"'] * 2
    assert await filled.found("jazz") == 0
    assert filled.notes.read_text() == "# Family\n- The dog is Bello\n"
    kept = filled.manager().load(now_ms=0)
    assert kept.context.memory.last_decisions == ("We go by train",)
    assert [plan.title for plan in kept.workflow.plans] == ["Garden"]
    assert len(filled.manager().snapshots()) >= 1
    async with filled.harness.database.reading() as tx:
        assert await sessions.current(tx, FAMILY) is None, "the session has heard it"
        (event,) = await tx.execute_fetchall("SELECT detail FROM audit WHERE kind = 'memory.forgotten'")
        assert (await audit.verify(tx)).fault is None
    assert json.loads(event["detail"])["forgotten"]["decision"] == 1
    assert "jazz" not in event["detail"]
    assert (await filled.memory("forget", "jazz")).code == "nothing"


async def test_words_leave_stored_replies_also_where_json_writes_them_otherwise(filled: MemoryHouse) -> None:
    note = {"message": "see C:\\music\\jazz", "persist_cross_session": True}
    assert (await filled.ask("notify_self", **note)).ok
    assert (await filled.memory("show", "music")).data["items"]
    assert await filled.harness.rows("SELECT 1 FROM commands WHERE data LIKE '%music%'")
    assert (await filled.memory("forget", "C:\\music\\jazz")).ok
    assert await filled.harness.rows("SELECT data FROM commands WHERE data LIKE '%music%'") == []


async def test_one_thing_is_taken_back_by_its_id(filled: MemoryHouse) -> None:
    shown = await filled.memory("show", "concert")
    decision = next(one for one in shown.data["items"] if one["kind"] == "decision")
    assert (await filled.memory("forget", decision["id"])).ok
    assert [one["kind"] for one in (await filled.memory("show", "concert")).data["items"]] == ["reminder"]
    assert await filled.found("jazz") == 2, "what was said is not meant by the id of a decision"


@pytest.mark.parametrize(
    ("action", "about", "code"),
    [
        ("forget", "zebra", "nothing"),
        ("forget", "Min", "nothing"),  # the owner's words are the owner's to change
        ("forget", "  ", "bad_search"),
        ("delete", "jazz", "bad_arguments"),
    ],
)
async def test_what_cannot_be_forgotten_is_refused(
    filled: MemoryHouse, action: str, about: str, code: str
) -> None:
    before = await filled.everything()
    refused = await filled.memory(action, about)
    assert (refused.ok, refused.code) == (False, code)
    assert filled.notes.read_text() == NOTES
    assert before.count("jazz") == (await filled.everything()).count("jazz")


async def test_nothing_is_forgotten_while_copies_for_undoing_cannot_be_deleted(
    filled: MemoryHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = filled.home / "data" / "undo" / FAMILY
    copies.mkdir(parents=True)
    (copies / "content.md").write_text("jazz")
    delete = os.unlink

    def refuse(path: str | Path, *, dir_fd: int | None = None) -> None:
        if Path(path).name == "content.md":
            raise PermissionError(errno.EPERM, "Operation not permitted")
        delete(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        refused = await filled.memory("forget", "jazz")
    assert (refused.ok, refused.code) == (False, "disk")
    assert filled.notes.read_text() == NOTES
    assert (await filled.memory("forget", "jazz")).ok
    assert not copies.exists()


async def test_a_link_in_place_of_the_notes_is_neither_read_nor_written(filled: MemoryHouse) -> None:
    secret = filled.home / "secret.md"
    secret.write_text("jazz is secret\n")
    filled.notes.unlink()
    filled.notes.symlink_to(secret)
    assert "secret" not in (await filled.memory("show")).text
    assert (await filled.memory("forget", "jazz")).ok
    assert secret.read_text() == "jazz is secret\n"


async def test_a_folder_in_place_of_the_notes_is_no_text(filled: MemoryHouse) -> None:
    filled.notes.unlink()
    filled.notes.mkdir()
    root, name = filled.notes.parent.parent.parent, filled.notes.name
    assert memory_templates.own_text(root, filled.notes.parent.name, name) is None
    assert memory_templates.whole_text(root, filled.notes.parent.name, name) is None


async def test_words_leave_long_archives_and_those_of_any_number(filled: MemoryHouse) -> None:
    archives = filled.notes.parent / "conversations"
    for number in range(210):
        (archives / f"2026-01-01-{number:03}.md").write_text("Andy: fine\n")
    (archives / "2026-02-01.md").write_text("Jane: jazz &amp; tea\n" + "Andy: fine\n" * 7_000)
    (archives / "2026-02-02.md").write_text("Jane: I like jazz\nAndy: fine\n")

    done = await filled.memory("forget", "jazz")

    assert "Not searched" not in done.text
    assert [path.name for path in archives.iterdir() if "jazz" in path.read_text()] == []
    assert (archives / "2026-02-01.md").read_text() == "Andy: fine\n" * 7_000


async def test_lines_that_are_not_chosen_stay_as_they_are_byte_by_byte(filled: MemoryHouse) -> None:
    chosen = "010-1 철수\r\n".encode("cp949")
    others = ["회의: 중요\r\n".encode("cp949"), "one\u2028two\fthree\n".encode(), b"a\0b \xff", "한".encode()]
    note = filled.notes.parent / "phone.md"
    note.write_bytes(b"".join([others[0], chosen, *others[1:]]))

    assert (await filled.memory("forget", "010-1")).ok

    assert note.read_bytes() == b"".join(others)


async def test_words_leave_lines_with_bytes_that_are_no_text(filled: MemoryHouse) -> None:
    note = filled.notes.parent / "odd.md"
    note.write_bytes(b"j\xffa\0zz\n\xfffine\n")
    assert (await filled.memory("forget", "jazz")).ok
    assert note.read_bytes() == b"\xfffine\n"


async def test_words_of_many_lines_of_archives_are_too_common(filled: MemoryHouse) -> None:
    archives = filled.notes.parent / "conversations"
    many = "".join(f"**User**: kiwi {number}\n**Andy**: fine\n" for number in range(51))
    for name in ("tuesday.md", "wednesday.md"):
        (archives / name).write_text(many)
    # Of a word that only the headings have, no line is meant.
    for word, code in (("kiwi", "too_much"), ("user", "nothing")):
        assert (await filled.memory("forget", word)).code == code
        assert (archives / "tuesday.md").read_text() == many
    # A line that is in several files is one thing.
    few = many.replace("kiwi 50\n", "plum\n")
    for name in ("tuesday.md", "wednesday.md"):
        (archives / name).write_text(few)
    done = await filled.memory("forget", "kiwi")
    assert (done.ok, done.data["forgotten"]["note"]) == (True, 100)


async def test_words_leave_archives_that_write_them_as_html(filled: MemoryHouse) -> None:
    archive = filled.notes.parent / "conversations" / "tuesday.md"
    archive.write_text("Jane: rock &amp; roll\nAndy: fine\n")
    assert (await filled.memory("forget", '"rock & roll"')).ok
    assert archive.read_text() == "Andy: fine\n"


async def test_files_that_are_not_searched_for_words_are_named(
    filled: MemoryHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_templates, "MAX_TEXT_BYTES", 1_000)
    (filled.notes.parent / "conversations" / "long.md").write_text("Jane: I like jazz and zebras\n" * 100)
    (filled.notes.parent / "link.md").symlink_to(filled.notes)
    for words in ("jazz", "zebra"):
        reply = await filled.memory("forget", words)
        assert "Not searched: link.md, conversations/long.md" in reply.text


LONGEST_NAME = f"{'x' * 252}.md"
"""The name of a note with the 255 bytes that a file system allows."""


async def test_words_leave_notes_and_archives_with_the_longest_name(filled: MemoryHouse) -> None:
    notes = filled.notes.parent
    for folder in (notes, notes / "conversations"):
        (folder / LONGEST_NAME).write_text("Jane: I like jazz\n")
    assert (await filled.memory("forget", "jazz")).ok
    assert [path for path in notes.rglob("*.md") if "jazz" in path.read_text()] == []


ODD_NAMES = (b"\xff.md", "a\nb\u202ec.md".encode())
SHOWN_NAMES = ("a\\u000ab\\u202ec.md", "\\udcff.md")


async def test_names_that_no_text_can_have_are_shown_in_a_form_that_it_can(
    filled: MemoryHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives = filled.notes.parent / "conversations"
    for name in ODD_NAMES:
        (filled.notes.parent / os.fsdecode(name)).symlink_to(filled.notes)
        (archives / os.fsdecode(name)).write_text("Jane: I like jazz\n")
    (archives / f"{'x' * 200}.md").symlink_to(filled.notes)
    done = await filled.memory("forget", "jazz")
    assert done.ok
    assert f"Not searched: {SHOWN_NAMES[0]}, {SHOWN_NAMES[1]}, conversations/xxx" in done.text
    assert "x" * memory_templates.MAX_SHOWN_NAME_CHARS not in done.text
    assert [path for path in archives.iterdir() if "jazz" in path.read_text() and not path.is_symlink()] == []
    # A file that cannot be read any more once it was listed is named, too.
    monkeypatch.setattr(memory_templates, "whole_text", lambda *_: None)
    refused = await filled.memory("forget", "zebra")
    assert (refused.code, f"conversations/{SHOWN_NAMES[1]}" in refused.text) == ("nothing", True)


async def test_words_leave_reminders_to_itself_behind_many_other_notices(filled: MemoryHouse) -> None:
    async with filled.harness.database.transaction() as tx:
        for _ in range(201):
            news = NewNotice(
                folder=FAMILY,
                maker=NoticeMaker.HOST,
                event_type="news",
                source="host",
                priority="high",
                payload={"message": "news"},
            )
            await notices.add(tx, news, now_ms=2)
    assert "reminder" in [one["kind"] for one in (await filled.memory("show", "concert")).data["items"]]
    assert (await filled.memory("forget", "concert")).ok
    assert await filled.harness.rows(f"SELECT id FROM {NOTICES} WHERE payload_json LIKE '%concert%'") == []


async def test_words_leave_reminders_to_itself_that_are_over(filled: MemoryHouse) -> None:
    note = {"message": "hear the saxophone", "persist_cross_session": True}
    assert (await filled.ask("notify_self", **note)).ok
    await filled.harness.rows(f"UPDATE {NOTICES} SET state = 'acknowledged', ended_ms = 1")
    assert (await filled.memory("forget", "saxophone")).ok
    assert "saxophone" not in await filled.everything()


async def test_words_leave_messages_behind_many_of_others(
    filled: MemoryHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    find = message_search.find

    async def counted(*arguments: Any, **more: Any) -> list[Message]:
        messages = await find(*arguments, **more)
        read.append(len(messages))
        return messages

    monkeypatch.setattr(message_search, "find", counted)
    for number in range(201):
        await filled.harness.hear(f"jazz {number}", sender="local:tom", sender_name="Tom")
    assert (await filled.memory("forget", "jazz")).ok
    assert read == [2], "messages of others are not even read"
    assert await filled.harness.rows("SELECT id FROM messages WHERE content LIKE '%you like jazz!%'") == []


async def test_words_leave_what_the_host_recorded_of_the_loop(filled: MemoryHouse) -> None:
    async with filled.harness.database.transaction() as tx:
        for reason in ("the jazz concert begins", "jazz"):
            await events.append(tx, "action:loop", group=FAMILY, now_ms=1, event="schedule", reason=reason)
    assert (await filled.memory("forget", "jazz concert")).ok
    recorded = await filled.harness.rows("SELECT data_json FROM events")
    assert [json.loads(one["data_json"])["reason"] for one in recorded] == ["", "jazz"]


async def test_a_note_that_could_not_be_forgotten_whole_is_found_again_by_its_id(
    filled: MemoryHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = next(
        one for one in (await filled.memory("show", "Sundays")).data["items"] if one["kind"] == "note"
    )

    def busy(*_: object, **__: object) -> None:
        raise ContextBusy(FAMILY)

    with monkeypatch.context() as beside:
        beside.setattr(group_memory, "_forget_context", busy)
        assert (await filled.memory("forget", note["id"])).code == ContextBusy.code
    assert (await filled.memory("forget", note["id"])).ok
    assert filled.notes.read_text() == "# Family\n- The dog is Bello\n"


async def test_a_session_with_a_forgotten_note_ends_also_when_the_host_dies_before_the_rows(
    filled: MemoryHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = next(
        one for one in (await filled.memory("show", "Sundays")).data["items"] if one["kind"] == "note"
    )

    async def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as beside:
        beside.setattr(group_memory, "_forget_rows", die)
        with pytest.raises(KeyboardInterrupt):
            await filled.memory("forget", note["id"])
    assert "Sundays" not in filled.notes.read_text()
    async with filled.harness.database.reading() as tx:
        assert await sessions.new_session_requests(tx, FAMILY)
