from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_runner.wire import frames as wire
from agent_runner.wire.document import WireError
from agent_runner.wire.frames import (
    END,
    START,
    Ack,
    Draft,
    FailureFrame,
    FrameDecoder,
    FrameLine,
    Heartbeat,
    LogLine,
    Ready,
    Result,
    ToolEnd,
    ToolStart,
    TurnEnd,
    UnknownKind,
    Usage,
    encode_frame,
    parse_frame,
)

EVERY_KIND = [
    Ready(n=1),
    Ack(n=2, turn=7, new_session_id="s-1"),
    Ack(n=2, turn=7, restored="rehydrate"),
    Result(n=3, turn=7, result="안녕\n---NANOCLAW_OUTPUT_END---\n👋"),
    Usage(n=4, turn=7, model="m", input_tokens=5),
    TurnEnd(n=5, turn=7, status="error", error="no", code="session_gone"),
    TurnEnd(n=5, turn=7, checkpoint="5a1d", restored="fresh"),
    Heartbeat(n=6),
    ToolStart(n=7, turn=7, call="toolu_1", tool="Bash", summary="ls --- 안녕", parent="toolu_0"),
    ToolEnd(n=7, turn=7, call="toolu_1", ms=12, status="error"),
    Draft(n=7, turn=7, at=4_000, text="half a ---\n답"),
    FailureFrame(n=7, error="gone"),
]


def decoded(*chunks):
    decoder = FrameDecoder()
    return [line for chunk in chunks for line in decoder.feed(chunk)]


def frames_in(*chunks):
    return [parse_frame(line) for line in decoded(*chunks) if isinstance(line, FrameLine)]


def logs_in(*chunks):
    return [str(line) for line in decoded(*chunks) if isinstance(line, LogLine)]


def test_a_kind_that_only_a_later_runner_knows_is_told_from_what_is_broken():
    with pytest.raises(UnknownKind):
        parse_frame('{"v": 1, "n": 1, "kind": "thought", "turn": 7}')
    with pytest.raises(WireError) as broken:
        parse_frame('{"v": 1, "n": 1, "kind": "draft", "text": "of no turn"}')
    assert not isinstance(broken.value, UnknownKind)


@pytest.mark.parametrize(
    "frame",
    [
        {"kind": "tool_start", "turn": 1, "call": "c" * 65, "tool": "Bash"},
        {"kind": "tool_start", "turn": 1, "call": "c", "tool": "B" * 201},
        {"kind": "tool_start", "turn": 1, "call": "c", "tool": "B", "summary": "x" * 601},
        {"kind": "tool_end", "turn": 1, "call": "c", "ms": -1},
        {"kind": "draft", "turn": 1, "text": "x" * 4_001},
        {"kind": "draft", "turn": 1, "at": -1},
    ],
)
def test_what_is_told_of_a_turn_is_bounded_by_the_wire(frame):
    with pytest.raises(WireError):
        parse_frame(json.dumps({"n": 1, **frame}))


@pytest.mark.parametrize("frame", EVERY_KIND, ids=lambda frame: frame.kind)
def test_every_kind_comes_back_as_it_went(frame):
    assert frames_in(encode_frame(frame)) == [frame]


def test_the_host_documents_fields_keep_their_names():
    body = json.loads(encode_frame(EVERY_KIND[1]).splitlines()[1])

    assert body == {"v": 1, "n": 2, "status": "success", "newSessionId": "s-1", "turn": 7, "kind": "ack"}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_a_stream_may_be_cut_anywhere_also_inside_a_syllable(size):
    stream = b"log before\n" + b"".join(encode_frame(frame) for frame in EVERY_KIND) + "로그\n".encode()
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]

    assert frames_in(*chunks) == EVERY_KIND
    assert logs_in(*chunks) == ["log before", "로그"]


@given(st.lists(st.text(), max_size=4), st.lists(st.integers(0, 2_000), max_size=8))
def test_no_text_ends_a_frame_and_no_cut_loses_one(texts, cuts):
    sent = [Result(n=n, turn=1, result=text) for n, text in enumerate(texts, start=1)]
    stream = b"".join(encode_frame(frame) for frame in sent)
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    chunks = [stream[a:b] for a, b in pairwise(edges)]

    assert frames_in(*chunks) == sent


