"""`andy import` takes over homes of other assistants, and a hostile one does no harm."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
import shlex
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from orchestrator.backup import foreign_home, move_in
from orchestrator.backup import nanobot as nanobot_reader
from orchestrator.backup import openclaw as openclaw_reader
from orchestrator.base.dirfd import inner
from orchestrator.cli.main import app
from orchestrator.domain.errors import BackupError, HomeError, StoreError
from orchestrator.domain.values import ChatJid
from orchestrator.groups import registration
from orchestrator.home import lock as home_lock
from orchestrator.home.directory import Home
from orchestrator.store import database as databases
from orchestrator.store.database import Database, Tx
from tests.doubles.clock import FakeClock
from tests.support.store_harness import StoreHarness, a_message

FAMILY = "120363001@g.us"
NANOCLAW = """
CREATE TABLE chats (jid TEXT PRIMARY KEY, name TEXT, last_message_time TEXT, channel TEXT,
    is_group INTEGER DEFAULT 0);
CREATE TABLE messages (id TEXT, chat_jid TEXT, sender TEXT, sender_name TEXT, content TEXT, timestamp TEXT,
    is_from_me INTEGER, is_bot_message INTEGER DEFAULT 0, PRIMARY KEY (id, chat_jid),
    FOREIGN KEY (chat_jid) REFERENCES chats(jid));
CREATE TABLE scheduled_tasks (id TEXT PRIMARY KEY, group_folder TEXT NOT NULL, chat_jid TEXT NOT NULL,
    prompt TEXT NOT NULL, schedule_type TEXT NOT NULL, schedule_value TEXT NOT NULL, next_run TEXT,
    last_run TEXT, last_result TEXT, status TEXT DEFAULT 'active', created_at TEXT NOT NULL,
    context_mode TEXT DEFAULT 'isolated');
CREATE TABLE sessions (group_folder TEXT PRIMARY KEY, session_id TEXT NOT NULL);
CREATE TABLE registered_groups (jid TEXT PRIMARY KEY, name TEXT NOT NULL, folder TEXT NOT NULL UNIQUE,
    trigger_pattern TEXT NOT NULL, added_at TEXT NOT NULL, container_config TEXT,
    requires_trigger INTEGER DEFAULT 1);
