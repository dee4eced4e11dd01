"""What all commands have in common for people: the times of their home, and where a group is named."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO, get_origin
from zoneinfo import ZoneInfo

import httpx
import httpx2
import pytest
import structlog
from cyclopts import App, Argument
from cyclopts.exceptions import UnusedCliTokensError

from orchestrator import __main__
from orchestrator.backup import group_export, make, move_in
from orchestrator.backup.archive import BackupContents
from orchestrator.base.clock import utc_stamp
from orchestrator.channels.voice import transcriber
from orchestrator.cli import activity, chat, demo, uninstall, voice, web, whatsapp
from orchestrator.cli import main as cli
from orchestrator.cli.client import AnswerLost, Client
from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.main import app
from orchestrator.cli.options import is_confirmed
from orchestrator.domain.dashboard import NotificationStatus
from orchestrator.domain.errors import AndyError, BadRequest, NotRunning, SettingError
from orchestrator.domain.values import Folder
from orchestrator.groups import registration
from orchestrator.home.directory import Home
from orchestrator.reports import costs
from orchestrator.store import audit
from orchestrator.store.board import worker_cycles
from orchestrator.store.database import Database
from orchestrator.store.groups import groups
from orchestrator.store.money.budgets import Period
from orchestrator.web import feature as web_feature
from tests.doubles.clock import FakeClock
from tests.support.reminders import put_reminder
from tests.support.store_harness import StoreHarness, a_message

HOME_ZONE = ZoneInfo("Asia/Seoul")
AT_MS = 1_795_372_200_000
"""2026-11-22 18:30 in UTC, 13:30 in New York, and 03:30 of the next day in Seoul."""
FAMILY = Folder("family")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something of each kind that has a time, in a home whose zone is not that of the machine."""
    (tmp_path / ".env").write_text("TZ=Asia/Seoul\n")
    (tmp_path / "groups").mkdir()
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr("orchestrator.base.clock.SystemClock.now_ms", lambda _: AT_MS)
    asyncio.run(_fill(tmp_path))
    logs = Home(tmp_path).logs
    (logs / "family").mkdir(parents=True)
    stamp = utc_stamp(AT_MS)
    (logs / "andy.log").write_text(
        json.dumps({"event": "host.started", "level": "info", "timestamp": stamp}) + "\n"
    )
    (logs / "family" / "20261122T183000Z-run1.log").write_text(f"{stamp} run.begun run=run1 group=family\n")
    return tmp_path


async def _fill(root: Path) -> None:
    database = await Database.open(root / "store" / "messages.db")
    harness = StoreHarness(database, clock=FakeClock(wall_ms=AT_MS))
    await harness.add_group("family", requires_trigger=False)
    await harness.intake.accept(a_message("what is new?", sent_ms=AT_MS))
    async with database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=AT_MS)
        family = await groups.known(tx, "family")
        await put_reminder(tx, family, text="stretch", due_ms=AT_MS, now_ms=AT_MS)
        await worker_cycles.begin(tx, FAMILY, "rules", trigger={}, now_ms=AT_MS)
        await audit.append(tx, audit.AuditEvent(at_ms=AT_MS, kind="model.asked", folder=FAMILY))
        await costs.set_budget(
            tx,
            costs.parse_amount("5usd"),
            period=Period.DAY,
            folder=None,
            is_background=False,
            now_ms=AT_MS,
        )
    await database.close()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("messages family", "11-23 03:30:00"),
        ("messages family --id 1", "11-23 03:30:00"),
        ("turns", "11-23 03:30:00"),
        ("cron list", "Mon 2026-11-23 03:30 "),
        ("audit", "11-23 03:30:00"),
        ("audit FAMILY", "11-23 03:30:00"),
        ("budget list", "Tue 2026-11-24 00:00"),
        ("usage", "Tue 2026-11-24 00:00"),
        ("dashboard worker --limit 5 family", "2026-11-23 03:30:00"),
        ("dashboard notifications family", "2026-11-23 03:30 "),
        ("logs", "2026-11-23 03:30:00 [info] host.started"),
        ("logs family", "11-23 03:30:00 run.begun"),
    ],
)
def test_people_are_told_the_time_of_their_home(home, capsys, line, told):
    app([*line.split(), "--home", str(home)], result_action="return_value")

    said = capsys.readouterr().out
    assert told in said
    assert [other for other in ("18:30", "13:30", "+09:00", "15:00") if other in said] == []


def test_groups_are_listed_with_the_name_that_calls_the_assistant(home, capsys, monkeypatch):
    monkeypatch.setenv("ASSISTANT_NAME", "Botty")
    changed = ["groups", "change", "family", "--trigger", "@house", "--requires-trigger"]
    app([*changed, "--home", str(home)], result_action="return_value")
    app(["groups", "list", "--home", str(home)], result_action="return_value")
    said = capsys.readouterr().out
    assert ("@Botty or @house" in said, "@Andy" in said) == (True, False)


