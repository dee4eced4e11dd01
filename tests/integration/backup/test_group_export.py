"""`andy export` writes all that a group has, and nobody's words or file names do harm in it."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from icalendar import Calendar

from orchestrator.backup import group_export, readable, swap
from orchestrator.base.dirfd import inner
from orchestrator.cli.main import app
from orchestrator.domain.dashboard import BoardTask, Deadline
from orchestrator.domain.errors import BackupError, UnknownGroup
from orchestrator.domain.values import Folder, MessageId, Quote
from orchestrator.home.directory import Home
from orchestrator.store.board import dashboards
from orchestrator.store.board import tasks as board_tasks
from orchestrator.store.database import Database
from tests.doubles.clock import FakeClock
from tests.support.store_harness import StoreHarness

HOUR_MS = 3_600_000
LATE_APRIL_MS = 1_777_561_200_000  # 2026-04-30 15:00 in UTC, which is May in Seoul
HOSTILE = (
    "# no heading\n<script>alert(1)</script> [x](javascript:y) *bold* `code`\n1. list\n"
    "--- \u202egnp.exe\x1b[2J"
)


@pytest.fixture
async def filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with two groups that have said something, beside what no export may have."""
    home = Home(tmp_path / "home")
    home.make()
    home.token()
    (home.root / ".env").write_text("ANTHROPIC_API_KEY=sk-ant-very-secret\n")
    database = await Database.open(home.database)
    harness = StoreHarness(database, FakeClock())
    await harness.add_group("family", container_config={"timezone": "Asia/Seoul"})
    await harness.add_group("work")
    await harness.hear("the salary is secret", "work")
    await harness.hear("우유 사기", id=MessageId("1"), sent_ms=LATE_APRIL_MS - HOUR_MS)
    await harness.hear(
        "@Andy look",
        id=MessageId("2"),
        sent_ms=LATE_APRIL_MS,
        file="[image attachments/photo.jpg]",
        quote=Quote(message_id=MessageId("1"), sender="Jane", text="우유 사기"),
    )
    await harness.hear(HOSTILE, id=MessageId("3"), sender_name="*Eve* <b>", sent_ms=LATE_APRIL_MS + 1)
    async with database.transaction() as tx:
        await dashboards.ensure(tx, Folder("family"), now_ms=1)
        for title in ("pay the rent", "# </title><img src=x>"):
            task = BoardTask(
                folder=Folder("family"), id=f"t{len(title)}", title=title, last_update_ms=1, created_ms=1,
                updated_ms=1, deadline=Deadline(at_ms=LATE_APRIL_MS, date="2026-12-01"),
            )  # fmt: skip
            await board_tasks.put(tx, task, read_version=None)
    await database.close()
    for name, text in {
        "family/CLAUDE.md": "# Memory\nJane likes tea.",
        "family/memory/people.md": "Bob",
        "family/.env": "TOKEN=hidden",
        "family/attachments/photo.jpg": "jpeg",
        "work/CLAUDE.md": "the salary",
    }.items():
        path = home.groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    await asyncio.to_thread(andy, home, "tasks", "add", "family", "news, please", "--cron", "0 9 * * *")
    await asyncio.to_thread(andy, home, "reminders", "add", "family", "water the plants", "--at", "in 2 days")
    monkeypatch.chdir(tmp_path)
    return home


def andy(home: Home, *words: str) -> Any:
    return app([*words, "--home", str(home.root)], result_action="return_value")