"""


@pytest.fixture
async def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    database = await Database.open(home.database)
    async with database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=1)
    await database.close()
    return home


@pytest.fixture
def nanoclaw(tmp_path: Path) -> Path:
    """A home as NanoClaw 1 makes it: two groups with notes, tasks and messages."""
    root = tmp_path / "nanoclaw"
    for name, text in {
        "groups/main/CLAUDE.md": "I am the owner's.",
        "groups/family/CLAUDE.md": "Jane likes tea.",
        "groups/family/conversations/2026-01-01.md": "An old talk.",
        "groups/family/node_modules/readme.md": "of nobody",
        "groups/family/.env": "KEY=secret",
        "groups/global/CLAUDE.md": "Be brief.",
        ".env": "ANTHROPIC_API_KEY=secret",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "store").mkdir()
    write(root, NANOCLAW)
    write(
        root,
        "INSERT INTO registered_groups VALUES (?, ?, ?, ?, '2026-01-01T00:00:00.000Z', ?, ?)",
        ("me@s.whatsapp.net", "Me", "main", "@Andy", None, 0),
        (FAMILY, "Family", "family", "@Andy", '{"additionalMounts":[]}', 1),
        ("slack:C1", "Work", "work", "@Andy", None, 1),
    )
    write(
        root,
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        ("A1", FAMILY, "1@s.whatsapp.net", "Jane", "우유 사기", "2026-01-02T10:00:00.000Z", 0, 0),
        ("A2", FAMILY, "2@s.whatsapp.net", "Andy", "Done.", "2026-01-02T10:00:05.000Z", 1, 1),
        ("B1", "me@s.whatsapp.net", "me@s.whatsapp.net", "Me", "note", "2026-01-01T10:00:00.000Z", 0, 0),
        ("C1", "slack:C1", "U1", "Bob", "standup?", "2026-01-03T10:00:00.000Z", 0, 0),
        ("D1", "stranger@g.us", "x", "X", "not registered", "2026-01-03T10:00:00.000Z", 0, 0),
        ("D2", FAMILY, "x", "X", "no time", "yesterday", 0, 0),
    )
    write(
        root,
        "INSERT INTO scheduled_tasks VALUES (?, ?, ?, ?, ?, ?, NULL, NULL, NULL, ?, '2026', ?)",
        ("t1", "family", FAMILY, "news", "cron", "0 9 * * 1", "active", "group"),
        ("t2", "family", FAMILY, "water", "interval", "3600000", "paused", "isolated"),
        ("t3", "family", FAMILY, "gone", "once", "2020-01-01T10:00:00", "active", "isolated"),
        ("t4", "family", FAMILY, "over", "once", "2020-01-01T10:00:00", "completed", "isolated"),
        ("t5", "nobody", FAMILY, "lost", "cron", "0 9 * * 1", "active", "isolated"),
    )
    write(root, "INSERT INTO sessions VALUES ('family', 'abc')", ())
    return root


def write(root: Path, sql: str, *parameters: tuple[Any, ...], name: str = "store/messages.db") -> None:
    with closing(sqlite3.connect(root / name)) as database, database:
        if parameters:
            database.executemany(sql, parameters)
        else:
            database.executescript(sql)


def rows(home: Home, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(home.database)) as database:
        return database.execute(sql).fetchall()


def moved(home: Home, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    app(["import", *words, "--json", "--home", str(home.root)], result_action="return_value")
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def state_of(root: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_a_home_of_nanoclaw_comes_whole_and_is_not_changed(home, nanoclaw, capsys):
    before = state_of(nanoclaw)
    found = moved(home, capsys, "nanoclaw", str(nanoclaw))
    assert state_of(nanoclaw) == before
    main, family, work = found["groups"]
    assert (main["folder"], main["is_new"], main["messages"]) == ("main", False, 1)
    assert (family["folder"], family["chat"], family["messages"]) == ("family", FAMILY, 2)
    assert family["notes"] == ["CLAUDE.md", "conversations/2026-01-01.md"]
    assert (work["folder"], work["chat"], work["messages"]) == ("work", "local:work", 1)
    assert rows(home, "SELECT folder, jid, name, requires_trigger, is_main FROM registered_groups") == [
        ("main", "local:main", "Main", 0, 1),
        ("family", FAMILY, "Family", 1, 0),
        ("work", "local:work", "Work", 1, 0),
    ]
    assert rows(home, "SELECT chat_jid, id, content, is_bot_message FROM messages ORDER BY sent_ms") == [
        ("local:main", "nanoclaw:me@s.whatsapp.net:B1", "note", 0),
        (FAMILY, "A1", "우유 사기", 0),
        (FAMILY, "A2", "Done.", 1),
        ("local:work", "nanoclaw:slack:C1:C1", "standup?", 0),
    ]
    tasks = "SELECT prompt, schedule_type, schedule_value, context_mode, status FROM scheduled_tasks"
    assert rows(home, f"{tasks} ORDER BY prompt") == [
        ("news", "cron", "0 9 * * 1", "group", "active"),
        ("water", "interval", "3600000", "isolated", "paused"),
    ]
    assert (home.groups / "family" / "CLAUDE.md").read_text() == "Jane likes tea."
    assert not (home.groups / "family" / "node_modules").exists()
    left = "\n".join(found["left"])
    for reason in (
        "t3 (once",
        "t5: its group",
        "container settings",
        "2 messages",
        "groups/global/CLAUDE.md",
        "1 session of",
        "only you give",
    ):
        assert reason in left
    assert "secret" not in json.dumps(found)


async def test_the_past_is_not_asked_anew(home, nanoclaw, capsys):
    await asyncio.to_thread(moved, home, capsys, "nanoclaw", str(nanoclaw))
    assert rows(home, "SELECT count(*) FROM turns") == [(0,)]
    database = await Database.open(home.database)
    harness = StoreHarness(database, FakeClock())
    await harness.intake.accept(a_message("@Andy hello", chat_jid=ChatJid(FAMILY)))
    _, _, order = await harness.start_next("family")
    await database.close()
    assert "hello" in order.prompt
    assert "우유" not in order.prompt


def test_a_second_import_adds_nothing_twice(home, nanoclaw, capsys):
    moved(home, capsys, "nanoclaw", str(nanoclaw))
    (home.groups / "family" / "CLAUDE.md").write_text("changed here since")
    write(
        nanoclaw,
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        ("A3", FAMILY, "1@s.whatsapp.net", "Jane", "more", "2026-02-02T10:00:00.000Z", 0, 0),
    )
    counts = "SELECT (SELECT count(*) FROM registered_groups), (SELECT count(*) FROM scheduled_tasks)"
    before = rows(home, counts)
    found = moved(home, capsys, "nanoclaw", str(nanoclaw))
    assert [(one["messages"], one["notes"], one["tasks"]) for one in found["groups"]] == [
        (0, [], []), (1, [], []), (0, [], []),
    ]  # fmt: skip
    assert rows(home, counts) == before
    assert (home.groups / "family" / "CLAUDE.md").read_text() == "changed here since"


def test_a_note_that_is_there_stays_and_the_other_comes_beside_it(home, nanoclaw, capsys):
    (home.groups / "main").mkdir()
    (home.groups / "main" / "CLAUDE.md").write_text("Andy's own")
    found = moved(home, capsys, "nanoclaw", str(nanoclaw))
    assert found["groups"][0]["notes"] == ["CLAUDE.from-nanoclaw.md"]
    assert (home.groups / "main" / "CLAUDE.md").read_text() == "Andy's own"
    assert (home.groups / "main" / "CLAUDE.from-nanoclaw.md").read_text() == "I am the owner's."


@pytest.mark.parametrize("path", ["CLAUDE.md", "CLAUDE.from-nanoclaw.md"])
def test_a_note_that_changed_in_the_other_program_replaces_the_first_and_what_you_changed_stays(
    home, nanoclaw, capsys, path
):
    folder = home.groups / "main"
    folder.mkdir()
    if path != "CLAUDE.md":
        (folder / "CLAUDE.md").write_text("Andy's own")
    moved(home, capsys, "nanoclaw", str(nanoclaw))

    def second(body: str, *words: str) -> dict[str, Any]:
        (nanoclaw / "groups/main/CLAUDE.md").write_text(body)
        return moved(home, capsys, "nanoclaw", str(nanoclaw), *words)

    assert second("It changed.", "--dry-run")["groups"][0]["notes"] == [path]
    assert second("It changed.")["groups"][0]["notes"] == [path]
    assert (folder / path).read_text() == "It changed."
    assert len(list(folder.iterdir())) == (1 if path == "CLAUDE.md" else 2)

    (folder / path).write_text("changed here since")
    found = second("It changed again.")
    assert (folder / path).read_text() == "changed here since"
    if path == "CLAUDE.md":
        assert (folder / "CLAUDE.from-nanoclaw.md").read_text() == "It changed again."
        assert (
            "main: the note CLAUDE.md stays as it is: the other is in CLAUDE.from-nanoclaw.md"
            in found["left"]
        )
    else:
        assert found["groups"][0]["notes"] == []
        assert any(
            text.startswith("main: the note CLAUDE.md: it and the one beside") for text in found["left"]
        )


def test_a_note_of_ones_own_that_was_the_same_at_first_is_never_replaced(home, nanoclaw, capsys):
    own = home.groups / "main" / "CLAUDE.md"
    own.parent.mkdir()
    own.write_text("I am the owner's.")
    assert moved(home, capsys, "nanoclaw", str(nanoclaw))["groups"][0]["notes"] == []
    (nanoclaw / "groups/main/CLAUDE.md").write_text("It changed.")
    found = moved(home, capsys, "nanoclaw", str(nanoclaw))
    assert found["groups"][0]["notes"] == ["CLAUDE.from-nanoclaw.md"]
    assert own.read_text() == "I am the owner's."


def test_a_note_that_cannot_be_written_whole_leaves_the_first(home, nanoclaw, capsys, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    moved(home, capsys, "nanoclaw", str(nanoclaw))
    (nanoclaw / "groups/main/CLAUDE.md").write_text("It changed.")
    with monkeypatch.context() as broken:
        broken.setattr(move_in, "give_to_owner_of", full)
        left = moved(home, capsys, "nanoclaw", str(nanoclaw))["left"]
    assert "main: the note CLAUDE.md: No space left on device" in left
    assert {path.name: path.read_text() for path in (home.groups / "main").iterdir()} == {
        "CLAUDE.md": "I am the owner's."
    }
    assert moved(home, capsys, "nanoclaw", str(nanoclaw))["groups"][0]["notes"] == ["CLAUDE.md"]


def test_a_dry_run_says_the_same_and_changes_nothing(home, nanoclaw, capsys):
    before = (
        state_of(home.groups),
        rows(home, "SELECT * FROM router_state"),
        rows(home, "SELECT * FROM audit"),
    )
    tried = moved(home, capsys, "nanoclaw", str(nanoclaw), "--dry-run")
    assert before == (
        state_of(home.groups), rows(home, "SELECT * FROM router_state"), rows(home, "SELECT * FROM audit"),
    )  # fmt: skip
    assert rows(home, "SELECT count(*) FROM messages") == [(0,)]
    assert {**moved(home, capsys, "nanoclaw", str(nanoclaw)), "is_dry_run": True} == tried


def test_a_dry_run_leaves_an_older_database_as_it_is(home, nanoclaw, capsys):
    home.database.unlink()
    older = len(databases.migrations()) - 1
    with closing(sqlite3.connect(home.database)) as database:
        for script in databases.migrations()[:older]:
            database.executescript(script)
        database.execute(f"PRAGMA user_version = {older}")
    before = home.database.read_bytes()
    assert moved(home, capsys, "nanoclaw", str(nanoclaw), "--dry-run")["is_dry_run"]
    assert home.database.read_bytes() == before
    assert [path.name for path in home.database.parent.glob("*.before-*")] == []


def test_the_copy_for_a_dry_run_lies_beside_the_database_and_goes(home, nanoclaw, capsys, monkeypatch):
    targets: list[Path] = []

    def copy_to(path: Path, target: Path) -> None:
        targets.append(target)
        original(path, target)

    original = databases.copy_to
    monkeypatch.setattr(databases, "copy_to", copy_to)
    moved(home, capsys, "nanoclaw", str(nanoclaw), "--dry-run")
    assert [target.parent.parent for target in targets] == [home.database.parent]
    assert not targets[0].parent.exists()


def test_a_log_line_is_no_part_of_the_result_of_a_dry_run(home, nanoclaw, capsys, monkeypatch):
    async def run(self: move_in.Import, tx: Tx, now_ms: int) -> move_in.MoveResult:
        structlog.get_logger().warning("something.happened")
        return await original(self, tx, now_ms)

    original = move_in.Import.run
    monkeypatch.setattr(move_in.Import, "run", run)
    with capture_logs() as log_lines:
        moved(home, capsys, "nanoclaw", str(nanoclaw), "--dry-run")
    assert log_lines == []


def test_a_copy_that_cannot_be_written_blames_no_database(home, tmp_path):
    (tmp_path / "target" / "inside").mkdir(parents=True)
    with pytest.raises(StoreError, match=f"{home.database} could not be copied to {tmp_path}/target: "):
        databases.copy_to(home.database, tmp_path / "target")


def test_a_person_reads_what_would_come_and_what_is_left(home, nanoclaw, capsys):
    write(
        nanoclaw,
        "INSERT INTO registered_groups VALUES ('9@g.us', 'X', ?, '@Andy', '2026', NULL, 1)",
        ("\x1b[2J",),
    )
    capsys.readouterr()
    app(
        ["import", "nanoclaw", str(nanoclaw), "--dry-run", "--home", str(home.root)],
        result_action="return_value",
    )
    lines = capsys.readouterr().out.splitlines()
    assert f"family (new), {FAMILY}: 2 messages, 2 notes, 2 tasks would come." in lines
    assert "Left:" in lines
    assert any("\\u001b[2J" in line for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_what_calls_him_anyway_is_listed_once(home, nanoclaw, capsys):
    app(["import", "nanoclaw", str(nanoclaw), "--home", str(home.root)], result_action="return_value")
    capsys.readouterr()
    app(["groups", "list", "--home", str(home.root)], result_action="return_value")
    (family,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("family ")]
    assert family.endswith(" @Andy")
    assert " or " not in family


def test_an_older_database_is_migrated_by_the_import(home, nanoclaw, capsys, monkeypatch):
    with closing(sqlite3.connect(home.database)) as connection:
        # As an earlier version left it, which did not know the last migration.
        connection.execute("CREATE TABLE before_the_last_migration (id)")
        connection.execute(f"PRAGMA user_version = {len(databases.migrations()) - 1}")
    known = (*databases.migrations()[:-1], "DROP TABLE before_the_last_migration;")
    monkeypatch.setattr(databases, "migrations", lambda: known)
    assert moved(home, capsys, "nanoclaw", str(nanoclaw))["groups"]
    assert databases.migration_ahead(home.database) is None


def test_nothing_comes_while_andy_runs(home, nanoclaw):
    lock = home_lock.acquire(home)
    try:
        with pytest.raises(HomeError, match="is running"):
            app(["import", "nanoclaw", str(nanoclaw), "--home", str(home.root)], result_action="return_value")
    finally:
        lock.release()
    assert rows(home, "SELECT count(*) FROM messages") == [(0,)]


def test_a_group_of_the_same_name_stays_apart(home, nanoclaw, capsys):
    app(["groups", "register", "family", "--home", str(home.root)], result_action="return_value")
    found = moved(home, capsys, "nanoclaw", str(nanoclaw))
    assert found["groups"][1]["folder"] == "family-nanoclaw"
    assert moved(home, capsys, "nanoclaw", str(nanoclaw))["groups"][1]["folder"] == "family-nanoclaw"


def test_a_hostile_home_leads_nowhere(home, nanoclaw, tmp_path, capsys):
    secret = tmp_path / "secret.md"
    secret.write_text("of the owner")
    (nanoclaw / "groups" / "family" / "linked.md").symlink_to(secret)
    (nanoclaw / "groups" / "work").symlink_to(tmp_path)
    os.mkfifo(nanoclaw / "groups" / "family" / "pipe.md")
    with (nanoclaw / "groups" / "family" / "huge.md").open("wb") as huge:
        huge.truncate(2**33)
    write(
        nanoclaw,
        "INSERT INTO registered_groups VALUES (?, ?, ?, ?, '2026', NULL, 1)",
        ("1@g.us", "Up", "../../etc", "@Andy"),
        ("2@g.us", "Dots", "..", "@Andy"),
        ("local:main", "Fake", "fake", "@Andy"),
        ("3@g.us", "\u202e" * 300, "x" * 300, "@Andy"),
        ("4@g.us", b"\xff\x00bytes", "bytes", "y" * 9_000),
    )
    write(
        nanoclaw,
        "INSERT INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (b"\xff", FAMILY, 5, None, "x" * 1_000_000, "2026-01-02T10:00:00.000Z", "a", "b"),
        ("E1", FAMILY, "s", "n", "far", "+9999999-01-01", 0, 0),
    )
    found = moved(home, capsys, "nanoclaw", str(nanoclaw))
    folders = {one["folder"]: one for one in found["groups"]}
    assert set(folders) == {"main", "family", "work", "fake", "bytes"}
    assert folders["fake"]["chat"] == "local:fake"
    assert folders["family"]["notes"] == ["CLAUDE.md", "conversations/2026-01-01.md"]
    assert "of the owner" not in "".join(path.read_text() for path in home.groups.rglob("*.md"))
    assert not (home.root / "etc").exists()
    assert rows(home, "SELECT count(*) FROM messages WHERE length(content) > 65536") == [(0,)]


@pytest.mark.parametrize("error", [errno.EACCES, errno.ENOENT])
def test_a_folder_of_notes_that_is_closed_or_vanishes_leaves_out_its_own_notes_alone(
    home, nanoclaw, capsys, monkeypatch, error
):
    for path in ("closed/1.md", "open/2.md"):
        note = nanoclaw / "groups" / "family" / "conversations" / path
        note.parent.mkdir()
        note.write_text("a note")

    def opens_others(parent_fd: int, name: str) -> Any:
        if name == "closed":
            raise OSError(error, os.strerror(error), name)
        return inner(parent_fd, name)

    monkeypatch.setattr(foreign_home, "inner", opens_others)
    found = moved(home, capsys, "nanoclaw", str(nanoclaw))
    assert found["groups"][1]["notes"] == [
        "CLAUDE.md",
        "conversations/2026-01-01.md",
        "conversations/open/2.md",
    ]
    assert f"the notes in conversations/closed: {os.strerror(error)}" in found["left"]


@pytest.mark.parametrize(
    ("made", "word"),
    [
        ("DROP TABLE registered_groups", "not known"),
        ("ALTER TABLE messages RENAME COLUMN chat_jid TO chat_id", "not known"),
        ("DROP TABLE messages; CREATE VIEW messages AS SELECT 1 AS id", "not known"),
    ],
)
def test_an_unknown_version_is_refused(home, nanoclaw, made, word):
    write(nanoclaw, made)
    with pytest.raises(BackupError, match=word):
        app(["import", "nanoclaw", str(nanoclaw), "--home", str(home.root)], result_action="return_value")


def test_a_folder_that_is_no_home_is_refused(home, nanoclaw, tmp_path):
    def andy(folder: Path, root: Path) -> None:
        app(["import", "nanoclaw", str(folder), "--home", str(root)], result_action="return_value")

    (tmp_path / "empty").mkdir()
    with pytest.raises(BackupError, match="is no home of NanoClaw"):
        andy(tmp_path / "empty", home.root)
    (tmp_path / "linked" / "store").mkdir(parents=True)
    (tmp_path / "linked" / "store" / "messages.db").symlink_to(nanoclaw / "store" / "messages.db")
    with pytest.raises(BackupError, match="is no home of NanoClaw"):
        andy(tmp_path / "linked", home.root)
    with pytest.raises(StoreError):
        andy(nanoclaw, tmp_path / "nowhere")
    path = nanoclaw / "store" / "messages.db"
    write(nanoclaw, 'CREATE TABLE "strangé" (column_of_it)')
    path.write_bytes(
        path.read_bytes().replace("é".encode(), b"\x9e\x9f").replace(b"(column_of_it)", b"(column_of_it(")
    )
    with pytest.raises(BackupError, match="cannot be read"):
        andy(nanoclaw, home.root)
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(BackupError, match="cannot be read"):
        andy(nanoclaw, home.root)


def test_what_nanoclaw_has_not_written_back_yet_comes_too(home, nanoclaw, capsys):
    with closing(sqlite3.connect(nanoclaw / "store" / "messages.db")) as live:
        live.execute("PRAGMA journal_mode = WAL")
        live.execute(
            "INSERT INTO messages VALUES ('W1', ?, 's', 'n', 'fresh', '2026-03-01T00:00:00.000Z', 0, 0)",
            (FAMILY,),
        )
        live.commit()
        found = moved(home, capsys, "nanoclaw", str(nanoclaw))
    assert found["groups"][1]["messages"] == 3


# NanoClaw 2: one database of groups, two of each session

CENTRAL = """
CREATE TABLE agent_groups (id TEXT PRIMARY KEY, name TEXT NOT NULL, folder TEXT NOT NULL UNIQUE,
    agent_provider TEXT, created_at TEXT NOT NULL);
