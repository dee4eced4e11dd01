"""The judges of a world report what a doctored record of a whole world has broken."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator.domain.errors import OutcomeUnknown
from orchestrator.domain.values import ChatJid, Folder, Group
from tests.simulation.judges import judge
from tests.simulation.messenger import Post
from tests.simulation.people import Fault, Plan, Said
from tests.simulation.world import World

FIRST, SECOND, OTHER = ChatJid("chirp:g0"), ChatJid("chirp:g0b"), ChatJid("flock:g1")
PLAN = Plan(
    seconds=200.0,
    groups=(
        Group(jid=FIRST, name="Group 0", folder=Folder("g0"), other_chats=(SECOND,)),
        Group(jid=OTHER, name="Group 1", folder=Folder("g1")),
    ),
    said=(
        Said(at_s=5.0, who="Jane", jid=FIRST, kind="echo", token="zq0x"),
        Said(at_s=15.0, who="Jane", jid=FIRST, kind="list", token="zq1x"),
        Said(at_s=25.0, who="Ali", jid=FIRST, kind="remind", token="zq2x", minutes=1),
        Said(at_s=35.0, who="Ali", jid=FIRST, kind="remind", token="zq3x", minutes=1),
        Said(at_s=45.0, who="Rosa", jid=OTHER, kind="echo", token="zq4x"),
        Said(at_s=55.0, who="Rosa", jid=OTHER, kind="long", token="zq5x"),
    ),
    faults=(),
    idle_ms=5_000,
    text_chars=500,
)
"""A plan of two chats of one group and one of another, in which nothing goes wrong."""
FAILURE = "⚠️ I could not answer this: It broke. Your next message tries again."
REFUSAL = "⚠️ I could not send an answer: The messenger refuses this message."


class Record:
    """The record of a world that was lived through, which a test changes before it is judged."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.written: list[Path] = []

    def post(self, words: str) -> Post:
        """Return the only post of Andy's with these words."""
        posts = [one for messenger in self.world.messengers for one in messenger.shown]
        (found,) = [one for one in posts if one.by == "Andy" and words in one.text]
        return found

    def replace(self, words: str, others: str) -> None:
        """Put other words into the only post of Andy's that has these."""
        post = self.post(words)
        post.text = post.text.replace(words, others)

    def add(self, jid: str, text: str) -> None:
        """Have Andy say one thing more at the end of a chat."""
        shown = self.world.messenger_of(jid).shown
        shown.append(Post(len(shown) + 1, jid, text, "Andy", shown[-1].at_ms))

    def swap(self, words: str, others: str) -> None:
        """Have two texts change places."""
        one, other = self.post(words), self.post(others)
        one.text, other.text = other.text, one.text

    def delay(self, words: str, *, minutes: int) -> None:
        """Have a text come later, in a world that had a misfortune."""
        self.post(words).at_ms += minutes * 60_000
        self.world.plan = replace(PLAN, faults=(Fault(at_s=90.0, kind="kill"),))

    def fail_turn(self, *notices: str) -> None:
        """Have the first question fail, and its chat read these notices."""
        self.execute(f"UPDATE turns SET state = 'failed' WHERE id = 1 AND chat_jid = '{FIRST}'")
        for notice in notices:
            self.add(FIRST, notice)

    def refuse(self, text: str, *notices: str) -> None:
        """Have the messenger refuse a text of the first chat, which reads these notices."""
        self.world.messenger_of(FIRST).refused = [(FIRST, text)]
        for notice in notices:
            self.add(FIRST, notice)

    def lose(self, words: str, jid: str) -> None:
        """Take Andy's only text with these words away, and have a text with them lost in a chat."""
        self.replace(self.post(words).text, "")
        self.world.messenger_of(jid).unsure.append((jid, words))

    def lose_by_kill(self, words: str, jid: str) -> None:
        """Take Andy's only text with these words away, and leave one to a chat whose send was broken off."""
        self.replace(self.post(words).text, "")
        self.break_off(words, jid)

    def break_off(self, text: str, jid: str) -> None:
        """Have a host be killed in the midst of a send, in which a text may have been sent or not."""
        error = str(OutcomeUnknown()).replace("'", "''")
        values = f"'g0', '{jid}', '{text}', 'broken off', 'broken off', 'unknown', '{error}', 1, 1"
        self.execute(
            "INSERT INTO outbox (group_folder, chat_jid, text, dedupe_key, message_id, state,"
            f" error, next_attempt_ms, created_ms) VALUES ({values})"
        )

    def refuse_at_a_kill(self, text: str, jid: str, *, times: int = 1) -> None:
        """Have the messenger refuse a text of a chat some times, the last time as its host is killed."""
        self.world.messenger_of(jid).refused = [(jid, text)] * times
        self.break_off(text, jid)

    def write(self, path: str, *, at_s: float = 0.0) -> None:
        """Leave a file in the home; `at_s` is when it was written, in seconds since 1970, 0 is now."""
        file = self.world.home.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        self.written.append(file)
        file.write_text("{}")
        if at_s:
            os.utime(file, (at_s, at_s))

    def execute(self, sql: str) -> None:
        """Change rows, of this record alone."""
        assert self.world._reader is not None
        assert self.world._reader.execute(sql).rowcount