def test_what_is_hidden_in_names_is_shown_where_people_and_chats_are_listed(home, capsys):
    """Two who look alike are told apart: whoever names themselves as another has a role of their own."""
    with closing(sqlite3.connect(Home(home).database)) as connection, connection:
        connection.execute("UPDATE group_people SET name = 'Ja\u200bne', address = 'local:ja\u200bne'")
        connection.execute("UPDATE chats SET name = 'Fam\u200bily'")

    for line in ("groups people family", "groups chats"):
        app([*line.split(), "--home", str(home)], result_action="return_value")
    said = capsys.readouterr().out
    with pytest.raises(BadRequest) as refused:
        app(
            ["groups", "people", "family", "Jane", "owner", "--home", str(home)], result_action="return_value"
        )

    assert "Ja\\u200bne" in said
    assert "Fam\\u200bily" in said
    assert "Ja\\u200bne" in str(refused.value)
    assert "\u200b" not in said + str(refused.value)


def test_where_nothing_is_noted_of_people_that_is_said(home, capsys):
    app(["context", "people", "family", "--home", str(home)], result_action="return_value")

    assert capsys.readouterr().out.startswith("There are no notes about people in 'family'")


@pytest.mark.parametrize(
    ("size", "text"),
    [(1, "1 kB"), (999_001, "1000 kB"), (1_000_000, "1.0 MB"), (2_345_678_900, "2,345.7 MB")],
)
def test_a_backup_says_its_size_in_kilobytes_or_megabytes(size, text):
    result = make.BackupResult(path=None, bytes=size, contents=BackupContents(files=2), left_out=())
    assert make.summary_lines(result) == [f"The backup: 2 files, {text} packed."]


def test_one_thing_is_no_plural():
    export = {"path": "family-export", "messages": 1, "files": {"README.md": 1}, "left_out": []}
    group = {"folder": "family", "is_new": False, "chat": "c", "messages": 1, "notes": ["n"], "tasks": ["t"]}

    assert group_export.summary_lines(export) == ["family-export: 1 message, 1 file, 1 kB."]
    assert move_in.summary_lines({"is_dry_run": False, "groups": [group], "left": []}) == [
        "family, c: 1 message, 1 note, 1 task came."
    ]


def test_roles_are_given_by_address_and_shown_with_their_rules(home, capsys):
    def run(line: str) -> str:
        app([*line.split(), "--home", str(home)], result_action="return_value")
        return capsys.readouterr().out

    people = run("groups people family local:jane guest")
    assert [line.split()[:3] for line in people.splitlines()[1:]] == [
        ["local:jane", "Jane", "guest"],
        ["*", "everybody", "else"],
    ]
    rules = run("groups rules family guest mcp yes")
    assert next(line for line in rules.splitlines() if "/clear" in line).split()[-3:] == ["yes", "no", "no"]
    assert json.loads(run("groups config family --json")) == {
        "people": {"local:jane": "guest"},
        "roles": {"guest": {"mcp": True}},
    }
    with pytest.raises(BadRequest, match=r"a role goes to an address, never to a name.*local:jane \(Jane\)"):
        run("groups people family Jane owner")
    for wrong in ("people family local:jane", "rules family guest", "rules family guest spend yes"):
        with pytest.raises(UsageError):
            run(f"groups {wrong}")