CREATE TABLE messaging_groups (id TEXT PRIMARY KEY, channel_type TEXT NOT NULL, platform_id TEXT NOT NULL,
    instance TEXT NOT NULL, name TEXT, is_group INTEGER DEFAULT 0);
CREATE TABLE messaging_group_agents (id TEXT PRIMARY KEY, messaging_group_id TEXT NOT NULL,
    agent_group_id TEXT NOT NULL, engage_mode TEXT NOT NULL DEFAULT 'mention', engage_pattern TEXT);
CREATE TABLE sessions (id TEXT PRIMARY KEY, agent_group_id TEXT NOT NULL, messaging_group_id TEXT);
INSERT INTO agent_groups VALUES ('ag-1', 'Andy', 'family', NULL, '2026'),
    ('ag-2', 'Up', '..', NULL, '2026'), ('ag-3', 'Andy', 'work', NULL, '2026');
INSERT INTO messaging_groups VALUES ('mg-1', 'telegram', 'telegram:-100123', 'telegram', 'Family', 1),
    ('mg-2', 'discord', 'discord:9', 'discord', 'Game', 1), ('mg-3', 'slack', 'slack:C1', 'slack', 'Work', 1);
INSERT INTO messaging_group_agents VALUES ('w-1', 'mg-1', 'ag-1', 'pattern', '.'),
    ('w-2', 'mg-2', 'ag-1', 'mention', NULL), ('w-3', 'mg-3', 'ag-3', 'pattern', '@Bot');
