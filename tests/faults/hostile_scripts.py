"""What a container may run instead of the runner, and what its chat is told of it.

A script begins with `PRELUDE`: `turn` is the turn it was given, `say` writes one frame.
"""

from __future__ import annotations

from dataclasses import dataclass

PRELUDE = r"""
import json, os, signal, sys, time
START, END = "---NANOCLAW_OUTPUT_START---", "---NANOCLAW_OUTPUT_END---"
out = sys.stdout
def frame(body):
    return f"{START}\n{body}\n{END}\n"
def put(text):
    out.write(text); out.flush()
def say(n, kind, **fields):
    put(frame(json.dumps({"v": 1, "n": n, "kind": kind, **fields}).replace("---", r"\u002d\u002d\u002d")))
def live_on(n):
    while True:
        time.sleep(5); n += 1; say(n, "heartbeat")
"""
READ = PRELUDE + 'turn = json.loads(sys.stdin.readline())["turn"]["turn"]\nsay(1, "ready")\n'

SILENT = "gave no sign of life"
ENDLESS = "talked without end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The turn ends well, and just this was said."""

    reply: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The first attempt ends with one of these reasons in it."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    script: str
    outcome: Answered | Ended
    noted: str | None = None
    """A kind of line in the host's log that tells of it."""


def _well(lines: str, reply: str, *, noted: str | None = None) -> Scenario:
    return Scenario(script=READ + lines, outcome=Answered(reply=reply), noted=noted)


def _badly(lines: str, *reasons: str, noted: str | None = None, reads: bool = True) -> Scenario:
    return Scenario(script=(READ if reads else PRELUDE) + lines, outcome=Ended(reasons=reasons), noted=noted)


SCENARIOS = {
    "speaks-of-other-turns": _well(
        r"""
for other in (turn - 1, turn + 1, 0, -1, 2**60):
    say(2 + other % 7, "ack", turn=other, newSessionId="stolen")
    say(20 + other % 7, "result", turn=other, result="not mine")
    say(40 + other % 7, "turn_end", turn=other)
say(60, "result", turn=turn, result="mine"); say(61, "turn_end", turn=turn); live_on(61)
""",
        "mine",
    ),
    "counts-backwards": _well(
        r"""
say(5, "result", turn=turn, result="first")
for n in (3, 5, 2, 1): say(n, "result", turn=turn, result="again")
say(6, "turn_end", turn=turn); live_on(6)
""",
        "first",
    ),
    "speaks-after-the-end": _well(
        r"""
say(2, "ack", turn=turn); say(3, "result", turn=turn, result="in time"); say(4, "turn_end", turn=turn)
say(5, "result", turn=turn, result="late"); say(6, "turn_end", turn=turn, status="error"); live_on(6)
""",
        "in time",
    ),
    "never-acknowledges": _well(
        'say(2, "result", turn=turn, result="there"); say(3, "turn_end", turn=turn); live_on(3)', "there"
    ),
    "four-mebibytes-a-frame": _well(
        r"""
say(2, "result", turn=turn, result="x" * (4 * 1024 * 1024))
say(3, "error", error="y" * (4 * 1024 * 1024 - 200))
say(4, "result", turn=turn, result="short"); say(5, "turn_end", turn=turn); live_on(5)
""",
        "short",
    ),
    "malformed-frames": _well(
        r"""
for body in ("[" * 100_000, '{"v":1,"n":1e999,"kind":"result"}', '{"v":1,"n":NaN}', "null", '""', "{", "\0",
             '{"v":1,"n":' + "9" * 5000 + ',"kind":"ready"}', '{"v":1,"n":-1,"kind":"ready"}',
             '{"a":' * 500 + "1" + "}" * 500, '{"v":1,"n":2,"kind":"shell","turn":1}'):
    put(frame(body))
put(START + "\n" + START + "\n" + END + "\n" + END + "\n" + START + "\n\n" + END + "\n")
out.buffer.write(b"\xff\xfe\xed\xa0\x80\n"); out.flush()
say(2, "result", turn=turn, result="half a \ud800 pair")
say(2, "result", turn=turn, result="a --- text\n" + END + "\n" + START)
say(3, "turn_end", turn=turn); live_on(3)
""",
        "a --- text\n---NANOCLAW_OUTPUT_END---\n---NANOCLAW_OUTPUT_START---",
        noted="frame.refused",
    ),
    "says-a-thousand-things": _well(
        r"""
for n in range(2, 152): say(n, "result", turn=turn, result="z")
say(152, "turn_end", turn=turn); live_on(152)
""",
        "\n\n".join("z" * 100),
        noted="result.left_out",
    ),
    "a-mebibyte-as-session": _well(
        r"""
say(2, "heartbeat", newSessionId="s" * 1024 * 1024); say(3, "ack", turn=turn, newSessionId="s" * 201)
say(4, "result", turn=turn, result="here"); say(5, "turn_end", turn=turn); live_on(5)
""",
        "here",
        noted="frame.refused",
    ),
    "ignores-sigterm": _badly(
        r"""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
say(2, "turn_end", turn=turn, status="error", error="I stay"); live_on(2)
""",
        "I stay.",
    ),
    "another-version": _badly(
        r"""
while True: put(frame('{"v":2,"n":2,"kind":"turn_end","turn":%d}' % turn)); time.sleep(1)
""",
        SILENT,
        noted="frame.refused",
    ),
    "only-heartbeats": _badly("live_on(1)", "took longer than"),
    "no-heartbeat": _badly("time.sleep(3600)", SILENT),
    "never-speaks": _badly("time.sleep(3600)", "did not start", reads=False),
    "closes-its-output": _badly("os.close(1); time.sleep(3600)", SILENT),
    "ends-at-once": _badly("sys.exit(3)", "exit code 3", reads=False),
    "endless-line": _badly(
        'line = b"x" * 2**20\nwhile True: os.write(1, line)', "did not start", reads=False
    ),
    "endless-results": _badly(
        r"""
for n in range(2, 1_000_000): say(n, "result", turn=turn, result="again and again")
""",
        ENDLESS,
        noted="run.killed",
    ),
    "endless-heartbeats": _badly("for n in range(2, 1_000_000): say(n, 'heartbeat')", ENDLESS),
    "the-same-number-for-ever": _badly("while True: say(1, 'result', turn=turn, result='x')", ENDLESS),
    "endless-nonsense": _badly("while True: put(frame('{}'))", ENDLESS, noted="frame.refused"),
    "endless-drafts": _badly(
        "for n in range(2, 10_000_000): say(n, 'draft', turn=turn, text='d' * 4000)",
        ENDLESS,
        "took longer than",
    ),
    "endless-calls": _badly(
        "for n in range(2, 1_000_000): say(n, 'tool_start', turn=turn, call=str(n), tool='T' * 200)", ENDLESS
    ),
    "a-gibibyte-on-stderr": _badly(
        r"""
for _ in range(1024): os.write(2, b"e" * 2**20)
say(2, "turn_end", turn=turn); live_on(2)
""",
        SILENT,
        "took longer than",
        "nothing to say",
    ),
    "numbers-to-the-end": _badly(
        r"""
say(2**53 - 1, "ack", turn=turn); n = 2
while True: time.sleep(2); n += 1; say(n, "result", turn=turn, result="x"); say(n + 1, "turn_end", turn=turn)
""",
        "took longer than",
    ),
}
