"""A conversation outlives its session, its container and its model: the real host, SDK and CLI."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.messages_api import Hang, Recorded, Say, ScriptedMessagesApi, UseTool
from tests.processes.andy import AndyProcess
from tests.support.skips import NEED_ALL, only_in_soak
from tests.support.until import wait_until

DAY_MS = 24 * 3_600_000
SAID = (("The first bee is blue.", "Noted blue."), ("The second bee is red.", "Noted red."))
NEW = "Which colours have my bees?"
NAMED = re.compile(r'loaded - last: \\"[^"]*\\"')


class Talk:
    """A conversation with Andy whose container ends between two questions."""

    def __init__(self, andy: AndyProcess, api: ScriptedMessagesApi) -> None:
        self.andy = andy
        self.api = api
        self.environment = andy._environment

    def say(self, text: str, answer: str) -> None:
        self.api.then(Say(answer))
        assert self.andy.say(text)["reply"] == answer

    def end_container(self) -> None:
        """End Andy and its container, so that the next question starts another."""
        self.andy.terminate()
        self.andy._remove_containers()

    def ask(self, text: str) -> str:
        """Ask what gets no answer: the model uses a tool, then thinks. Returns the id of the message."""
        before, stored = len(self.api.turns), self._ended_calls()
        self.api.then(UseTool("Bash", {"command": "echo bees"}), Hang())
        message = str(self.andy.say(text, wait=0)["id"])
        self.api.wait_for_turns(before + 2)
        # The host reads of the call in the container's output: one that is killed before knows nothing of it.
        wait_until(lambda: self._ended_calls() > stored, what="the host has stored the call")
        return message

    def _ended_calls(self) -> int:
        return len(self.andy.rows("SELECT 1 FROM tool_calls WHERE duration_ms IS NOT NULL"))

    @property
    def transcript(self) -> Path:
        (row,) = self.andy.rows("SELECT session_id FROM sessions")
        (path,) = self.andy.home.glob(f"data/sessions/main/.claude/projects/*/{row['session_id']}.jsonl")
        return path

    def change(self, sql: str, *values: object) -> None:
        """Write into the store of a host that is down."""
        with closing(sqlite3.connect(self.andy.home / "store" / "messages.db")) as store, store:
            store.execute(sql, values)

    def last_run(self) -> Any:
        return self.andy.rows("SELECT * FROM runs ORDER BY started_ms DESC LIMIT 1")[0]


@pytest.fixture(scope="module")
def runtime(request: pytest.FixtureRequest) -> str:
    """Where agents run: in containers where Docker was promised. It takes long, and once is enough."""
    if not NEED_ALL:
        return "process"
    request.getfixturevalue("agent_image")
    return "docker"


@pytest.fixture(scope="module")
def one_api() -> Iterator[ScriptedMessagesApi]:
    """The model's API for all tests: a session belongs to the address that it was begun at."""
    with ScriptedMessagesApi() as api:
        yield api


@pytest.fixture
def api(one_api: ScriptedMessagesApi) -> ScriptedMessagesApi:
    one_api.start_over()
    return one_api


def new_andy(home: Path, runtime: str, api: ScriptedMessagesApi) -> AndyProcess:
    environment = {"ANTHROPIC_API_KEY": "sk-ant-api03-owner", "ANTHROPIC_BASE_URL": api.url}
    return AndyProcess(home, runtime=runtime, agent="auto", environment=environment)


@pytest.fixture(scope="module")
def home_of_talk(
    tmp_path_factory: pytest.TempPathFactory, runtime: str, one_api: ScriptedMessagesApi
) -> tuple[Path, Path]:
    """A home where all was `SAID`, with no container any more, and a copy of it: paths are part of it."""
    root = tmp_path_factory.mktemp("talk")
    home, copy = root / "home", root / "copy"
    with new_andy(home, runtime, one_api) as andy:
        talk = Talk(andy, one_api)
        for text, answer in SAID:
            talk.say(text, answer)
        talk.end_container()
    subprocess.run(["cp", "--archive", str(home), str(copy)], check=True)
    return home, copy