INSERT INTO sessions VALUES ('sess-1', 'ag-1', 'mg-1'), ('../../..', 'ag-1', 'mg-1'),
    ('sess-2', 'ag-9', NULL);
"""
INBOUND = """
CREATE TABLE messages_in (id TEXT PRIMARY KEY, seq INTEGER UNIQUE, kind TEXT NOT NULL,
    timestamp TEXT NOT NULL, status TEXT DEFAULT 'pending', process_after TEXT, recurrence TEXT,
    series_id TEXT, content TEXT NOT NULL);
INSERT INTO messages_in VALUES
    ('m1', 2, 'chat', '2026-01-02T10:00:00.000Z', 'completed', NULL, NULL, NULL,
     '{"text": "우유 사기", "sender": "Jane", "senderId": "telegram:7"}'),
    ('m2', 4, 'chat', '2026-01-02 10:00:09', 'completed', NULL, NULL, NULL, 'no JSON'),
    ('t1', 6, 'task', '2026-01-02 10:00:09', 'completed', '2026-01-02T09:00:00Z', NULL, 'series',
     '{"prompt": "news"}'),
    ('t2', 8, 'task', '2026-01-02 10:00:09', 'pending', '2026-01-03T09:00:00Z', '0 9 * * *', 'series',
     '{"prompt": "news", "script": "echo"}'),
    ('t3', 10, 'task', '2026-01-02 10:00:09', 'paused', '2020-01-03T09:00:00Z', NULL, 't3',
     '{"prompt": "past"}'),
    ('onboard-1', 12, 'task', '2026-01-02T10:00:09.000Z', 'pending', NULL, NULL, 'onboard-1',
     '{"prompt": "Welcome the user."}'),
    ('m3', 14, 'chat-sdk', '2026-01-02T10:00:10.000Z', 'completed', NULL, NULL, NULL,
     '{"id": "5:6", "text": "and bread", "sender": "Bob", "senderId": "8"}');
"""
OUTBOUND = """
CREATE TABLE messages_out (id TEXT PRIMARY KEY, seq INTEGER UNIQUE, timestamp TEXT NOT NULL,
    kind TEXT NOT NULL, content TEXT NOT NULL);
INSERT INTO messages_out VALUES ('o1', 3, '2026-01-02 10:00:05', 'chat', '{"text": "Done."}'),
    ('o2', 5, '2026-01-02 10:00:06', 'system', '{"action": "schedule_task"}'),
    ('o3', 7, '2026-01-02 10:00:07', 'chat', '{"operation": "edit", "messageId": "1", "text": "Done!"}');