def test_times_are_in_the_zone_with_which_andy_runs(home, capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Home(home).address_file.write_text(f"http://127.0.0.1:{listener.getsockname()[1]}")
        Home(home).zone_file.write_text("America/New_York")
        app(["turns", "--home", str(home)], result_action="return_value")
        assert "11-22 13:30:00" in capsys.readouterr().out

    app(["turns", "--home", str(home)], result_action="return_value")
    assert "11-23 03:30:00" in capsys.readouterr().out, "it was killed, and nobody took the file away"


@pytest.mark.parametrize(
    ("line", "stamp"),
    [
        ("dashboard notifications family --json", "2026-11-23T03:30:00+09:00"),
        ("logs --raw", "2026-11-22T18:30:00.000Z"),
        ("logs family --raw", "2026-11-22T18:30:00.000Z"),
    ],
)
def test_machines_are_given_whole_times(home, capsys, line, stamp):
    app([*line.split(), "--home", str(home)], result_action="return_value")

    assert stamp in capsys.readouterr().out


def test_the_connection_of_whatsapp_is_told_in_that_time_too():
    found = dict.fromkeys(("account", "advice", "last_disconnect", "last_error", "last_pairing"), "")
    times = ("connected_since_ms", "last_receipt_ms", "last_message_ms", "last_disconnect_ms", "next_try_ms")
    rows = {**found, "state": "connected", "is_running": True, **dict.fromkeys(times, AT_MS)}

    said = "\n".join(whatsapp.status_lines(rows, zone=HOME_ZONE))

    assert said.count("2026-11-23 03:30:00") == len(times)


def commands(found: App = app, *path: str) -> Iterator[tuple[str, App]]:
    """Every command that can be given, with its words."""
    if found.default_command is not None and path:
        yield " ".join(path), found
    for name in found:
        if not name.startswith("-"):
            yield from commands(found[name], *path, name)


def is_one_group(argument: Argument) -> bool:
    """Whether it is the option of one group; where several may be named, none has a place of its own."""
    return "--group" in argument.names and get_origin(argument.hint) is not tuple


BY_OPTION_ALONE = {"mcp add"}
"""Commands in which what stands before the group can be left out."""
OF_A_GROUP = {
    words: [one.name for one in found.assemble_argument_collection() if one.required]
    for words, found in commands()
    if words not in BY_OPTION_ALONE and any(is_one_group(one) for one in found.assemble_argument_collection())
}


@pytest.mark.parametrize("command", OF_A_GROUP)
def test_a_group_is_named_with_or_without_its_option(command):
    """It stands after what else has a place."""
    needed = [
        word for name in OF_A_GROUP[command] for word in (("--per", "day") if name == "--per" else ("x",))
    ]
    parse = partial(app.parse_args, exit_on_error=False, print_error=False)

    _, plain, _ = parse([*command.split(), *needed, "family"])
    _, named, _ = parse([*command.split(), *needed, "--group", "family"])

    assert plain.arguments["group"] == named.arguments["group"] == "family"
    with pytest.raises(UnusedCliTokensError):
        parse([*command.split(), *needed, "family", "--group", "family"])


def test_the_commands_of_one_group_are_found():
    assert {"cron list", "dashboard answer", "events", "audit", "budget set"} <= set(OF_A_GROUP)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("sttus",), "There is no command 'sttus'. Did you mean 'andy status'?"),
        (("groups", "config", "family", "--set", "{"), "This is no JSON"),
        (("groups", "config", "family", "--set", "[" * 100_000), "This is no JSON"),
        (("groups", "register", "new", "--config", "[]"), "This is no JSON object"),
        (("audit", "--since", "lately"), "'lately' is no time"),
        (("search", "dentist", "--since", "lately"), "'lately' is no time"),
        (("budget", "set", "much", "--per", "day"), "'much' is no amount"),
        (("tasks", "add", "family", "What is on?"), "Say when, with one of --cron, --every and --at"),
        (("tasks", "add", "family", "What?", "--every", "1d", "--at", "9am"), "Only one of --cron, --every"),
        (("turns", "--limit", "many"), "Invalid value for --limit"),
    ],
)
def test_words_that_cannot_be_read_exit_with_two_whenever_that_is_found(
    home, monkeypatch, capsys, words, told
):
    monkeypatch.setattr("sys.argv", ["andy", *words, *(("--home", str(home)) if len(words) > 1 else ())])

    with pytest.raises(SystemExit) as exited:
        cli.main()

    assert exited.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("andy: ")
    assert len(said.splitlines()) == 1
    assert told in said


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("version", "'andy --version'"),
        ("stop", "Ctrl-C in the terminal of 'andy up'"),
        ("restart", "docker compose restart andy"),
        ("config", "into .env"),
        ("upgrade", "git pull"),
        ("model", "andy models use"),
        ("key", "ANTHROPIC_API_KEY"),
        ("unpair", "andy channels remove whatsapp"),
        ("statsu", "Did you mean 'andy status'?"),
        ("message", "'andy messages family'"),
    ],
)
def test_a_word_that_is_no_command_is_answered_by_what_serves_its_purpose(monkeypatch, capsys, word, told):
    monkeypatch.setattr("sys.argv", ["andy", word])

    with pytest.raises(SystemExit) as exited:
        cli.main()

    (line,) = capsys.readouterr().err.splitlines()
    assert exited.value.code == 2
    assert line.startswith(f"andy: There is no command '{word}'. ")
    assert told in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("unregister", "work"), "'andy groups remove work'"),
        (("message", "--group", "work"), "'andy messages work'"),
        (("remind", "work", "bins out"), "'andy reminders add work "),
        (("register", "chess"), "'andy groups register chess'"),
        (("unregister", "../work"), "'andy groups remove family'"),
        (("remind", "buy milk"), "'andy reminders add family "),
    ],
)
def test_a_hint_names_the_group_that_was_meant(tmp_path, monkeypatch, capsys, words, told):
    (tmp_path / "groups" / "work").mkdir(parents=True)
    monkeypatch.setenv("ANDY_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["andy", *words])

    with pytest.raises(SystemExit):
        cli.main()

    assert told in capsys.readouterr().err


def test_a_word_that_resembles_nothing_gets_no_suggestion(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["andy", "frobnicate"])

    with pytest.raises(SystemExit):
        cli.main()

    assert capsys.readouterr().err == "andy: There is no command 'frobnicate'. See 'andy --help'.\n"


@pytest.mark.parametrize("words", [("status",), ("groups", "register")])
def test_help_before_a_command_shows_its_page(monkeypatch, capsys, words):
    pages = []
    for line in (("help", *words), (*words, "--help")):
        monkeypatch.setattr("sys.argv", ["andy", *line])
        with pytest.raises(SystemExit) as exited:
            cli.main()
        assert exited.value.code == 0
        pages.append(capsys.readouterr().out)

    assert pages[0] == pages[1] != ""


def test_a_reader_who_goes_away_ends_a_command_without_a_word():
    done = subprocess.run(
        [sys.executable, "-c", GONE], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [("status", "--help"), ("--help",), ("--version",), ("messages", "family")])
def test_a_closed_pipe_ends_a_command_with_0_and_without_a_word(home, words):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as gone:
        done = in_a_process(home, words, gone)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [("status", "--help"), ("--help",), ("--version",), ("messages", "family")])