@pytest.fixture
def talk(home_of_talk: tuple[Path, Path], runtime: str, api: ScriptedMessagesApi) -> Iterator[Talk]:
    """A talk in which all of `SAID` was said, and whose containers have ended."""
    home, copy = home_of_talk
    shutil.rmtree(home)
    subprocess.run(["cp", "--archive", str(copy), str(home)], check=True)
    andy = new_andy(home, runtime, api)
    with ExitStack() as stack:
        stack.push(andy)  # a test starts it
        yield Talk(andy, api)


def counts(request: Recorded) -> dict[str, int]:
    """How often each text is in what the model was asked, whether as a message or as something put before.

    The notice that a conversation goes on names its last question: that is no copy of what was said.
    """
    asked = NAMED.sub("", json.dumps(request.body["messages"], ensure_ascii=False))
    return {text: asked.count(text) for text in (*[one for pair in SAID for one in pair], NEW)}


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def keep(path: Path, lines: list[str]) -> None:
    with path.open("r+") as file:  # the file stays its container's
        file.truncate()
        file.writelines(lines)


def delete(talk: Talk) -> None:
    talk.transcript.unlink()


def empty(talk: Talk) -> None:
    keep(talk.transcript, [])


def lose_the_head(talk: Talk) -> None:
    lines = lines_of(talk.transcript)
    first = next(number for number, line in enumerate(lines) if "Noted blue." in line and '"uuid"' in line)
    keep(talk.transcript, lines[first:])


def lose_the_tail(talk: Talk) -> None:
    lines = lines_of(talk.transcript)
    second = next(number for number, line in enumerate(lines) if "The second bee" in line)
    keep(talk.transcript, lines[:second])


def lose_the_last_answer(talk: Talk) -> None:
    lines = lines_of(talk.transcript)
    answer = next(number for number, line in enumerate(lines) if "Noted red." in line and '"uuid"' in line)
    keep(talk.transcript, lines[:answer])


def forget_the_session(talk: Talk) -> None:
    session = "0b9d1f3e-1111-4222-8333-444444444444"
    talk.change("UPDATE sessions SET session_id = ?", session)


def put_a_pipe_in_its_place(talk: Talk) -> None:
    path = talk.transcript
    path.unlink()
    os.mkfifo(path)


def change_the_model(talk: Talk) -> None:
    talk.environment["ANDY_MODEL"] = "claude-haiku-4-5"


def change_to_a_model_without_room(talk: Talk) -> None:
    change_the_model(talk)
    talk.change("UPDATE runs SET context_tokens = 190000")


def change_the_provider(talk: Talk) -> None:
    talk.environment["ANTHROPIC_BASE_URL"] = talk.api.url.replace("127.0.0.1", "localhost")


def wait_thirty_days(talk: Talk) -> None:
    talk.change("UPDATE answered_sessions SET at_ms = at_ms - ?", 30 * DAY_MS)


def change_nothing(talk: Talk) -> None:
    """It is resumed."""