def texts_in(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes().decode()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_person_reads_what_the_group_has_and_nothing_of_others(filled, tmp_path, capsys):
    capsys.readouterr()
    andy(filled, "export", "family", "--json")
    row = json.loads(capsys.readouterr().out)
    folder = tmp_path / "family-export"
    found = texts_in(folder)
    assert row["path"] == str(folder)
    assert row["messages"] == 3
    assert row["files"] == {name: len(text.encode()) for name, text in found.items()}
    assert set(found) == {
        "README.md",
        "attachments/photo.jpg",
        "board-tasks.json",
        "board-tasks.md",
        "calendar.ics",
        "conversation/2026-04.md",
        "conversation/2026-05.md",
        "memory/CLAUDE.md",
        "memory/people.md",
        "reminders.json",
        "reminders.md",
        "scheduled-tasks.json",
        "scheduled-tasks.md",
    }
    assert "## Thursday, 2026-04-30\n\n**Jane**, 23:00\n\n우유 사기\n" in found["conversation/2026-04.md"]
    may = found["conversation/2026-05.md"]
    assert "## Friday, 2026-05-01\n\n**Jane**, 00:00\n\n> Jane: 우유 사기\n" in may
    assert "[photo.jpg](../attachments/photo.jpg)" in may
    assert found["memory/CLAUDE.md"] == "# Memory\nJane likes tea."
    assert json.loads(found["scheduled-tasks.json"])[0]["schedule_value"] == "0 9 * * *"
    assert "## news, please" in found["scheduled-tasks.md"]
    assert json.loads(found["reminders.json"])[0]["text"] == "water the plants"
    assert {one["title"] for one in json.loads(found["board-tasks.json"])} == {
        "pay the rent",
        "# </title><img src=x>",
    }
    assert Calendar.from_ical(found["calendar.ics"]).walk("VEVENT")
    everything = "".join(found.values())
    assert not re.search("salary|very-secret|hidden", everything)
    assert filled.token() not in everything
    assert all(
        stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
        for path in [folder, *folder.rglob("*")]
    )


def test_no_words_of_a_chat_are_obeyed(filled, tmp_path):
    andy(filled, "export", "family", "--to", str(tmp_path / "out"))
    found = texts_in(tmp_path / "out")
    everything = "".join(found.values())
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", everything.replace("\r\n", "\n"))
    page = found["conversation/2026-05.md"]
    shown = page[page.index("Eve") :]
    assert "<" not in shown
    assert "\n\\# no heading\\\n" in shown
    assert "\\[x\\](javascript:y) \\*bold\\* \\`code\\`" in shown
    assert "\n1\\. list\\\n\\--- " in shown
    assert "<" not in found["board-tasks.md"]


@pytest.mark.parametrize(
    "text", ["a\n===", "- x", "+ x", "    code", "|a|b|\n|-|-|", "&lt;", "~~a~~", "$x$", "12) x"]
)
def test_marks_of_markdown_are_texts(text):
    shown = readable.paragraphs(text)
    assert not re.search(r"^(=|-|\+|\t| {4}|\||\d+\))|(?<!\\)[~$|]|&lt;", shown, re.MULTILINE)


def test_a_text_of_blank_lines_is_shown_in_one_go():
    blank = "\n" * 1_500_000
    assert readable.escaped(f"a{blank}b\n 1. c\n\n\t# d") == f"a{blank}b\n 1\\. c\n\n\t\\# d"


def test_hostile_files_of_an_agent_are_left_out_or_get_harmless_names(filled, tmp_path, capsys):
    group = filled.groups / "family"
    outside = tmp_path / "secret.txt"
    outside.write_text("of the owner")
    (group / "attachments" / "link.txt").symlink_to(outside)
    (group / "linked.md").symlink_to(outside)
    (group / "conversations").symlink_to(filled.groups / "work")
    os.mkfifo(group / "attachments" / "pipe")
    os.link(outside, group / "attachments" / "hard.txt")
    with (group / "attachments" / "hole.bin").open("wb") as hole:
        hole.truncate(2**31)
    for name in (
        "\u202egnp.exe",
        "line\nend\x1b[2J.txt",
        "x" * 200 + ".txt",
        "PHOTO.JPG",
        "-rf",
        "a (1)[x].md",
    ):
        (group / "attachments" / name).write_text("body")
    (group / os.fsdecode(b"bad\xff.md")).write_text("note")
    capsys.readouterr()
    andy(filled, "export", "family", "--to", str(tmp_path / "out"), "--json")
    row = json.loads(capsys.readouterr().out)
    assert set(row["left_out"]) == {
        "attachments/link.txt", "linked.md", "conversations", "attachments/pipe", "attachments/hard.txt",
        "attachments/hole.bin",
    }  # fmt: skip
    assert "of the owner" not in "".join(texts_in(tmp_path / "out").values())
    names = [path.name for path in (tmp_path / "out").rglob("*")]
    assert all(name.isprintable() and len(name.encode()) <= 130 for name in names)
    assert len({name.casefold() for name in row["files"]}) == len(row["files"])
    assert sum(name.startswith("attachments/") for name in row["files"]) == 7
    links = re.findall(r"\]\(([^)]+)\)", (tmp_path / "out" / "README.md").read_text())
    assert all((tmp_path / "out" / unquote(one)).exists() for one in links)


def test_a_file_and_a_folder_that_would_have_one_name_get_two(filled, tmp_path, capsys):
    place = filled.groups / "family" / "attachments"
    for name in ("x/1.txt", "x?", "Y !", "y_/2.txt", "y_/3.txt"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(name)
    (place / "z").mkdir()
    os.mkfifo(place / "z" / "pipe")
    (place / "z?").write_text("z?")
    capsys.readouterr()
    andy(filled, "export", "family", "--to", str(tmp_path / "out"), "--json")
    row = json.loads(capsys.readouterr().out)
    assert row["left_out"] == ["attachments/z/pipe"]
    written = texts_in(tmp_path / "out" / "attachments")
    assert written == {
        "Y": "Y !",
        "photo.jpg": "jpeg",
        "x-2": "x?",
        "x/1.txt": "x/1.txt",
        "y-2/2.txt": "y_/2.txt",
        "y-2/3.txt": "y_/3.txt",
        "z": "z?",
    }


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENOENT])
def test_a_folder_that_is_closed_or_vanishes_leaves_out_its_own_files_alone(
    filled, tmp_path, capsys, monkeypatch, error
):
    group = filled.groups / "family"
    for path in (
        "attachments/a/1.txt",
        "attachments/closed/2.txt",
        "attachments/z/3.txt",
        "memory/closed/4.md",
    ):
        (group / path).parent.mkdir(exist_ok=True)
        (group / path).write_text("body")

    def opens_others(parent_fd: int, name: str) -> Any:
        if name == "closed":
            raise OSError(error, os.strerror(error), name)
        return inner(parent_fd, name)

    monkeypatch.setattr(group_export, "inner", opens_others)
    capsys.readouterr()
    andy(filled, "export", "family", "--to", str(tmp_path / "out"), "--json")
    row = json.loads(capsys.readouterr().out)
    assert row["left_out"] == ["memory/closed", "attachments/closed"]
    assert {name for name in row["files"] if name.startswith(("attachments/", "memory/"))} == {
        "attachments/a/1.txt",
        "attachments/photo.jpg",
        "attachments/z/3.txt",
        "memory/CLAUDE.md",
        "memory/people.md",
    }


