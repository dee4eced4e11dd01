"""What is read off a transcript that a container wrote, and what is not."""

from __future__ import annotations

import errno
import io
import os
import random
from pathlib import Path

import pytest

from orchestrator.context import transcript
from orchestrator.context.transcript import TranscriptLimits, TranscriptState, read
from tests.support.transcripts import SESSION, Writing, place


@pytest.fixture
def sessions(tmp_path):
    (tmp_path / "sessions").mkdir()
    return tmp_path / "sessions"


def found(sessions, **limits):
    return read(sessions, "family", SESSION, limits=TranscriptLimits(**limits))


def a_talk():
    """Two answered turns, with what the CLI notes beside them."""
    talk = Writing()
    talk.notes("queue-operation", operation="enqueue", content='{"parentUuid": "x"}')
    talk.asks("My colour is blue.")
    talk.attaches()
    talk.answers("Noted.")
    talk.asks("What is it?")
    talk.uses_tool()
    talk.answers("Blue.")
    talk.notes()
    return talk


def test_a_whole_conversation_leads_back_to_its_beginning(sessions):
    talk = a_talk()
    place(sessions).write_text(talk.text())
    transcript = found(sessions)
    assert transcript.state is TranscriptState.WHOLE
    assert transcript.chain == tuple(f"u{number:03d}" for number in range(1, 8))
    assert transcript.questions == {"u001", "u004"}
    assert transcript.has(talk.last)
    assert not transcript.has("u999")


def test_a_tools_answer_is_not_something_asked(sessions):
    talk = a_talk()
    question = talk.asks("And yours?")
    talk.uses_tool()
    place(sessions).write_text(talk.text())
    transcript = found(sessions)
    assert transcript.chain[transcript.first_question_after("u007")] == question
    assert transcript.first_question_after(question) is None


def test_the_newest_branch_is_the_one_that_counts(sessions):
    talk = a_talk()
    lost = talk.asks("And yours?")
    talk.uses_tool()
    again = talk.asks("And yours?", after="u007")
    talk.answers("Red.")
    place(sessions).write_text(talk.text())
    transcript = found(sessions)
    assert (transcript.has(lost), transcript.has(again)) == (False, True)
    assert transcript.state is TranscriptState.WHOLE


def test_a_lost_beginning_is_seen(sessions):
    place(sessions).write_text(a_talk().text(slice(4, None)))
    assert found(sessions).state is TranscriptState.HEADLESS


def test_a_line_lost_in_the_middle_is_a_lost_beginning(sessions):
    talk = a_talk()
    del talk.lines[3]
    place(sessions).write_text(talk.text())
    assert found(sessions).state is TranscriptState.HEADLESS


def test_a_lost_end_is_a_shorter_conversation(sessions):
    place(sessions).write_text(a_talk().text(slice(0, 4)) + '{"type": "assistant", "uuid": "u00')
    transcript = found(sessions)
    assert (transcript.state, transcript.chain) == (TranscriptState.WHOLE, ("u001", "u002", "u003"))


def test_a_compaction_is_a_beginning_and_what_it_summed_up_is_held(sessions):
    talk = a_talk()
    boundary = talk.compacts()
    talk.attaches()
    after = talk.answers("Compacted.")
    place(sessions).write_text(talk.text())
    transcript = found(sessions)
    assert transcript.state is TranscriptState.WHOLE
    assert transcript.has("u003")
    assert transcript.chain[transcript.last_compaction] == boundary
    assert transcript.first_question_after("u007") is None, (
        "what the CLI says on its own is nobody's question"
    )
    assert transcript.has(after)


def test_what_a_compaction_summed_up_may_be_gone(sessions):
    talk = a_talk()
    talk.compacts()
    place(sessions).write_text(talk.text(slice(9, None)))
    assert found(sessions).state is TranscriptState.WHOLE