def test_output_that_cannot_be_written_is_an_error_of_one_line(home, words):
    with Path("/dev/full").open("w") as full:
        done = in_a_process(home, words, full)

    assert done.returncode == 1
    assert (
        done.stderr
        == "andy: The output cannot be written (No space left on device): make room, and try again.\n"
    )


def in_a_process(home: Path, words: tuple[str, ...], out: TextIO) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "orchestrator", *words],
        env={**os.environ, "ANDY_HOME": str(home)},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


GONE = """
from orchestrator.cli.exit_codes import exit_after
def gone():
    raise ExceptionGroup("tasks", [ExceptionGroup("more", [BrokenPipeError()])])
exit_after(gone)
"""
"""A command whose output nobody reads any more, as with `andy demo | head -3`: the error leaves its tasks."""

TOO_LARGE = "9" * 30
"""A whole number that SQLite cannot keep."""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("messages",), "andy: 'andy messages' needs GROUP: A group, by its folder name"),
        (
            ("reminders", "add", "family", "bins"),
            "andy: 'andy reminders add' needs --at: The time: 'in 2 hours'",
        ),
        (("reminders", "add", "family", "bins", "--at"), "--at requires an argument."),
        (("turns", "family", "jon"), "There are too many arguments: 'jon'. See 'andy turns --help'."),
        (("loop", "list"), "See 'andy loop --help'."),
        (("logs", "--json"), "Unknown option: --json. See 'andy logs --help'."),
        (("--json", "status"), "See 'andy --help'. Options stand after the command."),
        (("messages", "family", "--limit", TOO_LARGE), "for --limit"),
        (("messages", "family", "--limit", "0"), "Must be >= 1"),
        (("approvals", "allow", TOO_LARGE), "The number is too large"),
        (("turns", "--id", TOO_LARGE), "The number is too large"),
        (("chat", "family", "-m", "hi", "--wait", "nan"), "for --wait"),
        (("chat", "family", "-m", "hi", "--wait", "-1"), "Must be >= 0"),
        (("logs", "-n", "-4"), "Must be >= 0"),
        (("budget", "set", "-3usd", "--per", "day"), "'-3usd' is negative: write it without the '-'."),
        (("budget", "show"), "There is no command 'budget show'. Did you mean 'andy budget list'?"),
        (
            ("groups", "add", "family"),
            "There is no command 'groups add'. Did you mean 'andy groups register'?",
        ),
        (("tasks", "remove", "3"), "Did you mean 'andy tasks cancel'?"),
        (("budget", "lst"), "Did you mean 'andy budget list'?"),
        (("budget", "frobnicate"), "There are: list, set, remove. See 'andy budget --help'."),
    ],
)
def test_what_fits_no_command_is_told_in_one_line_that_names_its_help(home, monkeypatch, capsys, words, told):
    monkeypatch.setenv("ANDY_HOME", str(home))
    monkeypatch.setattr("sys.argv", ["andy", *words])

    with pytest.raises(SystemExit) as exited:
        cli.main()

    said = capsys.readouterr()
    assert (exited.value.code, said.out) == (2, "")
    assert said.err.startswith("andy: ")
    assert len(said.err.splitlines()) == 1
    assert told in said.err