@dataclass(frozen=True, slots=True)
class Doctored:
    """A change of a record, and the beginning of what has to be reported of it."""

    change: Callable[[Record], None]
    problem: str


DOCTORED = {
    "an answer is cut": Doctored(
        lambda it: it.replace("Added to the shopping list: zq1x.", "Added to the shopping list: zq1x"),
        "Read a sentence that nobody asked for",
    ),
    "a word is cut": Doctored(lambda it: it.add(FIRST, "zq0"), "Read a sentence that nobody asked for"),
    "two answers are mixed": Doctored(
        lambda it: it.replace(
            "Added to the shopping list: zq1x.", "Added to the shopping list: zq1x, bread."
        ),
        "Read a sentence that nobody asked for",
    ),
    "an answer stands twice in one text": Doctored(
        lambda it: it.replace("zq4x", "zq4x\n\nzq4x"), "Answered 2 times"
    ),
    "a reminder names another person": Doctored(
        lambda it: it.replace("Reminder for Ali: zq2x", "Reminder for Jane: zq2x"),
        "Read a sentence that nobody asked for",
    ),
    "one of three texts of an answer is not there": Doctored(
        lambda it: it.replace(it.post("100of5").text, ""), "Answered only partly"
    ),
    "one of three texts of an answer is there twice": Doctored(
        lambda it: it.add(OTHER, it.post("100of5").text), "Answered only partly, twice"
    ),
    "two of three texts of an answer change places": Doctored(
        lambda it: it.swap("000of5", "100of5"), "Answered only partly, twice or mixed"
    ),
    "a reminder is confirmed twice": Doctored(
        lambda it: it.add(FIRST, it.post(": zq2x (reminder").text),
        "Answered 2 times",
    ),
    "a reminder is not confirmed": Doctored(
        lambda it: it.replace(it.post(": zq2x (reminder").text, ""), "Not answered"
    ),
    "an answer is missing and its word is in a text that was lost in another chat": Doctored(
        lambda it: it.lose("zq0x", SECOND), "Not answered"
    ),
    "an answer is missing and its word is in a text of another chat that nobody knows of": Doctored(
        lambda it: it.lose_by_kill("zq4x", FIRST), "Not answered"
    ),
    "reminders are confirmed in another order": Doctored(
        lambda it: it.swap(": zq2x (reminder", ": zq3x (reminder"),
        "Answered before what was asked earlier",
    ),
    "an answer stands in another chat of the group, too": Doctored(
        lambda it: it.add(SECOND, "zq0x"), "Answered in another chat, chirp:g0b"
    ),
    "a reminder comes late though a host was killed at its time": Doctored(
        lambda it: it.delay("⏰ Reminder for Ali: zq2x", minutes=5), "Reminded 30"
    ),
    "a question fails and nobody is told": Doctored(
        lambda it: it.fail_turn(), "Of 1 questions that failed its chat was told 0 times"
    ),
    "a question fails and its chat is told twice": Doctored(
        lambda it: it.fail_turn(FAILURE, FAILURE), "Of 1 questions that failed its chat was told 2 times"
    ),
    "no question fails and a chat is told so": Doctored(
        lambda it: it.add(FIRST, FAILURE), "Of 0 questions that failed its chat was told 1 times"
    ),
    "the owner is not told what only they can mend": Doctored(
        lambda it: it.fail_turn("⚠️ I cannot answer at the moment: I cannot think without my model."),
        "The owner was not told, and the chat was",
    ),
    "a text is refused and nobody is told": Doctored(
        lambda it: it.refuse("It is gone."), "Of 1 texts that were refused its chat was told 0 times"
    ),
    "a text is refused and its chat is told twice": Doctored(
        lambda it: it.refuse("It is gone.", REFUSAL, REFUSAL),
        "Of 1 texts that were refused its chat was told 2 times",
    ),
    "a text is refused twice, once as its host is killed, and nobody is told": Doctored(
        lambda it: it.refuse_at_a_kill("It is gone.", OTHER, times=2),
        "Of 2 texts that were refused its chat was told 0 times",
    ),
    "a text is refused as its host is killed, which may send it again": Doctored(
        lambda it: it.refuse_at_a_kill("It is gone.", FIRST),
        "Of 1 texts that were refused its chat was told 0 times",
    ),
    "a reply of the host is left": Doctored(
        lambda it: it.write("data/ipc/g0/replies/1.json", at_s=1.0), "3 old answers to an agent's requests"
    ),
    "a request of an agent is left": Doctored(
        lambda it: it.write("data/ipc/g0/tasks/1.json"), "A file is left over: data/ipc/g0/tasks/1.json"
    ),
    "a copy of a file that is to be sent is left": Doctored(
        lambda it: it.write("data/outgoing/out-1"), "A file is left over: data/outgoing/out-1"
    ),
    "a reminder is claimed": Doctored(
        lambda it: it.execute("UPDATE notifications SET claim_token = 'host', claim_until_ms = 1"),
        "A reminder is still being sent",
    ),
    "a board is leased": Doctored(
        lambda it: it.execute("UPDATE dashboards SET lease_owner = 'host', lease_until_ms = 1"),
        "A board is still leased",
    ),
    "files of an undo are due": Doctored(
        lambda it: it.execute("INSERT INTO undos VALUES (9, 1, 'g0', 'Jane', 1, 1)"),
        "Files of an undo are still to be put back",
    ),
    "a wake request waits": Doctored(
        lambda it: it.execute("INSERT INTO wakes VALUES (1, 'g0', 'message', 1, 'r', 'k', 1, NULL)"),
        "A wake request of a message was taken by nobody",
    ),
    "a task is run": Doctored(
        lambda it: it.execute(
            "INSERT INTO task_run_logs VALUES (1, 'a', 'schedule', 1, 1, 1, 'running', 1, '', '')"
        ),
        "A task is still run",
    ),
    "news of what was not delivered quotes another group": Doctored(
        lambda it: it.add(FIRST, "⚠️ Not delivered, and not tried again: “zq4x” (no reason)"),
        "The words of g1 were seen in chirp:g0",
    ),
    "an answer quotes another group": Doctored(
        lambda it: setattr(it.post("zq0x"), "quoted", "@Andy echo zq4x"),
        "The words of g1 were seen in chirp:g0",
    ),
}
"""The changes of the record, each with the report that it causes."""