"""


@pytest.fixture
def nanoclaw_v2(tmp_path: Path) -> Path:
    root = tmp_path / "nanoclaw"
    fill(
        root,
        {
            "groups/family/CLAUDE.md": "<!-- Composed at spawn — do not edit. -->\n@./.claude-shared.md\n",
            "groups/family/CLAUDE.local.md": "Jane likes tea.",
            "groups/work/CLAUDE.local.md": "",
            "data/v2-sessions/ag-1/sess-1/.x": "",
        },
    )
    write(root, CENTRAL, name="data/v2.db")
    write(root, INBOUND, name="data/v2-sessions/ag-1/sess-1/inbound.db")
    write(root, OUTBOUND, name="data/v2-sessions/ag-1/sess-1/outbound.db")
    return root


def test_a_home_of_nanoclaw_2_comes_with_its_sessions(home, nanoclaw_v2, capsys):
    before = state_of(nanoclaw_v2)
    found = moved(home, capsys, "nanoclaw", str(nanoclaw_v2))
    assert state_of(nanoclaw_v2) == before
    family, work = found["groups"]
    assert (family["folder"], family["chat"], family["notes"]) == ("family", "tg:-100123", ["CLAUDE.md"])
    assert (work["folder"], work["chat"], work["notes"]) == ("work", "local:work", [])
    assert (home.groups / "family" / "CLAUDE.md").read_text() == "Jane likes tea."
    assert rows(home, "SELECT name, trigger_pattern FROM registered_groups WHERE folder != 'main'") == [
        ("Family", None),
        ("Work", "@Bot"),
    ]
    assert rows(home, "SELECT sender_name, content, is_bot_message FROM messages ORDER BY sent_ms") == [
        ("Jane", "우유 사기", 0),
        ("Andy", "Done.", 1),
        ("Bob", "and bread", 0),
    ]
    assert rows(home, "SELECT prompt, schedule_value, status FROM scheduled_tasks") == [
        ("news", "0 9 * * *", "active")
    ]
    assert rows(home, "SELECT requires_trigger FROM registered_groups WHERE folder = 'family'") == [(0,)]
    left = "\n".join(found["left"])
    for reason in ("discord 9", "the group ..", "script of task t2", "task t3 (once"):
        assert reason in left
    assert "task series" not in left
    assert "onboard" not in left
    again = moved(home, capsys, "nanoclaw", str(nanoclaw_v2))["groups"][0]
    assert (again["messages"], again["notes"], again["tasks"]) == (0, [], [])


def test_a_session_that_is_broken_is_left_and_an_unknown_version_refused(home, nanoclaw_v2, capsys):
    (nanoclaw_v2 / "data/v2-sessions/ag-1/sess-1/outbound.db").write_bytes(b"broken" * 1000)
    found = moved(home, capsys, "nanoclaw", str(nanoclaw_v2), "--dry-run")
    assert found["groups"][0]["messages"] == 2
    assert "outbound.db" in "".join(found["left"])
    write(nanoclaw_v2, "DROP TABLE messaging_groups", name="data/v2.db")
    with pytest.raises(BackupError, match="not known"):
        app(["import", "nanoclaw", str(nanoclaw_v2), "--home", str(home.root)], result_action="return_value")


def test_a_session_whose_log_cannot_be_read_leaves_out_itself_alone(home, nanoclaw_v2, capsys):
    (nanoclaw_v2 / "data/v2-sessions/ag-1/sess-1/inbound.db-wal").symlink_to("inbound.db")
    found = moved(home, capsys, "nanoclaw", str(nanoclaw_v2), "--dry-run")
    assert found["groups"][0]["messages"] == 1
    left = "".join(found["left"])
    assert "inbound.db" in left
    assert "outbound.db" not in left


# OpenClaw and nanobot: one agent for all chats


@pytest.fixture
def openclaw(tmp_path: Path) -> Path:
    """A home as OpenClaw makes it: its owner's chat, others, the session of a job, jobs and notes."""
    root = tmp_path / "openclaw"
    sessions = {
        "agent:main:main": {"sessionId": "s-main", "updatedAt": 1},
        "agent:main:telegram:group:-100123:topic:4": {"sessionId": "s-group", "updatedAt": 1},
        "agent:main:whatsapp:direct:+4912": {"sessionId": "s-direct", "updatedAt": 1},
        "cron:job-1": {"sessionId": "s-cron", "updatedAt": 1},
        "agent:main:telegram:group:-5": {"sessionId": "../../../secret", "updatedAt": 1},
    }
    jobs = [
        {
            "id": "job-1", "name": "brief", "enabled": True, "sessionTarget": "isolated",
            "schedule": {"kind": "cron", "expr": "0 7 * * *"},
            "payload": {"kind": "agentTurn", "message": "summarize"},
            "delivery": {"mode": "announce", "channel": "telegram", "to": "telegram:group:-100123:topic:4"},
        },
        {
            "id": "job-2", "name": "stretch", "enabled": False, "sessionTarget": "main",
            "schedule": {"kind": "every", "everyMs": 3_600_000},
            "payload": {"kind": "systemEvent", "text": "stretch"},
        },
        {
            "id": "job-3", "name": "past", "enabled": True,
            "schedule": {"kind": "at", "at": "2026-02-01T16:00:00Z"},
            "payload": {"kind": "systemEvent", "text": "past"},
        },
        {
            "id": "job-4", "name": "far", "enabled": True,
            "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": "America/Los_Angeles"},
            "payload": {"kind": "agentTurn", "message": "elsewhere"},
        },
        {"id": "job-5", "schedule": {"kind": "lunar"}, "payload": {"kind": "agentTurn", "message": "moon"}},
    ]  # fmt: skip
    files = {
        "openclaw.json": '{"gateway": {"auth": {"token": "secret"}}}',
        "workspace/MEMORY.md": "She likes tea.",
        "workspace/memory/2026-01-01.md": "A day.",
        "workspace/skills/x/SKILL.md": "of a skill",
        "agents/work/sessions/sessions.json": "{}",
        "agents/main/sessions/sessions.json": json.dumps(sessions),
        "cron/jobs.json": json.dumps({"version": 1, "jobs": jobs}),
    }
    for name in ("main", "group", "direct", "cron"):
        lines = [
            {"type": "session", "version": 3, "id": f"s-{name}", "timestamp": "2026-01-01T09:00:00.000Z"},
            {
                "type": "message", "id": "a1", "parentId": None, "timestamp": "2026-01-01T09:00:01.000Z",
                "message": {"role": "user", "content": [{"type": "text", "text": f"hello {name}"}]},
            },
            {
                "type": "message", "id": "a2", "parentId": "a1", "timestamp": "2026-01-01T09:00:02.000Z",
                "message": {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm"},
                        {"type": "text", "text": "hi"},
                        {"type": "toolCall", "id": "t", "name": "exec", "arguments": {}},
                    ],
                },
            },
            {
                "type": "message", "id": "a3", "parentId": "a2", "timestamp": "2026-01-01T09:00:03.000Z",
                "message": {"role": "toolResult", "content": [{"type": "text", "text": "output"}]},
            },
        ]  # fmt: skip
        files[f"agents/main/sessions/s-{name}.jsonl"] = "\n".join([*map(json.dumps, lines), "no json", "[]"])
    fill(root, files)
    return root


@pytest.fixture
def nanobot(tmp_path: Path) -> Path:
    """A home as nanobot makes it: two chats, notes and a scheduled job."""
    root = tmp_path / "nanobot"
    job = {
        "id": "n1", "name": "water", "enabled": True, "schedule": {"kind": "every", "everyMs": 7_200_000},
        "payload": {"kind": "agent_turn", "message": "water", "channel": "telegram", "to": "42"},
        "state": {}, "createdAtMs": 1, "updatedAtMs": 1, "deleteAfterRun": False,
    }  # fmt: skip
    upkeep = {
        "id": "dream",
        "schedule": {"kind": "every", "everyMs": 60_000},
        "payload": {"kind": "system_event"},
    }
    files = {
        "config.json": '{"providers": {"openrouter": {"apiKey": "secret"}}}',
        "workspace/memory/MEMORY.md": "He runs.",
        "cron/jobs.json": json.dumps({"version": 1, "jobs": [job, upkeep]}),
        "workspace/sessions/strange.jsonl": '{"role": "user", "content": "whose?"}',
    }
    for key in ("cli:direct", "telegram:42"):
        lines = [
            {"_type": "metadata", "key": key, "created_at": "2026-01-01T00:00:00", "last_consolidated": 0},
            {"role": "user", "content": f"from {key}", "timestamp": "2026-01-01T10:00:00.123456"},
            {"role": "assistant", "content": None, "tool_calls": [], "timestamp": "2026-01-01T10:00:01"},
            {"role": "assistant", "content": "sure", "timestamp": "2026-01-01T10:00:02"},
            {"role": "tool", "content": "output", "timestamp": "2026-01-01T10:00:03"},
            {"role": "user", "content": "no time"},
        ]
        files[f"workspace/sessions/{key.replace(':', '_')}.jsonl"] = "\n".join(map(json.dumps, lines))
    fill(root, files)
    return root


def fill(root: Path, files: dict[str, str]) -> None:
    for name, body in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(body)


def test_a_home_of_openclaw_comes_as_far_as_it_is_in_files(home, openclaw, tmp_path, capsys):
    (tmp_path / "secret.jsonl").write_text('{"type": "message"}')
    before = state_of(openclaw)
    found = moved(home, capsys, "openclaw", str(openclaw))
    assert state_of(openclaw) == before
    assert [(one["folder"], one["chat"], one["messages"]) for one in found["groups"]] == [
        ("main", "local:main", 2),
        ("telegram-100123", "tg:-100123", 2),
        ("whatsapp-4912", "4912@s.whatsapp.net", 2),
        ("telegram-5", "tg:-5", 0),
    ]
    assert found["groups"][0]["notes"] == ["MEMORY.md", "memory/2026-01-01.md"]
    assert rows(home, "SELECT content, is_bot_message FROM messages WHERE chat_jid = 'tg:-100123'") == [
        ("hello group", 0),
        ("hi", 1),
    ]
    tasks = "SELECT group_folder, prompt, schedule_value, context_mode, status FROM scheduled_tasks"
    assert rows(home, f"{tasks} ORDER BY prompt") == [
        ("main", "stretch", "3600000", "group", "paused"),
        ("telegram-100123", "summarize", "0 7 * * *", "isolated", "active"),
    ]
    left = "\n".join(found["left"])
    for reason in ("job-3 (once", "those of America/Los_Angeles", "job-5 (lunar", "agents/work"):
        assert reason in left
    again = moved(home, capsys, "openclaw", str(openclaw))
    assert all((one["messages"], one["notes"], one["tasks"]) == (0, [], []) for one in again["groups"])