def test_messages_that_lead_in_a_circle_are_no_conversation(sessions):
    talk = Writing()
    first = talk.asks("one", after="u001")
    talk.asks("two", after=first)
    place(sessions).write_text(talk.text())
    assert found(sessions).state is TranscriptState.HEADLESS


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n\n",
        b"\x00" * 5000,
        random.Random(1).randbytes(20_000),
        b'{"parentUuid": ' * 200_000,
        b'{"uuid": "a", "parentUuid": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        b'{"uuid": "a\\u0000b", "parentUuid": null}\n{"uuid": "--version\\n", "parentUuid": null}\n',
        b'{"uuid": 7, "parentUuid": null}\n{"uuid": "a", "parentUuid": {}}\n["parentUuid"]\n',
        b'{"uuid": "a", "parentUuid": ' + b"9" * 10_000 + b"}\n",
        b'{"type": "user", "uuid": "a", "parentUuid": null, "isSidechain": true}\n',
    ],
    ids=["empty", "blank", "nothing", "binary", "open", "deep", "ids", "types", "number", "sidechain"],
)
def test_what_holds_no_conversation_is_empty(sessions, content):
    place(sessions).write_bytes(content)
    assert found(sessions).state is TranscriptState.EMPTY


def test_what_is_no_conversation_around_one_changes_nothing(sessions):
    noise = b'\xff\xfe garbage {\n{"uuid": "a", "parentUuid": ' + b"[" * 100_000 + b"\n"
    place(sessions).write_bytes(noise + a_talk().text().encode() + noise)
    assert found(sessions).state is TranscriptState.WHOLE
    assert len(found(sessions).chain) == 7


@pytest.mark.parametrize("missing", ["family", "family/.claude", "family/.claude/projects", "file"])
def test_what_is_not_there_is_missing(sessions, missing):
    if missing == "file":
        place(sessions)
    else:
        (sessions / missing).parent.mkdir(parents=True, exist_ok=True)
    assert found(sessions).state is TranscriptState.MISSING


@pytest.mark.parametrize("session_id", ["", "../../x", "no-uuid", f"{SESSION}\n", "--version", "x" * 200])
def test_only_an_id_that_the_cli_takes_names_a_file(sessions, session_id):
    assert read(sessions, "family", session_id).state is TranscriptState.REFUSED


@pytest.mark.parametrize("where", ["family", ".claude", "projects", "-workspace-group", "file", "hard"])
def test_no_link_is_followed(sessions, tmp_path, where):
    """What is linked to is a good transcript: it is the link that is refused."""
    elsewhere = tmp_path / "elsewhere"
    place(elsewhere).write_text(a_talk().text())
    real, linked = place(elsewhere), place(sessions)
    if where == "hard":
        os.link(real, linked)
    else:
        for one, other in zip((linked, *linked.parents), (real, *real.parents), strict=False):
            if one.name == where or (where == "file" and one == linked):
                if one.is_dir():
                    for child in sorted(one.rglob("*"), reverse=True):
                        child.rmdir()
                    one.rmdir()
                one.symlink_to(other)
    assert read(elsewhere, "family", SESSION).state is (
        TranscriptState.REFUSED if where == "hard" else TranscriptState.WHOLE
    )
    assert found(sessions).state in (TranscriptState.REFUSED, TranscriptState.MISSING)
    assert found(sessions).chain == ()


@pytest.mark.parametrize("kind", ["fifo", "directory", "socket"])
def test_what_is_no_file_is_refused_and_waited_for_by_nobody(sessions, kind):
    path = place(sessions)
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "socket":
            os.mknod(path, 0o140600)
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert found(sessions).state is TranscriptState.REFUSED
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_pipe_where_a_directory_should_be_is_passed_by(sessions):
    path = place(sessions)
    os.mkfifo(path.parent.with_name("-a-pipe"))
    path.write_text(a_talk().text())
    assert found(sessions).state is TranscriptState.WHOLE


def test_a_file_that_is_too_large_is_not_read(sessions):
    path = place(sessions)
    with path.open("wb") as file:
        file.truncate(1024**3)
    transcript = found(sessions)
    assert (transcript.state, transcript.reason) == (
        TranscriptState.REFUSED,
        "its transcript has more than 64 MiB",
    )