EXCUSED = {
    "a text is refused as its host is killed": Doctored(
        lambda it: it.refuse_at_a_kill("It is gone.", OTHER), "Of 1 texts that were refused"
    ),
}
"""Changes of the record that break no promise, each with the beginning of what must not be reported."""


class JudgedWorld(World):
    """A world whose record is judged as it is, and once with each change."""

    reports: dict[str, list[str]]

    def _judge(self) -> None:
        shown = {messenger: messenger.shown for messenger in self.messengers}
        self.reports = {}
        for name, doctored in {"": None, **DOCTORED, **EXCUSED}.items():
            self.problems, self.plan = [], PLAN
            for messenger, posts in shown.items():
                messenger.shown, messenger.refused = [copy(post) for post in posts], []
                messenger.unsure = []
            self._read_a_copy()
            record = Record(self)
            if doctored is not None:
                doctored.change(record)
            judge(self)
            for file in record.written:
                file.unlink()
            self.reports[name] = self.problems
        self.problems = []

    def _read_a_copy(self) -> None:
        """Read the rows of the database from a copy in memory."""
        self._close_reader()
        self._reader = sqlite3.connect(":memory:", isolation_level=None)
        self._reader.row_factory = sqlite3.Row
        with sqlite3.connect(self.home.database) as source:
            source.backup(self._reader)
        source.close()


@pytest.fixture(scope="module")
def reports() -> dict[str, list[str]]:
    """Return what the judges report of a world as it is, by the empty name, and after each change."""
    world = JudgedWorld("judged", PLAN)
    world.run()
    return world.reports


def test_a_record_that_is_whole_breaks_no_promise(reports: dict[str, list[str]]) -> None:
    assert reports[""] == []


@pytest.mark.parametrize("name", DOCTORED)
def test_what_is_doctored_is_reported(name: str, reports: dict[str, list[str]]) -> None:
    assert any(line.startswith(DOCTORED[name].problem) for line in reports[name]), reports[name]


@pytest.mark.parametrize("name", EXCUSED)
def test_what_a_kill_excuses_is_not_reported(name: str, reports: dict[str, list[str]]) -> None:
    assert not any(line.startswith(EXCUSED[name].problem) for line in reports[name]), reports[name]