def test_a_home_of_nanobot_comes_as_far_as_it_is_in_files(home, nanobot, capsys):
    (nanobot / "workspace" / "sessions.db").write_bytes(b"newer")
    before = state_of(nanobot)
    found = moved(home, capsys, "nanobot", str(nanobot))
    assert state_of(nanobot) == before
    assert [(one["folder"], one["chat"], one["messages"]) for one in found["groups"]] == [
        ("main", "local:main", 2),
        ("telegram-42", "tg:42", 2),
    ]
    assert found["groups"][0]["notes"] == ["memory/MEMORY.md"]
    assert rows(home, "SELECT group_folder, prompt, schedule_value FROM scheduled_tasks") == [
        ("telegram-42", "water", "7200000")
    ]
    left = "\n".join(found["left"])
    assert "strange.jsonl" in left
    assert "sessions.db" in left
    again = moved(home, capsys, "nanobot", str(nanobot))
    assert all((one["messages"], one["notes"], one["tasks"]) == (0, [], []) for one in again["groups"])


def test_a_topic_of_openclaw_that_no_file_can_be_named_after_is_imported_without_it(home, openclaw, capsys):
    index = openclaw / "agents/main/sessions/sessions.json"
    sessions = json.loads(index.read_text())
    sessions["agent:main:telegram:group:1:topic:\0"] = {"sessionId": "s-none"}
    index.write_text(json.dumps(sessions))
    assert "tg:-100123" in [one["chat"] for one in moved(home, capsys, "openclaw", str(openclaw))["groups"]]


@pytest.mark.parametrize("path", ["", ".", "..", "a/../note", "/etc/passwd", "note\0", "a\0/note", "link"])
def test_no_other_file_than_one_below_the_folder_can_be_read(tmp_path, path):
    (tmp_path / "a").mkdir()
    (tmp_path / "note").touch()
    (tmp_path / "link").symlink_to("note")
    assert foreign_home.has_file(tmp_path, "note")
    assert not foreign_home.has_file(tmp_path, path)


@pytest.mark.parametrize("program", ["openclaw", "nanobot"])
@pytest.mark.parametrize("body", ['{"version": 2, "jobs": []}', "[]", "{", "[" * 200_000])
def test_jobs_of_an_unknown_version_are_refused(home, program, body, request):
    root = request.getfixturevalue(program)
    (root / "cron" / "jobs.json").write_text(body)
    with pytest.raises(BackupError, match=r"jobs\.json"):
        app(["import", program, str(root), "--home", str(home.root)], result_action="return_value")
    assert rows(home, "SELECT count(*) FROM messages") == [(0,)]


@pytest.mark.parametrize("program", ["openclaw", "nanobot"])
def test_conversations_beyond_the_limit_are_named_as_left(home, program, request, capsys, monkeypatch):
    reader = {"openclaw": openclaw_reader, "nanobot": nanobot_reader}[program]
    monkeypatch.setattr(reader, "MAX_GROUPS", 1)
    found = moved(home, capsys, program, str(request.getfixturevalue(program)))
    assert "only the first 1 are read" in "\n".join(found["left"])


def test_an_index_of_openclaw_that_is_no_object_is_left_and_the_rest_comes(home, openclaw, capsys):
    (openclaw / "agents/main/sessions/sessions.json").write_text("[]")
    found = moved(home, capsys, "openclaw", str(openclaw))
    assert found["groups"][0]["notes"] == ["MEMORY.md", "memory/2026-01-01.md"]
    assert "agents/main/sessions/sessions.json: it is of a version" in "\n".join(found["left"])


@pytest.mark.parametrize("program", ["openclaw", "nanobot"])
def test_an_empty_folder_is_the_home_of_no_program(home, program, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BackupError, match="is no home of"):
        app(
            ["import", program, str(tmp_path / "empty"), "--home", str(home.root)],
            result_action="return_value",
        )


# Homes as newer versions make them


def test_the_times_of_another_zone_come_once_the_group_is_in_it(home, openclaw, capsys, monkeypatch):
    monkeypatch.setenv("TZ", "Etc/UTC")  # the machine's own zone counts before a file
    jobs = [
        {
            "id": f"job-{number}", "schedule": {"kind": "cron", "expr": "0 7 * * *", "tz": zone},
            "payload": {"kind": "agentTurn", "message": zone},
        }
        for number, zone in enumerate(("UTC", "Europe/Berlin", "Moon/Crater"))
    ]  # fmt: skip
    (openclaw / "cron" / "jobs.json").write_text(json.dumps({"version": 1, "jobs": jobs}))
    left = "\n".join(moved(home, capsys, "openclaw", str(openclaw))["left"])
    assert rows(home, "SELECT prompt, timezone FROM scheduled_tasks") == [("UTC", "Etc/UTC")]
    fix = """andy groups config main --set '{"timezone": "Europe/Berlin"}'"""
    assert fix in left
    assert "Moon/Crater, which is no known time zone" in left
    app([*shlex.split(fix)[1:], "--home", str(home.root)], result_action="return_value")
    again = moved(home, capsys, "openclaw", str(openclaw))
    assert len(again["groups"][0]["tasks"]) == 1
    assert ("Europe/Berlin", "Europe/Berlin") in rows(home, "SELECT prompt, timezone FROM scheduled_tasks")


def test_each_of_several_jobs_without_an_id_is_imported_or_noted(home, openclaw, capsys):
    jobs = [
        {
            "schedule": {"kind": "cron", "expr": f"0 {hour} * * *"},
            "payload": {"kind": "agentTurn", "message": f"at {hour}"},
        }
        for hour in (7, 8)
    ] + [{"trigger": "x", "payload": {}}, {"agentId": "work", "payload": {}}]
    (openclaw / "cron" / "jobs.json").write_text(json.dumps({"version": 1, "jobs": jobs}))
    left = "\n".join(moved(home, capsys, "openclaw", str(openclaw))["left"])
    assert rows(home, "SELECT prompt FROM scheduled_tasks ORDER BY prompt") == [("at 7",), ("at 8",)]
    assert "a script written for OpenClaw" in left
    assert "of the agent 'work'" in left
    for job in jobs:
        job |= {"state": {"nextRunAtMs": 5}, "updatedAtMs": 5}
    (openclaw / "cron" / "jobs.json").write_text(json.dumps({"version": 1, "jobs": jobs}))
    moved(home, capsys, "openclaw", str(openclaw))
    assert len(rows(home, "SELECT 1 FROM scheduled_tasks")) == 2, (
        "again, also after a run there, none is added"
    )


def test_each_of_several_jobs_of_nanobot_without_an_id_is_imported(home, nanobot, capsys):
    jobs = [
        {"schedule": {"kind": "cron", "expr": f"0 {hour} * * *"}, "payload": {"message": f"at {hour}"}}
        for hour in (7, 8)
    ]
    (nanobot / "cron" / "jobs.json").write_text(json.dumps({"version": 1, "jobs": jobs}))
    moved(home, capsys, "nanobot", str(nanobot))
    assert rows(home, "SELECT prompt FROM scheduled_tasks ORDER BY prompt") == [("at 7",), ("at 8",)]