def test_a_line_that_is_too_long_is_left_out(sessions):
    talk = a_talk()
    long = '{"uuid": "long", "parentUuid": null, "message": "' + "x" * 3000 + '"}\n'
    place(sessions).write_text(long + talk.text())
    transcript = found(sessions, line_bytes=1000)
    assert (transcript.state, len(transcript.chain)) == (TranscriptState.WHOLE, 7)
    place(sessions).write_bytes(b"x" * (64 * 1024**2))
    assert found(sessions).state is TranscriptState.EMPTY


def test_a_line_that_the_limit_of_the_file_cuts_is_left_out():
    # A file may grow beyond its limit after its size was looked at.
    limits = TranscriptLimits(file_bytes=10, line_bytes=100)
    lines = transcript._short_enough_lines(io.BytesIO(b"first\nsecond\n"), limits)
    assert list(lines) == [b"first\n"]


def test_of_a_large_message_the_ids_are_found(sessions):
    talk = a_talk()
    talk.asks("What is in this picture? " + "x" * 5_000)
    talk.uses_tool()
    picture = talk.answers("A bee." + "y" * 5_000)
    place(sessions).write_text(talk.text())
    assert found(sessions, parsed_bytes=1_000) == found(sessions)
    assert found(sessions).has(picture)


def test_half_a_character_is_no_harm(sessions):
    talk = a_talk()
    talk.lines[4] = talk.lines[4].replace("What is", "\\ud83d What is \\\\ud83d\\ude00")
    place(sessions).write_text(talk.text())
    assert (found(sessions).state, len(found(sessions).chain)) == (TranscriptState.WHOLE, 7)


def test_a_file_that_takes_long_is_left(sessions):
    place(sessions).write_text(a_talk().text() * 10)
    with pytest.raises(TimeoutError):
        found(sessions, seconds=-1)


def test_a_line_of_just_the_most_is_read(sessions):
    talk = a_talk()
    longest = max(map(len, talk.text().encode().splitlines(keepends=True)))
    place(sessions).write_text(talk.text())
    assert found(sessions, line_bytes=longest).state is TranscriptState.WHOLE


def test_a_file_of_too_many_lines_is_refused(sessions):
    place(sessions).write_text("\n" * 1001)
    assert found(sessions, lines=1000).state is TranscriptState.REFUSED


def test_the_file_is_found_whatever_the_container_calls_its_place(sessions):
    for number in range(5):
        place(sessions, project=f"-other-{number}")
    place(sessions, project="-srv-andy-home").write_text(a_talk().text())
    assert found(sessions).state is TranscriptState.WHOLE


def test_of_two_files_the_longer_counts(sessions):
    place(sessions, project="-a").write_text(a_talk().text(slice(0, 3)))
    place(sessions, project="-b").write_text(a_talk().text())
    assert len(found(sessions).chain) == 7


def test_every_transcript_of_a_group_is_deleted_wherever_its_agent_worked(tmp_path: Path) -> None:
    projects = tmp_path / "family" / ".claude" / "projects"
    for number in range(transcript.TranscriptLimits().projects + 2):
        (projects / f"-workspace-{number:03}").mkdir(parents=True)
        (projects / f"-workspace-{number:03}" / "a.jsonl").write_text("{}\n")
    transcript.remove_all(tmp_path, "family")
    assert list(projects.rglob("*.jsonl")) == []
    transcript.remove_all(tmp_path, "nobody")


def test_what_a_container_puts_in_the_place_of_one_keeps_no_other_transcript(tmp_path: Path) -> None:
    projects = tmp_path / "family" / ".claude" / "projects"
    for project in ("-a", "-b"):
        (projects / project).mkdir(parents=True)
        (projects / project / "z.jsonl").write_text("{}\n")
    (projects / "-a" / "a.jsonl").mkdir()
    (projects / "-0").symlink_to("/nowhere")
    (projects / "-1").write_text("")
    transcript.remove_all(tmp_path, "family")
    assert [path for path in projects.rglob("*.jsonl") if path.is_file()] == []


def test_transcripts_that_cannot_be_reached_are_not_taken_for_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_many(*_args: object, **_options: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", too_many)
    with pytest.raises(OSError, match="Too many"):
        transcript.remove_all(tmp_path, "family")