@pytest.mark.parametrize(
    "words",
    [
        ("messages", "main"),
        ("nodes",),
        ("budget", "set", "5usd", "--per", "day"),
        ("groups", "config", "main", "--set", "{}"),
        ("tasks", "add", "main", "hi", "--at", "2027-01-01"),
        ("loop", "pause", "main"),
        ("notices", "cancel", "main", "3"),
        ("dashboard", "answer", "3", "yes"),
        ("context", "restore", "main", "context-1.json"),
    ],
)
def test_a_home_that_is_mistyped_is_told_and_not_made(tmp_path, monkeypatch, capsys, words):
    mistyped = tmp_path / "hoem"
    monkeypatch.setattr("sys.argv", ["andy", *words, "--home", str(mistyped)])

    with pytest.raises(SystemExit) as exited:
        cli.main()

    said = capsys.readouterr()
    assert exited.value.code == 1
    assert f"There is no database at {mistyped}" in said.err
    assert len(said.err.splitlines()) == 1
    assert not mistyped.exists()


@pytest.mark.parametrize(
    "words",
    [
        ("status", "--home", "~nobody-here/andy"),
        ("backup", "~nobody-here/b.tar.gz"),
        ("restore", "~nobody-here/b.tar.gz"),
        ("export", "family", "--to", "~nobody-here/family"),
        ("import", "nanobot", "~nobody-here/nanobot"),
    ],
)
def test_the_home_directory_of_an_unknown_user_is_told_in_one_line(home, monkeypatch, capsys, words):
    monkeypatch.setenv("ANDY_HOME", str(home))
    monkeypatch.setattr("sys.argv", ["andy", *words])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    assert exited.value.code == 1
    assert "of a user who is not known" in capsys.readouterr().err


def test_a_directory_that_was_removed_is_told_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("ANDY_HOME", raising=False)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr("sys.argv", ["andy", "status"])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    assert exited.value.code == 1
    assert "has been removed" in capsys.readouterr().err


