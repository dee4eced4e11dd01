"""Bugs that are planted into a copy of the program, to see whether worlds find them.

Each is one patch of the source; `make simulate PLANTED=all` tries them. They spread over the path of a
message, and are of kinds that are really made: a check left out, a number one off, a wake-up dropped, an
effect before its commit.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
COPIED = ("orchestrator", "agent_runner", "tests/simulation", "tests/support", "tests/doubles")


MOST_HOURS = 0.08
"""Virtual hours of the worlds in which bugs are looked for: most are narrow, and cost half a second."""
MODELS = f"--models --hours={MOST_HOURS}"
SWARM = f"--swarm --hours={MOST_HOURS}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A bug: in the file at `path`, `right` becomes `wrong`."""

    name: str
    path: str
    right: str
    wrong: str
    also: tuple[tuple[str, str], ...] = ()
    """Further replacements in the same file, where a second line of defence would hide the first."""
    worlds: str = f"--hours={MOST_HOURS}"
    """The options of the command that name the worlds in which it is looked for."""


BUGS = (
    Planted(
        name="a sleep of four hours becomes five minutes (a race of the past)",
        path="orchestrator/loop/cycle_starter.py",
        right="        times: list[int] = []\n",
        wrong="        times: list[int] = []\n        now_ms = self._clock.now_ms()\n",
        also=(
            (
                "            now_ms = self._clock.now_ms()\n            await self._recorder.settle(tx)\n",
                "            await self._recorder.settle(tx)\n",
            ),
            ("CLOCK_SLACK_MS = 60_000\n", "CLOCK_SLACK_MS = 0\n"),
        ),
        worlds="--loops --hours=1",
    ),
    Planted(
        name="of the groups that wait the newest goes first",
        worlds="--family=crowded",
        path="orchestrator/queue/next_turns.py",
        right="    return rank, turn.queued_ms, turn.id\n",
        wrong="    return rank, -turn.queued_ms, turn.id\n",
    ),
    Planted(
        name="a connection that is lost counts as the end of its container (a race of the past)",
        worlds="--family=exact",
        path="orchestrator/containers/output.py",
        right="                rejoined = await self._rejoin(live)\n",
        wrong="                rejoined = None\n",
    ),
    Planted(
        name="a text that is sent again has another id",
        path="orchestrator/outbound/delivery.py",
        right="                    outgoing.message_id,\n",
        wrong="                    MessageId(f'{outgoing.message_id}{outgoing.attempts}'),\n",
    ),
    Planted(
        name="what may have been sent before a crash is sent again",
        path="orchestrator/outbound/delivery.py",
        right="        if outgoing.state is OutboxState.SENDING and not (",
        wrong="        if False and not (",
    ),
    Planted(
        name="a send whose answer was lost is tried again on every messenger",
        path="orchestrator/outbound/delivery.py",
        right="            if channel is not None and channel.name in self._resends:",
        wrong="            if channel is not None:",
    ),
    Planted(
        name="a late reminder is said to be lost although another message brings it (found here first)",
        worlds="--family=exact",
        path="orchestrator/outbound/delivery.py",
        right="            if state is not OutboxState.SKIPPED and notifies_agent:",
        wrong="            if state is not OutboxState.SKIPPED:",
    ),
    Planted(
        name="a chat stays busy after its message was sent",
        path="orchestrator/outbound/delivery.py",
        right="            self._busy.discard(outgoing.chat_jid)",
        wrong="            pass",
    ),
    Planted(
        name="the newest message of a chat is sent first",
        path="orchestrator/store/conversation/outbox.py",
        right="PARTITION BY chat_jid ORDER BY coalesce(part_of, id), part) AS place",
        wrong="PARTITION BY chat_jid ORDER BY -coalesce(part_of, id), part) AS place",
    ),
    Planted(
        name="what a broken attempt had said is not dropped",
        path="orchestrator/queue/retries.py",
        right="    await outbox.drop_held(tx, turn.id)\n",
        wrong="",
    ),
    Planted(
        name="what a turn said is released before its end",
        path="orchestrator/containers/frame_effects.py",
        right="        state=OutboxState.HELD,\n",
        wrong="",
    ),
    Planted(
        name="a container that was adopted is read on from one frame too late",
        path="orchestrator/containers/live_runs.py",
        right="            last_frame=run.last_frame,\n",
        wrong="            last_frame=run.last_frame + 1,\n",
    ),
    Planted(
        name="frames count as read one too early",
        path="orchestrator/containers/output.py",
        right="        is_new = frame.n > live.last_frame ",
        wrong="        is_new = frame.n > live.last_frame + 1 ",
    ),
    Planted(
        name="a container that was adopted is not given its turn again",
        worlds="--family=exact",
        path="orchestrator/containers/reattach.py",
        right="        if turn is not None and group is not None and not is_acknowledged:\n",
        wrong="        if False:\n",
    ),
    Planted(
        name="turns of lost containers are not put back at a start",
        path="orchestrator/containers/reattach.py",
        right="        for run_id, run in recorded.items():  # in the order in which they began",
        wrong="        for run_id, run in ():",
    ),
    Planted(
        name="a container that no run has is left alone",
        worlds="--family=exact",
        path="orchestrator/containers/reattach.py",
        right="                await self._orphans.remove(container, orphan)\n",
        wrong="                pass\n",
    ),
    Planted(
        name="the end of a run is not recorded with its turn",
        path="orchestrator/containers/termination.py",
        right="            await runs.end(tx, run.id, kind",
        wrong="            await runs.end(tx, RunId(''), kind",
    ),
    Planted(
        name="a silent container is never killed",
        worlds="--family=exact",
        path="orchestrator/containers/timeouts.py",
        right="    if now_ms - vitals.last_frame_ms > SILENT_MS:",
        wrong="    if False:",
    ),
    Planted(
        name="an idle container is never closed",
        path="orchestrator/containers/timeouts.py",
        right="        case RunState.IDLE if in_state_ms > (",
        wrong="        case RunState.IDLE if in_state_ms > 1e12 + (",
    ),
    Planted(
        name="a message that comes again is stored as another one",
        path="orchestrator/inbound/intake.py",
        right="        known = await messages.find(tx, message.chat_jid, message.id)\n"
        "        if known is not None and",
        wrong=""
        "        if await messages.find(tx, message.chat_jid, message.id):\n"
        "            message = replace(message, id=MessageId(f'{message.id}-again'))\n"
        "        known = await messages.find(tx, message.chat_jid, message.id)\n"
        "        if known is not None and",
    ),
    Planted(
        name="a new message wakes nobody",
        path="orchestrator/inbound/intake.py",
        right="            self._wakeups.lanes.set()\n",
        wrong="            pass\n",
    ),
    Planted(
        name="a request that comes again is done again",
        path="orchestrator/ipc/command_dispatcher.py",
        right="                return earlier_reply, False\n",
        wrong="                pass\n",
    ),
    Planted(
        name="a request is removed before it is done",
        worlds="--family=exact",
        path="orchestrator/ipc/mailbox_worker.py",
        right='\n        replies = self._root / group.folder / "replies"\n',
        wrong='\n        replies = self._root / group.folder / "replies"\n'
        "        await asyncio.to_thread(mailbox.remove, request)\n",
    ),
    Planted(
        name="a group's answer goes to its first chat, wherever it was asked",
        path="orchestrator/containers/frame_effects.py",
        right="        chat_jid=turn.chat_jid,\n        folder=turn.folder,\n        text=text,",
        wrong="        chat_jid=(await __import__('orchestrator.store.groups.groups').store.groups.groups"
        ".by_folder(tx, turn.folder)).jid,\n"
        "        folder=turn.folder,\n        text=text,",
    ),
    Planted(
        name="the outbox is not woken by the end of a turn",
        path="orchestrator/containers/output.py",
        right="wakeups.outbox.set()\n        self._context.wakeups.lanes.set()\n\n\ndef",
        wrong="wakeups.lanes.set()\n\n\ndef",
    ),
    Planted(
        name="reminders are looked for once in five minutes",
        path="orchestrator/dashboard/delivery/due_notifications.py",
        right="        return min(SWEEP_SECONDS, max(0.0, (outlook.next_ms - self._clock.now_ms()) / 1000))",
        wrong="        return 60 * SWEEP_SECONDS",
    ),
    Planted(
        name="a turn that left its model service is not put back",
        path="orchestrator/queue/retries.py",
        right="    await turns.put_back(tx, turn, reason=reason, not_before_ms=now_ms, "
        "counts_as_attempt=False)\n",
        wrong="",
        worlds=MODELS,
    ),
    Planted(
        name="a model service that is down is not asked again",
        path="orchestrator/proxies/model/failover.py",
        right="PROBE_EVERY_SECONDS = 30.0\n",
        wrong="PROBE_EVERY_SECONDS = 3e6\n",
        worlds=MODELS,
    ),
    Planted(
        name="a turn goes back to the model service that it has left",
        path="orchestrator/proxies/model/routing.py",
        right="        chosen = self.first_that_answers(candidates, left_services)\n",
        wrong="        chosen = self.first_that_answers(candidates)\n",
        worlds=MODELS,
    ),
    Planted(
        name="the next model is not told what was done before",
        path="orchestrator/inbound/prompt.py",
        right="*lines[-MAX_CALLS:]]) if lines else None\n",
        wrong="*lines[-MAX_CALLS:]]) if False else None\n",
        worlds=MODELS,
    ),
    Planted(
        name="the owner reads of each question that finds a model service down",
        path="orchestrator/proxies/model/failover.py",
        right="return last is None or (last.is_resolved and not 0 <= now_ms - last.at_ms < QUIET_MS)\n",
        wrong="return True\n",
        worlds=MODELS,
    ),
    Planted(
        name="the last text of a long answer is left out",
        path="orchestrator/outbound/delivery.py",
        right="                outgoing = await outbox.split(tx, outgoing, parts)\n",
        wrong="                outgoing = await outbox.split(tx, outgoing, parts[:-1])\n",
    ),
    Planted(
        name="a reminder that was due before its channel had started waits for an hour",
        path="orchestrator/dashboard/delivery/decision.py",
        right="PAUSES_MS = (30_000, ",
        wrong="PAUSES_MS = (3_600_000, ",
        worlds="--family=exact",
    ),
    Planted(
        name="a carrier writes to a connection that is lost (a race of the past)",
        path="agent_runner/wire/carrier.py",
        right="            if self.writer.is_closing():  # a write would fail",
        wrong="            if False:  # a write would fail",
        worlds=SWARM,
    ),
    Planted(
        name="after an hour an agent on a node ends with its connection (a bug of the past)",
        path="agent_runner/carrier/carrier.py",
        right="                last_connected, problem = loop.time(), problem_of(lost)\n",
        wrong="                problem = problem_of(lost)\n",
        worlds="--swarm",
    ),
    Planted(
        name="what a messenger gave is noted as read before the message is stored",
        path="orchestrator/inbound/intake.py",
        right=""
        "        taken = await self._database.write(lambda tx: self.take(tx, message, cursor=cursor))\n",
        wrong="        if cursor is not None and message.channel is not None:\n"
        "            await self._database.write(lambda tx: chats.set_cursor(tx, message.channel, cursor))\n"
        "        taken = await self._database.write(lambda tx: self.take(tx, message))\n",
    ),
    Planted(
        name="frames of two containers of a group count as the same",
        path="orchestrator/containers/frame_effects.py",
        right='dedupe_key=f"frame:{run.id}:{frame.n}"',
        wrong='dedupe_key=f"frame:{run.folder}:{frame.n}"',
    ),
    Planted(
        name="commits are not synced to the disk",
        path="orchestrator/store/database.py",
        right='"synchronous = FULL"',
        wrong='"synchronous = NORMAL"',
    ),
    Planted(
        name="answers count for a budget only once they are stored",
        path="orchestrator/proxies/model/budget_admission.py",
        right="        self._budget_cache.count(entry)\n",
        wrong="        pass\n",
        worlds=MODELS,
    ),
    Planted(
        name="a loop's turn that has ended still counts as running",
        path="orchestrator/loop/cycle_recorder.py",
        right="next_wake)\n        await loops.release(tx, cycle.folder, cycle.turn_id)\n",
        wrong="next_wake)\n",
        worlds="--loops --hours=1",
    ),
    Planted(
        name="a task that is due stays due",
        path="orchestrator/scheduler/due_tasks.py",
        right="    await tasks.advance(tx, task.id, decision.next_ms)\n",
        wrong="",
        worlds="--quiet",
    ),
    Planted(
        name="a task's next time is reckoned a day ahead",
        path="orchestrator/scheduler/due_tasks.py",
        right="        next_ms=timing.following_ms(task.schedule, task.next_ms, after_ms=now_ms),\n",
        wrong="        next_ms=timing.following_ms(task.schedule, task.next_ms, after_ms=now_ms + 9e7),\n",
        worlds="--quiet",
    ),
    Planted(
        name="files are not put back when the host is killed after the commit of an undo",
        path="orchestrator/undo/service.py",
        right="has_files_due=bool(plan.files)",
        wrong="has_files_due=False",
        worlds="--undo=20",
    ),
    Planted(
        name="an undo overwrites what was changed since",
        path="orchestrator/undo/later_changes.py",
        right="turn_effects.is_unchanged_since(effect, await turn_effects.current(tx, effect))\n",
        wrong="True\n",
        worlds="--undo=100",
    ),
    Planted(
        name="an undo leaves the files as they are",
        path="orchestrator/undo/service.py",
        right="        for effect in plan.files:",
        wrong="        for effect in plan.files[1:]:",
        worlds="--undo=20",
    ),
    Planted(
        name="all containers go to the first node that has room",
        path="orchestrator/containers/swarm/nodes.py",
        right="key=lambda node: (counts[node.id], node.name, node.id))",
        wrong="key=lambda node: (node.name, node.id))",
        worlds="--swarm",
    ),
    Planted(
        name="an agent is given what was said in other groups",
        path="orchestrator/store/conversation/prompt_messages.py",
        right="    m.group_folder = :folder AND m.seq > :cursor",
        wrong="    m.seq > :cursor",
    ),
    Planted(
        name="the outbox is not woken by the end of a sending",
        path="orchestrator/outbound/delivery.py",
        right="            self._busy.discard(outgoing.chat_jid)\n            self._wakeup.set()\n",
        wrong="            self._busy.discard(outgoing.chat_jid)\n",
    ),
    Planted(
        name="a task of each night runs an hour late",
        path="orchestrator/scheduler/due_tasks.py",
        right="    await tasks.advance(tx, task.id, decision.next_ms)\n",
        wrong="    await tasks.advance(tx, task.id, decision.next_ms and decision.next_ms + 3_600_000)\n",
        worlds="--quiet",
    ),
)