def test_what_left_the_database_is_part_of_the_conversation_once(filled, tmp_path):
    rows = [
        {"group_folder": "family", "seq": 900, "sent_ms": 1, "content": "long ago"},
        {"group_folder": "work", "seq": 901, "sent_ms": 1, "content": "salary"},
        {"group_folder": "family", "seq": 2, "sent_ms": 2, "content": "우유 사기"},
    ]
    lines = [json.dumps({"table": "messages", "sender_name": "Bob", **row}) for row in rows]
    filled.archive.mkdir(parents=True)
    (filled.archive / "1970.jsonl").write_text("\n".join([*lines, '{"table":"messages"']))
    andy(filled, "export", "family", "--to", str(tmp_path / "out"))
    pages = {
        name: text for name, text in texts_in(tmp_path / "out").items() if name.startswith("conversation")
    }
    assert "long ago" in pages["conversation/1970-01.md"]
    assert "".join(pages.values()).count("\n우유 사기\n") == 1
    assert "salary" not in "".join(pages.values())


def test_archived_messages_stand_among_those_of_the_database_by_time(filled, tmp_path):
    # The newest message of each chat stays in the database, so the archive may have newer ones.
    row = {"group_folder": "family", "seq": 900, "content": "from the archive", "sender_name": "Bob"}
    filled.archive.mkdir(parents=True)
    between = json.dumps({"table": "messages", **row, "sent_ms": LATE_APRIL_MS - HOUR_MS + 1})
    (filled.archive / "2026.jsonl").write_text(between + "\n")
    andy(filled, "export", "family", "--to", str(tmp_path / "out"))
    page = (tmp_path / "out/conversation/2026-04.md").read_text()
    assert page.index("\n우유 사기\n") < page.index("\nfrom the archive\n")


def test_a_file_for_whose_path_no_number_is_left_is_left_out_alone(filled, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(group_export, "MAX_FILES", 3)
    notes = filled.groups / "family" / "memory" / "deep"
    notes.mkdir()
    for name in ("a\x01.md", "a\x02.md", "a\x03.md"):
        (notes / name).write_text("body")
    capsys.readouterr()
    andy(filled, "export", "family", "--to", str(tmp_path / "out"), "--json")
    row = json.loads(capsys.readouterr().out)
    copied = [name for name in row["files"] if name.startswith("memory/deep/")]
    assert len(copied) == 2
    assert [name for name in row["left_out"] if name.startswith("memory/deep/")] == ["memory/deep/a\\x03.md"]


def test_a_home_whose_restore_was_interrupted_is_not_exported(filled, tmp_path):
    record = swap.RestoreRecord(id="1", state="moving", by="command", source="x", at_ms=1)
    swap.write_record(filled, record)
    with pytest.raises(BackupError, match="the next start of Andy undoes"):
        andy(filled, "export", "family")
    assert not (tmp_path / "family-export").exists()


def test_a_folder_in_use_is_refused_and_a_failure_leaves_nothing(filled, tmp_path, monkeypatch):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine.txt").write_text("mine")
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "busy.partial").mkdir()
    (tmp_path / "linked").symlink_to(empty)
    for target, word in {
        taken: "not empty",
        taken / "mine.txt": "is no folder",
        tmp_path / "busy": "under way",
        tmp_path / "linked": "is no folder",
        tmp_path / "no" / "where": "in a directory that is there",
        tmp_path / ("x" * 300): "File name too long",
        filled.groups / "family" / "out": "inside the home",
    }.items():
        with pytest.raises(BackupError, match=word):
            andy(filled, "export", "family", "--to", str(target))
    with pytest.raises(UnknownGroup):
        andy(filled, "export", "nobody")
    with monkeypatch.context() as patch:
        patch.setattr(group_export, "_write_list", _fail)
        with pytest.raises(BackupError, match="nothing is left"):
            andy(filled, "export", "family", "--to", str(empty))
    assert not list(empty.iterdir())
    assert not (tmp_path / "empty.partial").exists()
    andy(filled, "export", "family", "--to", str(empty))
    assert (empty / "README.md").is_file()


def _fail(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")