def test_an_interruption_before_the_command_has_begun_ends_without_a_traceback(monkeypatch):
    """Modules are imported for half of the time that a short command takes."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.argv", ["andy", "groups", "list"])
    monkeypatch.setattr(cli, "main", interrupted)

    with pytest.raises(SystemExit) as exited:
        __main__.main()

    assert exited.value.code == 130


def test_an_error_does_not_fill_the_terminal_with_what_was_typed(home, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["andy", "groups", "register", "x" * 100_000, "--home", str(home)])

    with pytest.raises(SystemExit) as exited:
        cli.main()

    said = capsys.readouterr().err
    assert exited.value.code == 1
    assert len(said) < 2_000
    assert said.endswith("the first a letter or digit.\n")


# What chats and agents wrote is shown, and never obeyed

HOSTILE = "hi\x1b]52;c;ZXZpbA==\x07\x9b2J\r\nFORGED \u202ex"
CHOSEN_BY_OTHERS = ("text", "name", "sender_name", "prompt", "message", "title", "question", "context")


def given(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    """Run the command line with these words."""
    monkeypatch.setattr("sys.argv", ["andy", *words])
    with suppress(SystemExit):
        cli.main()


def is_harmless(said: str) -> bool:
    return all(one.isprintable() or one in "\n\t" for one in said)


@pytest.mark.parametrize("words", [words for words, _ in commands()])
def test_no_command_prints_what_a_terminal_obeys(monkeypatch, capsys, words):
    def show() -> None:
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        raise BadRequest(HOSTILE)

    monkeypatch.setattr(dict(commands())[words], "default_command", show)

    given(monkeypatch, *words.split())

    said = capsys.readouterr()
    assert "\\u001b]52" in said.out
    assert said.err.count("\\u001b]52") == 2
    assert is_harmless(said.out + said.err)


@pytest.mark.parametrize(
    "words",
    [
        *("messages family", "messages family --id 1", "messages family --json", "groups list", "cron list"),
        *("tasks list", "turns", "dashboard show family", "dashboard tasks family", "context show family"),
    ],
)
def test_no_text_of_a_chat_passes_for_a_line_of_its_own(home, monkeypatch, capsys, words):
    with closing(sqlite3.connect(home / "store" / "messages.db")) as database, database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for _, column, kind, *_ in database.execute(f"PRAGMA table_info({table})").fetchall():
                if kind == "TEXT" and column in CHOSEN_BY_OTHERS:
                    with suppress(sqlite3.IntegrityError):  # only some of its own words are taken there
                        database.execute(f"UPDATE {table} SET {column} = ?", (HOSTILE,))

    given(monkeypatch, *words.split(), "--home", str(home))

    said = capsys.readouterr()
    assert said.err == ""
    assert said.out
    assert is_harmless(said.out)
    assert [line for line in said.out.splitlines() if line.startswith("FORGED")] == []


def test_a_reply_in_a_conversation_passes_for_nobody_elses_words(home, monkeypatch, capsys):
    async def events(_):
        yield {"kind": "message.sent", "group": "family", "message": "m"}

    def text(*_):
        return "done\nMia: pay 500"

    monkeypatch.setattr(chat, "text_of", text)
    asyncio.run(chat._show_sent(SimpleNamespace(events=lambda: events(None)), Home(home), "family"))

    assert capsys.readouterr().out == "Andy: done\n      Mia: pay 500\n"


def test_a_damaged_store_is_named_in_one_line(home, monkeypatch, capsys):
    store = home / "store" / "messages.db"
    with closing(sqlite3.connect(store)) as database:
        (size,) = database.execute("PRAGMA page_size").fetchone()
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages'").fetchone()
    with store.open("r+b") as pages:
        pages.seek((page - 1) * size)
        pages.write(b"\xff" * size)

    given(monkeypatch, "messages", "family", "--home", str(home))

    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert line.startswith(f"andy: The database {store} is damaged")
    assert "andy restore" in line


@dataclass
class WaitingHost:
    """A running Andy whose chat is told something before the message is answered, as `andy chat` sees it."""

    place: dict[str, Any]
    found: dict[str, Any]
    losses: int = 0
    keys: list[str] = field(default_factory=list)
    shown: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def of(self, home: Home) -> AsyncIterator[WaitingHost]:
        del home
        yield self

    async def events(self, *, group: str) -> AsyncGenerator[dict[str, Any]]:
        yield {}
        for event in (
            {"kind": "message.sent", "group": group, "message": "of the reply", "turn": 7},
            {"kind": "turn.started", "group": group, "turn": 7},
            {"kind": "message.sent", "group": group, "message": "a sign"},
        ):
            yield event
        self.shown.set()
        await asyncio.Event().wait()

    async def say(self, group: str, text: str, *, key: str, **_: object) -> dict[str, Any]:
        self.keys.append(key)
        if len(self.keys) <= self.losses:
            raise NotRunning from AnswerLost("the host was killed")
        return self.place

    async def find(self, message_id: str, *, wait_seconds: float) -> dict[str, Any]:
        assert (message_id, wait_seconds > 0) == ("M1", True)
        await self.shown.wait()
        return self.found


PLACE = {"id": "M1", "group": "family", "outcome": "queued", "turn": 7, "place": 1}


def say_to(host: WaitingHost, monkeypatch: pytest.MonkeyPatch, *, wait: float = 60.0) -> int:
    def text_of(home: Home, message_id: str) -> str:
        del home
        return f"⏳ {message_id}"

    monkeypatch.setattr(chat, "Client", host)
    monkeypatch.setattr(chat, "text_of", text_of)
    monkeypatch.setattr(chat, "RETRY_SECONDS", 0.0)
    return chat.chat("family", message="hi", wait=wait)


def test_who_waits_in_a_terminal_sees_what_the_chat_is_told_meanwhile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = WaitingHost(PLACE, {**PLACE, "outcome": "answered", "reply": "Hello."})
    assert say_to(host, monkeypatch) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("Hello.\n", "⏳ a sign\n"), "the reply of the turn itself stands once"


@pytest.mark.parametrize(
    ("place", "found", "wait", "code", "says"),
    [
        (PLACE, {**PLACE, "outcome": "failed", "reply": "⚠️ No."}, 60, 1, "⚠️ No."),
        (PLACE, {**PLACE, "place": 2, "joined": 1}, 60, 4, "(Waiting, place 2, answered with 1 message "),
        (PLACE, {**PLACE, "outcome": "running"}, 60, 4, "(running; see it with"),
        (
            {**PLACE, "outcome": "answered"},
            {**PLACE, "outcome": "answered", "reply": "There are no open questions."},
            60,
            0,
            "There are no open questions.",
        ),
        ({**PLACE, "outcome": "answered"}, {}, 0, 0, "(answered; see it with: andy messages family)"),
        ({**PLACE, "joined": 2}, {}, 0, 0, "(Waiting, place 1, answered with 2 messages before it."),
        ({**PLACE, "outcome": "ignored", "reason": "muted"}, {}, 60, 5, "(Not for Andy: muted.)"),
    ],
)
def test_the_exit_code_tells_what_came_of_a_message(
    place: dict[str, Any],
    found: dict[str, Any],
    wait: float,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert say_to(WaitingHost(place, found), monkeypatch, wait=wait) == code
    assert capsys.readouterr().out.startswith(says)


def test_a_message_is_sent_again_with_its_key_where_the_host_ends_before_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = WaitingHost(PLACE, {**PLACE, "outcome": "answered", "reply": "Hello."}, losses=2)
    assert say_to(host, monkeypatch) == 0
    assert (len(host.keys), len(set(host.keys))) == (3, 1)


def test_a_conversation_ends_in_one_line_once_andy_has_ended(tmp_path, monkeypatch):
    """Also where the connection breaks off, and not only where the events end in good order."""
    home = Home(tmp_path)
    home.make()
    home.address_file.write_text("http://127.0.0.1:1")
    home.token()

    async def opens(*_: object) -> None:
        """Nothing is listening."""

    async def breaks_off(_: object) -> AsyncGenerator[dict[str, Any]]:
        yield {}
        raise httpx.ReadError("the host was killed")

    async def ends(_: object) -> AsyncGenerator[dict[str, Any]]:
        yield {}

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(chat, "_lines_of_terminal", asyncio.StreamReader)
    monkeypatch.setattr(chat.Client, "open_chat", opens)
    for events in (breaks_off, ends):
        monkeypatch.setattr(chat.Client, "events", events)
        with pytest.raises(NotRunning):
            asyncio.run(chat._converse(tmp_path, "main", sender="you"))


def first_line_of_terminal(monkeypatch: pytest.MonkeyPatch, read: Callable[..., bytes]) -> bytes:
    """The first line that `andy chat` takes from a terminal whose bytes `read` gives or refuses."""

    async def first_line() -> bytes:
        return await chat._lines_of_terminal().readline()

    reader, writer = os.pipe()
    with os.fdopen(reader) as source, os.fdopen(writer, "w") as other_end:
        other_end.write("\n")
        other_end.flush()
        monkeypatch.setattr("sys.stdin", source)
        monkeypatch.setattr(chat.os, "read", read)
        return asyncio.run(first_line())


def test_a_terminal_that_has_nothing_to_read_after_all_does_not_end_the_conversation(monkeypatch):
    answers = [BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), b"hello\n"]

    def read(*_: object) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert first_line_of_terminal(monkeypatch, read) == b"hello\n"


def test_a_conversation_at_a_terminal_that_is_gone_has_no_further_lines(monkeypatch):
    reads = []

    def gone(*_: object) -> bytes:
        reads.append("one")
        if len(reads) == 1:
            raise OSError(errno.EIO, "Input/output error")
        return b""

    assert first_line_of_terminal(monkeypatch, gone) == b""
    assert reads == ["one"]


@pytest.mark.parametrize(
    "error",
    [httpx2.ProxyError("407 Proxy Authentication Required"), RuntimeError("broken off"), OSError("no")],
)
def test_a_model_for_voice_notes_that_cannot_be_downloaded_is_named_with_the_other_way(
    tmp_path, monkeypatch, error
):
    def download(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setitem(sys.modules, "faster_whisper", SimpleNamespace(download_model=download))
    with pytest.raises(voice.VoiceNotReady, match=rf"{error}. Have a copy\? andy voice install --from"):
        voice._download("base", tmp_path)


def test_a_line_of_a_pipe_that_is_no_utf_8_loses_no_other(monkeypatch):
    said = []

    async def say(_: object, __: object, text: str, **___: object) -> int:
        said.append(text)
        return 0

    monkeypatch.setattr(chat, "_say", say)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\nhello\n"), encoding="utf-8"))
    assert chat.chat("main") == 0
    assert said == ["caf\ufffd", "hello"]


def test_ctrl_d_at_a_question_ends_a_command_in_one_line(home, monkeypatch, capsys):
    def no_more(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", no_more)
    monkeypatch.setattr("sys.argv", ["andy", "context", "reset", "family", "--home", str(home)])
    with pytest.raises(SystemExit) as exited:
        cli.main()
    assert exited.value.code == 1
    assert "nothing more is done" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [("hooks", "add", "family", "--name", "door"), ("calendar", "add", "family")]
)
def test_an_address_that_cannot_be_shown_is_not_made(home, monkeypatch, capsys, words):
    (home / ".env").write_text("ANDY_PORT=x\n")
    with pytest.raises(SettingError):
        app([*words, "--home", str(home)], result_action="return_value")
    (home / ".env").unlink()
    capsys.readouterr()
    app([words[0], "list", "--json", "--home", str(home)], result_action="return_value")
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("has_browser", [True, False])
def test_without_a_browser_the_console_says_what_to_do_with_its_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_browser: bool
) -> None:
    async def address(_: Path | None) -> str:
        return "http://127.0.0.1:8731/console/sign-in#code"

    monkeypatch.setattr(web, "_console_address", address)
    monkeypatch.setattr("webbrowser.open", lambda _: has_browser)
    web.open_console()
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("The console opens" if has_browser else "No browser was found here.")
    assert has_browser or "ssh -L 8731:127.0.0.1:8731" in first
    assert rest == ([] if has_browser else ["http://127.0.0.1:8731/console/sign-in#code"])
    web.open_console(browser=False)
    assert capsys.readouterr().out == "http://127.0.0.1:8731/console/sign-in#code\n"


def test_pairing_says_that_whatsapp_is_off():
    error = {"error": {"code": "not_found", "message": "There is nothing at /whatsapp/pair."}}
    transport = httpx.MockTransport(lambda _: httpx.Response(404, json=error))

    async def pair() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://andy") as http:
            await Client(http).ask_to_pair("")

    with pytest.raises(AndyError, match="WhatsApp is off in ANDY_CHANNELS"):
        asyncio.run(pair())


def test_uninstall_names_no_folder_that_its_lines_would_remove_besides(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "andy").mkdir(parents=True)
    home = Home(tmp_path / "my andy")
    home.make()
    told = "\n".join(uninstall._remaining_lines(home))
    assert f"rm -r '{home.root}'" in told
    assert f"rm -r {tmp_path}/config/andy" in told


def test_uninstall_names_a_clone_that_is_its_own_home_once(tmp_path, monkeypatch):
    home = Home(tmp_path)
    home.make()
    monkeypatch.setattr(uninstall.installation, "command_to_remove", lambda: f"rm -r {tmp_path}")
    lines = [line for line in uninstall._remaining_lines(home) if f"rm -r {tmp_path}" in line]
    assert [line.split("  ")[1] for line in lines] == ["messages, memory and settings, the program"]


def test_a_question_that_nobody_can_answer_names_the_option_after_the_name_of_the_program(
    monkeypatch, capsys
):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert not is_confirmed("Forget the conversation of 'family'?", yes=False)
    assert capsys.readouterr().err == "andy: Forget the conversation of 'family'? Add --yes to confirm.\n"


@pytest.mark.parametrize(("wanted", "other"), [(8700, 8701), (65_535, 65_534)])
def test_a_taken_port_is_refused_with_the_command_for_another(monkeypatch, wanted, other):
    def refuse(host, port):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))

    monkeypatch.setattr(web_feature, "listen", refuse)
    told = f"Port {wanted} of 127.0.0.1 is taken (Address already in use): choose another with ANDY_PORT"
    with (
        pytest.raises(AndyError, match=re.escape(f"{told} or 'andy up --port {other}'.")),
        web_feature.listen_locally(wanted),
    ):
        pytest.fail("it listens")


@pytest.mark.parametrize("status", [NotificationStatus.DELIVERED, None])
async def test_a_reminder_of_the_demo_that_is_sent_or_not_set_ends_no_demo_with_a_traceback(
    tmp_path, monkeypatch, status
):
    database = await Database.open(Home(tmp_path).database)
    async with database.transaction() as tx:
        await registration.ensure_main(tx, now_ms=1)
        group = await groups.known(tx, "main")
        if status is not None:
            await put_reminder(tx, group, text="the bread", due_ms=2, now_ms=1, status=status)
    await database.close()
    monkeypatch.setattr(demo, "STEP_SECONDS", 0)
    with pytest.raises(TimeoutError if status else demo.DemoFailed):
        await demo._wait_for_reminder(Home(tmp_path), asyncio.Queue())


def test_a_model_that_cannot_be_copied_is_said_in_a_line(tmp_path, monkeypatch):
    model = tmp_path / "model"
    model.mkdir()
    for name in transcriber.MODEL_FILES:
        (model / name).touch()

    def unreadable(source: str, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", source)

    monkeypatch.setattr(transcriber, "has_library", lambda: True)
    monkeypatch.setattr("shutil.copystat", unreadable)
    words = ["voice", "install", "--from", str(model), "--home", str(tmp_path / "home")]
    with pytest.raises(AndyError, match=r"model cannot be copied: .*Permission denied"):
        app(words, exit_on_error=False, print_error=False, result_action="return_value")


class EndingHost:
    """A running Andy that ends while a command shows what he does."""

    @asynccontextmanager
    async def of(self, home: Home) -> AsyncIterator[EndingHost]:
        del home
        yield self

    async def events(self, **_: object) -> AsyncGenerator[dict[str, Any]]:
        yield {}
        yield {"kind": "channel.pairing"}

    async def status(self) -> dict[str, Any]:
        return {}

    async def ask_to_pair(self, phone: str) -> dict[str, Any]:
        return {"state": "starting", "text": f"Asking for a code {phone}."}

    async def pairing(self) -> dict[str, Any]:
        return {"state": "starting", "text": "Asking for a code."}


def test_a_pairing_fails_when_andy_ends_meanwhile(home, monkeypatch):
    monkeypatch.setattr(whatsapp, "Client", EndingHost())
    monkeypatch.setattr(structlog, "configure", lambda **_: None)

    with pytest.raises(whatsapp.NotPaired, match="Andy has ended"):
        asyncio.run(whatsapp.pair_phone(home, phone="", moves_login_aside=False))


def test_following_events_fails_when_andy_ends(home, monkeypatch):
    async def events(**_: object) -> AsyncGenerator[dict[str, Any]]:
        yield {}

    host = EndingHost()
    monkeypatch.setattr(host, "events", events)
    monkeypatch.setattr("orchestrator.cli.client.Client", host)

    asyncio.run(activity._print_events(home, group=None, lines=1, follows=False, as_json=False))
    with pytest.raises(NotRunning, match="Andy has ended"):
        asyncio.run(activity._print_events(home, group=None, lines=1, follows=True, as_json=False))