def look_for(bug: Planted, *, first: int, worlds: int, seconds: float = 0.0, shrink: float = 0.0) -> str:
    """Try worlds of the program with a bug until one breaks a promise; return the row of the table.

    A world that breaks a promise without the bug as well has not found it, and the next is tried. `seconds`
    of CPU time are spent at the most; 0 is no bound. With `shrink`, the world that has found it is shrunk for
    so many CPU seconds, and the row ends with what was left of it.
    """
    path = REPOSITORY / bug.path
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    for right, wrong in ((bug.right, bug.wrong), *bug.also):
        if text.count(right) != 1:
            return f"| {bug.name} | – | not planted: {bug.path} does not have what it replaces |"
        text = text.replace(right, wrong)
    with tempfile.TemporaryDirectory(prefix="andy-planted-", dir=_fast()) as folder:
        root = Path(folder)
        for part in COPIED:
            shutil.copytree(REPOSITORY / part, root / part, ignore=shutil.ignore_patterns("__pycache__"))
        (root / bug.path).write_text(text, encoding="utf-8")
        spent, tried, seed = 0.0, 0, first
        while tried < worlds and (not seconds or spent < seconds):
            options = [f"--seed={seed}", f"--worlds={worlds - tried}", "--until-broken", *bug.worlds.split()]
            options += [f"--minutes={(seconds - spent) / 60}"] if seconds else []
            found = _simulate(root, options)
            last = (found.stdout.strip().splitlines() or [""])[-1]
            counted = re.match(r"(\d+) worlds, .* in (\d+) CPU seconds", last)
            if counted is None:
                return f"| {bug.name} | – | {(found.stderr.strip().splitlines() or ['it ended'])[-1]} |"
            tried, spent = tried + int(counted[1]), spent + max(1.0, float(counted[2]))
            broken = next((line for line in found.stdout.splitlines() if line.startswith("Seed ")), None)
            if broken is None:
                break
            name, problem = broken.removeprefix("Seed ").split(": ", 1)
            # The worlds of undo are few and known to be whole.
            if (
                "--undo" in bug.worlds
                or _simulate(REPOSITORY, [f"--seed={name}", "--worlds=1"]).returncode == 0
            ):
                problem = problem.split(" | ")[0].replace("|", "/")[:110]
                row = f"| {bug.name} | {tried} ({spent:.0f} s) | {problem} (seed {name}) |"
                return f"{row} {_shrunk(root, name, shrink)} |" if shrink else row
            seed = int(re.sub(r"\D", "", name)) + 1
    return f"| {bug.name} | – | not found in {tried} ({spent:.0f} s) |"


def _shrunk(root: Path, seed: str, seconds: float) -> str:
    """Return how much of a world there was and is left after so many CPU seconds of shrinking it."""
    lines = _simulate(root, [f"--seed={seed}", f"--shrink={seconds}"]).stdout.splitlines()
    sizes = [line for line in lines if line.startswith("… ")]
    command = next(line for line in lines if line.startswith("To see it again: "))
    return f"{sizes[0]} → {sizes[-1]}; {command}".replace("… ", "")


def _simulate(root: Path, options: list[str]) -> subprocess.CompletedProcess[str]:
    """Run the worlds of a copy of the program."""
    command = [sys.executable, root / "tests/simulation/__main__.py", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _fast() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
