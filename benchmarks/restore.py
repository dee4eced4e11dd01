"""A conversation that goes on in a new container: from its session, and from what was kept of a lost one."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from benchmarks import claude, engine
from benchmarks.figures import Figure, Series, excess_of, median_of
from benchmarks.host import RunningHost, of_kind, running_host
from benchmarks.places import Effort, progress
from orchestrator.context import hydrate, models, transcript, workflow
from orchestrator.context.models import ContextMessage
from orchestrator.context.resume_or_retell import RestoreFacts, plan_restore
from orchestrator.context.tokens import EncodingCounter
from orchestrator.domain.values import TurnId
from orchestrator.store.runs.checkpoints import AnsweredSession, TurnCheckpoint
from tests.doubles.messages_api import ScriptedMessagesApi
from tests.support.transcripts import SESSION, Writing, place

PAIRS = 4
DECISIONS = 100
EXTRA_MS = 3_000
DECISION_MS = 50
CLOSE_AT_ONCE = {"IDLE_TIMEOUT": "1000"}
TALK = ("The first bee is blue, and she lives under the roof.", "The second one is red. Remember both.")
TURNS = 500
"""So many answered turns are in the transcript that a decision is made of: 2 MiB."""


async def measure(effort: Effort) -> list[Figure]:
    """In turns, each in a group of its own: one is resumed, the other has lost its transcript."""
    await asyncio.to_thread(engine.ensure_image)
    times = effort.times(PAIRS, at_least=3) + effort.warm_ups
    pairs = [(f"kept{number}", f"lost{number}") for number in range(times)]
    folders = [folder for pair in pairs for folder in pair]
    resumed: list[float] = []
    rehydrated: list[float] = []
    with engine.bare_engine() as bare, claude.api_on(bare) as api:
        settings = {**claude.host_settings(api), **CLOSE_AT_ONCE}
        async with running_host(runtime="docker", agent="claude", groups=folders, settings=settings) as host:
            for number, (kept, lost) in enumerate(pairs):
                for folder in (kept, lost) if number % 2 else (lost, kept):
                    into = resumed if folder == kept else rehydrated
                    into.append(await _go_on(host, api, folder, is_lost=folder == lost))
                progress(f"pair {number}: resumed {resumed[-1]:.0f} ms, rehydrated {rehydrated[-1]:.0f} ms")
    decisions = await asyncio.to_thread(_decisions, effort.times(DECISIONS, at_least=20))
    return [_figure(resumed[effort.warm_ups :], rehydrated[effort.warm_ups :]), _decision_figure(decisions)]


async def _go_on(host: RunningHost, api: ScriptedMessagesApi, folder: str, *, is_lost: bool) -> float:
    """Talk, let the container end, and ask again: milliseconds from the message to the request."""
    for text in TALK:
        message = await host.say(folder, text)
        await host.event(of_kind("message.queued", message=message))
        await host.event(of_kind("turn.answered", group=folder))
    await host.event(of_kind("run.ended", group=folder))
    if is_lost:
        await asyncio.to_thread(_lose, host.home.root, folder)
    before = len(api.turns)
    message = await host.say(folder, "Which colours have my bees?")
    queued = await host.event(of_kind("message.queued", message=message))
    restored = await host.event(of_kind("conversation.restored", group=folder))
    assert restored["detail"] == ("rehydrate" if is_lost else "resume"), restored
    requests = await asyncio.to_thread(api.wait_for_turns, before + 1)
    await host.event(of_kind("run.ended", group=folder))
    return float(1000 * requests[before].at) - float(queued["at_ms"])


def _lose(home: Path, folder: str) -> None:
    with closing(sqlite3.connect(f"file:{home / 'store' / 'messages.db'}?mode=ro", uri=True)) as store:
        (session,) = store.execute(
            "SELECT session_id FROM sessions WHERE group_folder = ?", (folder,)
        ).fetchone()
    (path,) = home.glob(f"data/sessions/{folder}/.claude/projects/*/{session}.jsonl")
    path.unlink()


def _decisions(times: int) -> list[float]:
    """Processor time that a start takes for looking: the transcript read, the texts made, the plan; warm."""
    counter = EncodingCounter()
    counter.count("the encoding is loaded once a host")
    with tempfile.TemporaryDirectory() as directory:
        sessions = Path(directory)
        checkpoints = _write_transcript(place(sessions))
        return [_decide(sessions, checkpoints, counter) for _ in range(times)]


def _write_transcript(path: Path) -> list[TurnCheckpoint]:
    talk, checkpoints = Writing(), []
    for turn in range(1, TURNS + 1):
        talk.asks(f"Question {turn}: " + "what of the bees? " * 60)
        checkpoints.append(TurnCheckpoint(turn=TurnId(turn), uuid=talk.answers("They are fine. " * 120)))
    path.write_text(talk.text())
    return checkpoints


def _decide(sessions: Path, checkpoints: Sequence[TurnCheckpoint], counter: EncodingCounter) -> float:
    window = tuple(
        ContextMessage(
            id=f"t{turn}.{whose}", role=role, content="The bees are fine. " * 10, ts=models.iso(turn)
        )
        for turn, (whose, role) in itertools.product(range(1, 8), (("u", "user"), ("a", "assistant")))
    )
    context = models.bootstrap(0).model_copy(update={"conversation": models.Dialogue(recent_window=window)})
    began = time.thread_time()
    found = transcript.read(sessions, "family", SESSION)
    whole = hydrate.hydrated(context, workflow.bootstrap("family", 0), counter, now_ms=0)
    known = RestoreFacts(
        session_id=SESSION,
        answered=AnsweredSession(session_id=SESSION, at_ms=0),
        checkpoints=checkpoints,
        transcript=found,
        has_stored_context=bool(whole),
        stored_turns=range(1, 8),
        now_ms=0,
    )
    decision = plan_restore(known)
    took = 1000 * (time.thread_time() - began)
    assert decision.mode == "resume", decision
    return took


def _series(name: str, values: Sequence[float]) -> Series:
    return Series(name=name, unit="ms", values=tuple(values))


def _figure(resumed: Sequence[float], rehydrated: Sequence[float]) -> Figure:
    measured = _series("session lost → first request", rehydrated)
    floor = _series("floor: session resumed → first request", resumed)
    return Figure(
        name="A lost conversation goes on, Claude agent, docker",
        measured=measured,
        floor=floor,
        checks=(excess_of(measured, floor, EXTRA_MS),),
    )


def _decision_figure(values: Sequence[float]) -> Figure:
    measured = _series("processor time: transcript of 2 MiB read, texts made, decided", values)
    return Figure(
        name="How a conversation goes on, decided",
        measured=measured,
        checks=(median_of(measured, DECISION_MS),),
    )