@pytest.mark.parametrize(
    ("lose", "mode"),
    [
        (change_nothing, "resume"),
        (delete, "rehydrate"),
        pytest.param(empty, "rehydrate", marks=only_in_soak),
        pytest.param(lose_the_head, "rehydrate", marks=only_in_soak),
        (lose_the_tail, "resume_plus_delta"),
        (lose_the_last_answer, "resume_plus_delta"),
        pytest.param(forget_the_session, "rehydrate", marks=only_in_soak),
        pytest.param(put_a_pipe_in_its_place, "rehydrate", marks=only_in_soak),
        (change_the_model, "resume"),
        pytest.param(change_to_a_model_without_room, "rehydrate", marks=only_in_soak),
        pytest.param(change_the_provider, "rehydrate", marks=only_in_soak),
        pytest.param(wait_thirty_days, "rehydrate", marks=only_in_soak),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_conversation_goes_on_with_all_that_was_said_once(
    talk: Talk, lose: Callable[[Talk], None], mode: str
) -> None:
    lose(talk)
    talk.andy.start()
    talk.say(NEW, "Blue and red.")
    assert counts(talk.api.turns[-1]) == dict.fromkeys(counts(talk.api.turns[-1]), 1)
    run = talk.last_run()
    assert run["restore_mode"] == mode, run["restore_reason"]
    (group,) = talk.andy.listed("status")["conversations"]
    assert (group["group"], group["mode"], group["reason"]) == ("main", mode, run["restore_reason"])
    talk.say("Sure?", "Yes.")
    assert counts(talk.api.turns[-1])[NEW] == 1, "and it goes on from there"
    assert len(talk.andy.rows("SELECT DISTINCT run_id FROM turns")) == 2


@pytest.mark.parametrize(
    "dies_too",
    [False, pytest.param(True, marks=only_in_soak)],
    ids=["the host dies", "its container dies too"],
)
@pytest.mark.parametrize(
    "is_first",
    [False, pytest.param(True, marks=only_in_soak)],
    ids=["a later question", "the first question"],
)
def test_a_question_whose_answer_was_cut_off_is_asked_once(
    talk: Talk, dies_too: bool, is_first: bool
) -> None:
    if is_first:
        talk.andy.start()
        assert "forgotten" in talk.andy.say("/clear")["reply"]
        talk.end_container()
    talk.andy.start()
    message = talk.ask(NEW)
    talk.andy.kill()
    if dies_too:
        talk.andy._remove_containers()
    talk.api.then(Say("Blue and red."))
    talk.andy.start()
    talk.api.release()
    talk.andy.until_settled(message)
    assert talk.andy.find(message)["reply"] == "Blue and red."
    expected = 0 if is_first else 1
    assert counts(talk.api.turns[-1]) == {
        text: 1 if text == NEW else expected for text in counts(talk.api.turns[-1])
    }
    if dies_too:
        # It begins again, and is told what was done: the session of that run knows nothing of it.
        asked = json.dumps(talk.api.turns[-1].body["messages"])
        assert asked.count("echo bees") == asked.count("- Bash: echo bees") == 1
    talk.say("Sure?", "Yes.")
    assert counts(talk.api.turns[-1])[NEW] == 1


@only_in_soak
def test_a_session_that_lost_its_answers_time_and_again_goes_on(talk: Talk) -> None:
    """What is told to a session is part of it from there on, and is not told again."""
    lose_the_tail(talk)
    talk.andy.start()
    talk.say(NEW, "Blue and red.")
    talk.end_container()
    talk.andy.start()
    talk.say("Sure?", "Yes.")
    assert talk.last_run()["restore_mode"] == "resume"
    assert counts(talk.api.turns[-1]) == dict.fromkeys(counts(talk.api.turns[-1]), 1)
    talk.end_container()
    delete(talk)
    talk.andy.start()
    talk.say("Really?", "Really.")
    talk.end_container()
    talk.andy.start()
    talk.say("Truly?", "Truly.")
    assert talk.last_run()["restore_mode"] == "resume"
    assert counts(talk.api.turns[-1]) == dict.fromkeys(counts(talk.api.turns[-1]), 1)


@only_in_soak
def test_what_was_cleared_does_not_come_back_with_what_was_kept(talk: Talk) -> None:
    talk.andy.start()
    assert "forgotten" in talk.andy.say("/clear")["reply"]
    talk.say(NEW, "I do not know.")
    assert counts(talk.api.turns[-1]) == {text: int(text == NEW) for text in counts(talk.api.turns[-1])}
    assert talk.last_run()["restore_mode"] == "fresh"
    talk.end_container()
    delete(talk)
    talk.andy.start()
    talk.say("Sure?", "Yes.")
    assert counts(talk.api.turns[-1]) == {text: int(text == NEW) for text in counts(talk.api.turns[-1])}
    assert talk.last_run()["restore_mode"] == "rehydrate"