@pytest.mark.parametrize("text", ["---", "------", END, f"\n{END}\n{START}\n", "-\\u002d-", '"---"'])
def test_a_text_with_markers_in_it_is_a_text(text):
    data = encode_frame(Result(n=1, turn=1, result=text))

    assert data.count(b"---") == 4
    assert frames_in(data)[0].result == text


def test_half_a_surrogate_pair_does_not_keep_a_frame_from_being_written():
    frame = Result(n=1, turn=1, result="cut \ud83d", new_session_id="s\udc00")
    end = TurnEnd(n=2, turn=1, status="error", error="\ud83d")

    assert [one.kind for one in frames_in(encode_frame(frame), encode_frame(end))] == ["result", "turn_end"]
    assert frames_in(encode_frame(frame))[0].result == "cut ?"


def test_what_stands_outside_of_frames_is_log():
    assert logs_in(b"one\r\n\ntwo\n", f"{END}\n".encode(), b"three\n") == ["one", "two", END, "three"]


def test_a_line_not_yet_ended_is_nothing_yet():
    assert decoded(b"half a li") == []


def test_a_frame_cut_off_by_another_start_is_dropped():
    data = f'{START}\n{{"half": 1}}\n'.encode() + encode_frame(Ready(n=1))

    assert frames_in(data) == [Ready(n=1)]


def test_more_lines_in_a_frame_are_log():
    body = encode_frame(Ready(n=1)).splitlines()[1].decode()

    lines = decoded(f"{START}\n{body}\nchatter\n{END}\n".encode())

    assert lines == [LogLine("chatter"), FrameLine(body)]
    assert isinstance(lines[1], FrameLine)


def test_an_empty_frame_is_nothing():
    assert decoded(f"{START}\n{END}\n".encode()) == []


def test_bytes_that_are_no_text_do_not_break_what_follows():
    assert frames_in(b"\xff\xfe\x80\n", encode_frame(Ready(n=1))) == [Ready(n=1)]


def test_an_endless_line_costs_no_memory_and_what_follows_is_read(monkeypatch):
    monkeypatch.setattr(wire, "MAX_LINE_CHARS", 1_000)
    decoder = FrameDecoder()
    for _ in range(100):
        assert list(decoder.feed(b"x" * 999)) == []
        assert sum(map(len, decoder._pieces)) <= 1_000

    assert [parse_frame(line) for line in decoder.feed(b"\n" + encode_frame(Ready(n=1)))] == [Ready(n=1)]


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("", "not a frame"),
        ("[]", "not a frame"),
        ("null", "not a frame"),
        ("{}", "not a frame"),
        ('{"n": 1, "kind": "dance"}', "not a frame"),
        ('{"n": 0, "kind": "ready"}', "not a frame"),
        ('{"n": 18446744073709551616, "kind": "ready"}', "not a frame"),
        ('{"n": 1, "kind": "result", "result": "x"}', "not a frame"),
        ('{"n": 1, "kind": "result", "turn": 1, "result": 5}', "not a frame"),
        ('{"n": 1, "kind": "ready", "v": 2}', "wire version 2"),
        ('{"number": 1, "kind": "hello", "v": 2}', "wire version 2"),
        ("[" * 50_000, "not a frame"),
    ],
)
def test_what_is_no_frame_of_this_version_is_refused_in_one_line(line, place):
    with pytest.raises(WireError, match=place) as caught:
        parse_frame(line)

    assert "\n" not in str(caught.value)


def test_fields_of_a_later_minor_version_are_passed_over():
    assert parse_frame('{"n": 1, "kind": "ready", "colour": "red"}') == Ready(n=1)


@given(st.binary(max_size=300), st.integers(1, 20))
def test_no_bytes_break_the_decoder(data, size):
    for line in decoded(*[data[at : at + size] for at in range(0, len(data), size)], b"\n"):
        assert line