@pytest.fixture
def nanobot_0_3(tmp_path: Path) -> Path:
    """A home as nanobot 0.3 makes it: conversations beside the workspace, jobs in `action.jsonl`."""
    root = tmp_path / "nanobot"
    sessions = "sessions/4c43ad77364c4461a17fc56574fcd895"
    job = {
        "id": "n1", "name": "water", "enabled": True, "schedule": {"kind": "every", "everyMs": 7_200_000},
        "payload": {"kind": "agent_turn", "message": "water", "sessionKey": "cli:direct"},
    }  # fmt: skip
    tomorrow_ms = int(time.time() * 1000) + 86_400_000
    added = {
        "id": "n2", "enabled": True, "schedule": {"kind": "at", "at_ms": tomorrow_ms, "tz": None},
        "payload": {"kind": "agent_turn", "message": "news", "session_key": "telegram:42"},
    }  # fmt: skip
    changes = [
        {"action": "add", "params": added},
        {"action": "add", "params": {**added, "id": "n3"}},
        {"action": "del", "params": {"job_id": "n3"}},
        {"action": "add", "params": "nothing"},
    ]
    summary = {
        "cursor": 1,
        "timestamp": "2026-01-01 10:00",
        "content": "She runs.",
        "session_key": "cli:direct",
    }
    files = {
        "config.json": "{}",
        f"{sessions}/.workspace": "/home/jane/.nanobot/workspace",
        "workspace/memory/history.jsonl": json.dumps(summary),
        "workspace/cron/jobs.json": json.dumps({"version": 1, "jobs": [job]}),
        "workspace/cron/action.jsonl": "\n".join(map(json.dumps, changes)),
    }
    for name, key in (
        ("Y2xpOmRpcmVjdA", "cli:direct"),
        ("dGVs", "telegram:42:topic:4"),
        ("ZHJl", "dream:20260101"),
    ):
        lines = [
            {"_type": "metadata", "key": key, "metadata": {"_last_usage": {}}},
            {"role": "user", "content": f"from {key}", "timestamp": "2026-01-01T10:00:00.123456"},
            {"role": "user", "content": "due", "timestamp": "2026-01-01T10:00:01", "_automation_turn": True},
        ]
        files[f"{sessions}/{name}.jsonl"] = "\n".join(map(json.dumps, lines))
    fill(root, files)
    return root


def test_a_home_of_nanobot_0_3_comes_with_what_waits_in_it(home, nanobot_0_3, capsys):
    before = state_of(nanobot_0_3)
    found = moved(home, capsys, "nanobot", str(nanobot_0_3))
    assert state_of(nanobot_0_3) == before
    assert [(one["folder"], one["messages"], len(one["tasks"])) for one in found["groups"]] == [
        ("main", 1, 1),
        ("telegram-42", 1, 1),
    ]
    assert rows(home, "SELECT group_folder, prompt FROM scheduled_tasks ORDER BY prompt") == [
        ("telegram-42", "news"),
        ("main", "water"),
    ]
    assert "She runs." in (home.groups / "main" / "memory" / "history.md").read_text()
    assert found["left"] == []
    again = moved(home, capsys, "nanobot", str(nanobot_0_3))
    assert all((one["messages"], one["notes"], one["tasks"]) == (0, [], []) for one in again["groups"])


OPENCLAW_AGENT = """
CREATE TABLE session_nodes (session_key TEXT NOT NULL PRIMARY KEY, current_session_id TEXT NOT NULL,
    entry_json TEXT NOT NULL, updated_at INTEGER NOT NULL) STRICT;
CREATE TABLE session_windows (session_id TEXT NOT NULL PRIMARY KEY, session_key TEXT NOT NULL) STRICT;
CREATE TABLE session_transcript_archives (session_id TEXT NOT NULL, archive_blob BLOB NOT NULL) STRICT;
CREATE TABLE transcript_events (session_id TEXT NOT NULL, seq INTEGER NOT NULL, event_json TEXT,
    created_at INTEGER NOT NULL, event_zstd BLOB, navigation_json TEXT, PRIMARY KEY (session_id, seq),
    CHECK (navigation_json IS NULL OR CASE WHEN json_valid(navigation_json)
        THEN octet_length(navigation_json) <= 16384 ELSE 0 END)) STRICT;
CREATE VIRTUAL TABLE session_transcript_fts USING fts5(text, session_id UNINDEXED, message_id UNINDEXED,
    role UNINDEXED, timestamp UNINDEXED);
"""
OPENCLAW_STATE = """
CREATE TABLE cron_jobs (store_key TEXT NOT NULL, job_id TEXT NOT NULL, enabled INTEGER NOT NULL,
    job_json TEXT NOT NULL, PRIMARY KEY (store_key, job_id)) STRICT;
"""


def openclaw_event(
    name: str, role: str, content: object, at: str = "2026-01-01T09:00:01.000Z", *, sender: str = ""
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": content}
    if sender:
        message |= {"timestamp": 1_767_250_000_000, "__openclaw": {"senderName": sender, "senderId": "9"}}
    return {"type": "message", "id": name, "timestamp": at, "message": message}


@pytest.fixture
def openclaw_2026_9(tmp_path: Path) -> Path:
    """A home as OpenClaw 2026.9 makes it: conversations in one database, jobs in another."""
    root = tmp_path / "openclaw"
    agent, state = "agents/main/agent/openclaw-agent.sqlite", "state/openclaw.sqlite"
    fill(root, {"workspace/MEMORY.md": "She likes tea.", "agents/main/agent/.x": "", "state/.x": ""})
    with closing(sqlite3.connect(root / agent)) as database, database:
        database.create_function("octet_length", 1, len, deterministic=True)  # older SQLite has none
        database.executescript(OPENCLAW_AGENT)
    write(root, OPENCLAW_STATE, name=state)
    sessions = {
        "s-main": "agent:main:main",
        "s-group": "agent:main:telegram:group:-100123",
        "s-direct": "agent:main:whatsapp:default:direct:+4912345",
        "s-room": "agent:main:matrix:channel:!abc:example.org",
        "s-cron": "agent:main:cron:job-1",
    }
    entries = {
        "s-room": {"delivery": {"kind": "external", "context": {"to": "room:!AbC:example.org"}}},
        "s-group": {"subject": "Family"},
        "s-direct": {"delivery": {"kind": "external", "origin": {"label": "Bob (@bob) id:4912345"}}},
    }
    write(
        root,
        "INSERT INTO session_nodes VALUES (?, ?, ?, 1)",
        *(
            (key, name, json.dumps(entries[name]) if name in entries else "{")
            for name, key in sessions.items()
        ),
        name=agent,
    )
    write(root, "INSERT INTO session_windows VALUES (?, ?)", ("s-old", sessions["s-group"]), name=agent)
    write(root, "INSERT INTO session_transcript_archives VALUES ('s-gone', x'00')", (), name=agent)
    about = {"chat_id": "telegram:-100123", "sender": "7"}
    framed = (
        "Conversation info (untrusted metadata):\n```json\n" + json.dumps(about, indent=2) + "\n```\n\n"
        'Sender (untrusted metadata):\n```json\n{"label": "Jane (7)", "name": "Jane"}\n```\n\n'
        "[Thu 2026-01-01 09:00 UTC] [1] 우유 사기\n"
        "Reply target of current user message (untrusted, for context):\n"
        '```json\n{"sender_label": "Bob", "name": "Bob", "body": "what?"}\n```'
    )
    said = [
        ("s-main", openclaw_event("a1", "user", "System: [2026-01-01 09:00:00 UTC] Online.\n\nhello")),
        ("s-main", openclaw_event("a2", "user", "[OpenClaw heartbeat poll]")),
        ("s-main", openclaw_event("a3", "assistant", [{"type": "text", "text": "NO_REPLY"}])),
        ("s-old", openclaw_event("b0", "user", "before", "2026-01-01T08:00:00.000Z")),
        ("s-group", openclaw_event("b1", "user", framed)),
        ("s-group", openclaw_event("b4", "toolResult", "output")),
        ("s-group", openclaw_event("b6", "user", "hello", sender="Eve")),
        ("s-direct", openclaw_event("c1", "user", "안녕하세요")),
        ("s-cron", openclaw_event("d1", "user", "due")),
        ("s-nobody", openclaw_event("e1", "user", "lost")),
        ("s-group", "[" * 100_000),
    ]
    packed = [("b2", "assistant"), ("b3", "user"), ("b5", "toolResult")]
    with closing(sqlite3.connect(root / agent)) as database, database:
        database.create_function("octet_length", 1, len, deterministic=True)
        for seq, (session, event) in enumerate(said):
            text = event if isinstance(event, str) else json.dumps(event)
            database.execute(
                "INSERT INTO transcript_events VALUES (?, ?, ?, ?, NULL, NULL)", (session, seq, text, seq)
            )
        for seq, (name, role) in enumerate(packed, 100):
            navigation = json.dumps({"navigation": {"id": name, "message": {"role": role}}})
            database.execute(
                "INSERT INTO transcript_events VALUES ('s-group', ?, NULL, ?, x'28b52ffd', ?)",
                (seq, seq, navigation),
            )
        database.executemany(
            "INSERT INTO session_transcript_fts VALUES (?, ?, ?, ?, ?)",
            [
                ("hello", "s-main", "a1", "user", 1_767_258_001_000.0),
                ("word " * 500, "s-group", "b2", "assistant", 1_767_258_002_000.0),
            ],
        )
    daily = {"kind": "every", "everyMs": 86_400_000}
    jobs = [
        {
            "id": "job-1", "schedule": daily, "payload": {"kind": "agentTurn", "message": "brief"},
            "delivery": {"mode": "announce", "channel": "telegram", "to": "-100123"},
        },
        {"id": "job-2", "schedule": daily, "payload": {"kind": "heartbeat"}},
        {
            "id": "job-3", "schedule": daily, "declarationKey": "memory-core:memory-dreaming-promotion",
            "payload": {"kind": "agentTurn", "message": "promote"},
        },
        {
            "id": "job-4", "schedule": daily, "agentId": "work",
            "payload": {"kind": "agentTurn", "message": "x"},
        },
        {
            "id": "job-5", "schedule": daily, "trigger": {"script": "return true"},
            "payload": {"kind": "agentTurn", "message": "x"},
        },
    ]  # fmt: skip
    write(
        root,
        "INSERT INTO cron_jobs VALUES ('k', ?, 1, ?)",
        *((job["id"], json.dumps(job)) for job in jobs),
        ("job-6", "[" * 100_000),
        name=state,
    )
    return root


def test_a_home_of_openclaw_2026_9_comes_out_of_its_databases(home, openclaw_2026_9, capsys):
    before = state_of(openclaw_2026_9)
    found = moved(home, capsys, "openclaw", str(openclaw_2026_9))
    assert state_of(openclaw_2026_9) == before
    assert {one["folder"]: (one["chat"], one["messages"]) for one in found["groups"]} == {
        "main": ("local:main", 1),
        "telegram-100123": ("tg:-100123", 4),
        "whatsapp-4912345": ("4912345@s.whatsapp.net", 1),
        "matrix-AbC-example-org": ("matrix:!AbC:example.org", 0),
    }
    assert rows(home, "SELECT content FROM messages WHERE chat_jid = 'local:main'") == [("hello",)]
    group = "SELECT sender_name, content FROM messages WHERE chat_jid = 'tg:-100123' ORDER BY sent_ms"
    assert rows(home, group) == [
        ("Eve", "hello"),  # at the time at which it was written
        ("someone", "before"),
        ("Jane", "[1] 우유 사기"),
        ("Andy", "word " * 500),
    ]
    assert rows(home, "SELECT sender_name FROM messages WHERE content = '안녕하세요'") == [("Bob (@bob)",)]
    assert ("Family",) in rows(home, "SELECT name FROM registered_groups")
    assert rows(home, "SELECT group_folder, prompt FROM scheduled_tasks") == [("telegram-100123", "brief")]
    left = "\n".join(found["left"])
    for reason in (
        "1 conversations of jobs",
        "2 messages between OpenClaw",
        "1 long messages",
        "1 conversations in agents/main/agent/openclaw-agent.sqlite that were",
        "job-4: it is of the agent 'work'",
        "job-5: a script",
        "1 jobs that cannot be read",
    ):
        assert reason in left
    assert "job-3" not in left
    again = moved(home, capsys, "openclaw", str(openclaw_2026_9))
    assert all((one["messages"], one["notes"], one["tasks"]) == (0, [], []) for one in again["groups"])


@pytest.mark.parametrize("name", ["agents/main/agent/openclaw-agent.sqlite", "state/openclaw.sqlite"])
@pytest.mark.parametrize("made", ["broken", "other tables", "a link"])
def test_a_database_of_openclaw_that_cannot_be_read_is_left(
    home, openclaw_2026_9, name, made, tmp_path, capsys
):
    path = openclaw_2026_9 / name
    if made == "broken":
        path.write_bytes(b"broken" * 10_000)
    elif made == "a link":
        path.rename(tmp_path / "elsewhere.sqlite")
        path.symlink_to(tmp_path / "elsewhere.sqlite")
        fill(openclaw_2026_9, {"agents/main/sessions/sessions.json": "{}"})
    else:
        path.unlink()
        write(openclaw_2026_9, "CREATE TABLE x (y)", name=name)
    found = moved(home, capsys, "openclaw", str(openclaw_2026_9))
    assert found["groups"][0]["notes"] == ["MEMORY.md"]
    if made == "broken":
        assert f"{name}: " in "\n".join(found["left"])


def test_what_files_and_databases_of_openclaw_both_have_comes_once(home, openclaw_2026_9, capsys):
    fill(
        openclaw_2026_9,
        {
            "agents/main/sessions/sessions.json": json.dumps(
                {
                    "agent:main:telegram:group:-100123:topic:4": {"sessionId": "s-topic"},
                    "agent:main:telegram:group:-100123": {"sessionId": "s-group"},
                }
            ),
            "agents/main/sessions/s-topic-topic-4.jsonl": json.dumps(openclaw_event("t1", "user", "a topic")),
            "agents/main/sessions/s-group.jsonl": json.dumps(openclaw_event("b1", "user", "우유 사기")),
            "agents/main/sessions/s-x.jsonl.reset.2026-01-01T00-00-00.000Z": "{}",
        },
    )
    found = moved(home, capsys, "openclaw", str(openclaw_2026_9))
    groups = {one["folder"]: one for one in found["groups"]}
    assert groups["telegram-100123"]["messages"] == 5
    assert "1 conversations in agents/main/sessions that were restarted" in "\n".join(found["left"])


@pytest.mark.parametrize("program", ["openclaw", "nanobot"])
def test_conversations_that_are_no_plain_text_do_no_harm(home, program, request, capsys):
    root = request.getfixturevalue(program)
    for path in root.rglob("*.jsonl"):
        with path.open("ab") as file:
            file.write(b"\n" + '{"caf\u00e9": 1}'.encode("latin-1") + b"\n\x00\xff\xfe\n" + b"[" * 300_000)
            file.write(b'\n{"type": "message", "message": 5, "role": ["user"], "content": {"a": 1}}\n')
    found = moved(home, capsys, program, str(root))
    assert [one["messages"] for one in found["groups"]][:2] == [2, 2]


@pytest.mark.parametrize("program", ["openclaw", "nanobot"])
def test_half_a_character_of_a_cut_text_does_not_end_an_import(home, program, request, capsys):
    """Programs in JavaScript cut texts in the middle of an emoji, and JSON may have the half."""
    root = request.getfixturevalue(program)
    for path in root.rglob("*.jsonl"):
        text = path.read_text()
        for whole in ('"hello group"', '"from telegram:42"'):
            text = text.replace(whole, r'"half \ud83d"')
        path.write_text(text)
    index = root / "agents/main/sessions/sessions.json"
    if index.exists():
        index.write_text(index.read_text().replace("telegram:group:-5", r"telegram:group:-5\ud83d"))
    moved(home, capsys, program, str(root))
    assert ("half ?",) in rows(home, "SELECT content FROM messages")
