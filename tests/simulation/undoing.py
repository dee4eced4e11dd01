"""Worlds of undo: people have things of all kinds done and taken back, while host and containers are killed.

An act of a world is a question, or an undo of one of the ways in which people say so. Before and after each,
all rows and files are looked at; an undo must give back exactly what was before the turn that it means.
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import os
import random
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_runner.interfaces import Say, TokenUsage, TurnOutcome
from agent_runner.ipc_client import HostClient
from agent_runner.wire.mailbox import parse_command
from agent_runner.wire.order import TurnOrder
from orchestrator.domain.values import ChatJid, Folder, Group
from orchestrator.store.undo.turn_effects import TRACKED
from orchestrator.undo.files import OWN
from tests.simulation import judges
from tests.simulation.leftover_judges import left_over
from tests.simulation.messenger import Post, Trouble
from tests.simulation.model_agent import ModelAgent
from tests.simulation.people import Plan
from tests.simulation.services import MODEL, ServicesPlan
from tests.simulation.world import World
from tests.support.undo_harness import nth, use

UNDO = ("@Andy undo that", "@Andy undo", "@Andy 되돌려 줘", "@Andy 방금 한 거 되돌려 주세요")
ANYWAY = ("@Andy undo anyway", "@Andy 그래도 되돌려 줘")
QUIET_SECONDS = 1_800.0
"""Virtual seconds within which a world is quiet after an act."""
TURNS = 20
"""The questions of a world."""
STEPS = 200
"""The steps of the loop that an undo takes at the most, with the sending of what it says."""
IN_PLACE = ("Something else is in the place", "없어진 것의 자리에")
Snapshot = dict[tuple[str, str], Any]
"""All that an undo may put back: rows by table and key, files by group and path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """Something that a person says. `token` names what an agent does; an undo has none."""

    jid: str
    token: str = ""
    text: str = ""
    back: int = 0
    """The answer that an undo is a reply to: so many acts of its chat ago; 0 is none."""
    pause_s: float = 0.0
    """Seconds until it is said, once all is quiet."""
    kill_in: int = 0
    """The host is killed in so many steps; 0 is never."""
    again: int = 0
    """It is killed so many steps after it has started again; 0 is never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoPlan:
    """The acts of a world, and what goes wrong in it."""

    acts: tuple[Act, ...]
    deaths: tuple[int, ...] = ()
    trouble: Trouble = field(default_factory=Trouble)

    @classmethod
    def drawn(cls, seed: str, *, turns: int = TURNS) -> UndoPlan:
        """Return the acts and faults of a seed, with so many questions."""
        chance = random.Random(f"{seed}:undo")
        is_faulty = chance.random() < 0.8
        return cls(
            acts=tuple(_acts(chance, turns, is_faulty=is_faulty)),
            deaths=tuple(chance.choice((0, 0, chance.randrange(1, 12))) for _ in range(80))
            if is_faulty
            else (),
            trouble=Trouble(
                lost_before=chance.choice((0.0, 0.1)),
                lost_after=chance.choice((0.0, 0.1)),
                redelivers=chance.choice((0.0, 0.5)),
            )
            if is_faulty
            else Trouble(),
        )


CHATS = (ChatJid("chirp:g0"), ChatJid("chirp:main"))
FOLDERS = ("g0", "main", "g1")


def _acts(chance: random.Random, turns: int, *, is_faulty: bool) -> Iterator[Act]:
    for number in range(turns):
        jid = chance.choice(CHATS)
        yield _act(chance, jid, is_faulty=is_faulty, token=f"zq{chance.randrange(10**9)}{number:02d}x")
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            text = chance.choice(UNDO * 2 + ANYWAY)
            back = chance.choice((0, 0, 1, 2, 3))
            yield _act(chance, jid, is_faulty=is_faulty, text=text, back=back)


def _act(chance: random.Random, jid: str, *, is_faulty: bool, **fields: Any) -> Act:
    kill_in = chance.randrange(1, 400) if is_faulty and chance.random() < 0.25 else 0
    again = chance.randrange(1, 900) if kill_in and chance.random() < 0.3 else 0
    return Act(jid=jid, pause_s=chance.choice((0.0, 0.3, 40.0)), kill_in=kill_in, again=again, **fields)


# -- what an agent does --------------------------------------------------------------------------------

NAMES = ("a", "b", "notes/a", "notes/b", "notes/deep/a", "notes", "list.md")


def commands_of(chance: random.Random, *, is_main: bool) -> dict[str, Any]:
    """Return a command of one of the kinds that can be taken back."""
    number, word = chance.randrange(5), chance.choice(("shed", "van", "정원", "a"))
    task, question = nth("dashboard_tasks", number), nth("questions", number)
    own = [
        {"type": "set_reminder", "text": f"call {word}", "at": chance.choice(("5d", "300h"))},
        {"type": "cancel_reminder", "reminderId": nth("reminders", number)},
        use("create_task", title=word, deadline=chance.choice(("2028-07-01", "2029-01-02"))),
        use("create_task", title=f"{word} {number}"),
        use("update_task", task_id=task, progress=chance.randrange(100)),
        use("update_task", task_id=task, status=chance.choice(("completed", "in_progress", "blocked"))),
        use("move_to_history", task_id=task),
        use("create_question", question=f"Which {word}?"),
        use("answer_question", question_id=question, answer=word),
        use("remove_question", question_id=question),
        use("save_insight", content=f"{word} {number}"),
        use("update_person", id=word, data={"name": word, "n": number}),
        {"type": "notify_self", "message": f"ask about {word}", "persist_cross_session": True},
        {"type": "cancel_notice", "noticeId": nth("cross_session_notifications", number)},
        {
            "type": "schedule_task",
            "prompt": f"water {word}",
            "schedule_type": "interval",
            "schedule_value": f"{500 + number}h",
        },
        {
            "type": chance.choice(("pause_task", "resume_task", "cancel_task", "run_task")),
            "taskId": nth("scheduled_tasks", number),
        },
        {"type": "update_task", "taskId": nth("scheduled_tasks", number), "schedule_value": "800h"},
        {"type": "message", "text": "SENT"},
        {"type": "send_file", "path": "list.md", "caption": "SENT"},
    ]
    of_main = [
        {"type": "change_group", "folder": "g1", "name": word, "trigger": chance.choice(("@Bo", ""))},
        {
            "type": "register_group",
            "jid": f"chirp:n{number}",
            "name": word,
            "folder": f"n{number}",
            "trigger": "@Andy",
        },
        {"type": "register_group", "jid": f"chirp:m{number}", "name": "M", "folder": "g1", "added": True},
        {"type": "unregister_group", "folder": chance.choice((f"n{number}", "g1"))},
        {"type": "control_loop", "action": chance.choice(("on", "off", "pause")), "targetFolder": "g1"},
        {"type": "choose_model", "model": chance.choice(("default", MODEL)), "targetFolder": "g1"},
    ]
    return chance.choice(own + of_main * 2 if is_main else own)


def change_files(chance: random.Random, folder: Path) -> None:
    """Do something to a file of a group's folder, as a program in a container may."""
    path, other = folder / chance.choice(NAMES), folder / chance.choice(NAMES)
    try:
        match chance.choice(
            ("write", "write", "append", "replace", "remove", "link", "mkdir", "chmod", "move")
        ):
            case "write":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(chance.randbytes(chance.choice((0, 3, 3, 2_000))))
            case "append":
                with path.open("ab") as file:
                    file.write(b"more\n")
            case "replace":
                new = folder / "new"
                new.write_bytes(chance.randbytes(3))
                new.replace(path)
            case "remove" if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            case "remove":
                path.unlink()
            case "link":
                path.symlink_to(chance.choice(("a", "/etc/passwd", "..")))
            case "mkdir":
                path.mkdir(parents=True)
            case "chmod" if path.is_file() and not path.is_symlink():
                path.chmod(chance.choice((0o600, 0o644, 0o755)))
            case _:
                path.rename(other)
    except OSError:
        pass  # an agent, too, tries what cannot be done
    (folder / "new").unlink(missing_ok=True)


class ActingAgent(ModelAgent):
    """An agent that asks no model: the word of a question says what it does."""

    def __init__(self, *given: Any, world: UndoWorld, **named: Any) -> None:
        super().__init__(*given, **named)
        self._world = world
        self._host = next(one for one in given if isinstance(one, HostClient))

    async def answer(self, turn: TurnOrder, say: Say) -> TurnOutcome:
        words = [word for one in turn.requests for word in re.findall(r"zq\d+x", one.text)]
        for word in words:
            await self._do(word, turn)
        await say(f"Done: {' '.join(words) or 'nothing'}.")
        return TurnOutcome(usage=TokenUsage(model=MODEL, input_tokens=20, output_tokens=9))

    async def _do(self, word: str, turn: TurnOrder) -> None:
        chance = random.Random(word)
        for number in range(chance.randrange(1, 12)):
            await asyncio.sleep(chance.uniform(0.0, 0.3))
            if chance.random() < 0.4:
                change_files(chance, self._world.folder(self._container.folder))
                continue
            command = commands_of(chance, is_main=self._order.is_main)
            known = {"requestId": f"t{turn.turn}-{word}-{number}", "turn": turn.turn}
            text = json.dumps({**command, **known}).replace("SENT", f"sent {word} {number}")
            await self._host.ask(parse_command(self._world.with_ids(text, self._container.folder)))


# -- the world -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Done:
    """A turn that changed something, or that could have, with all that was before and after it."""

    turn: int
    jid: str
    before: Snapshot
    after: Snapshot
    post: Post | None
    is_undone: bool = False
    undoes: Done | None = None

    @property
    def changed(self) -> set[tuple[str, str]]:
        """The keys of what it changed."""
        keys = {*self.before, *self.after}
        return {key for key in keys if self.before.get(key) != self.after.get(key)}

    def changed_since(self, now: Snapshot) -> list[tuple[str, str]]:
        """Return the keys of what is now neither as it left them nor, of files, as they were before it."""
        return sorted(
            key
            for key in self.changed
            if _is_broken(self.after.get(key), now.get(key))
            and not (key[0].startswith("file ") and now.get(key) == self.before.get(key))
        )


class UndoWorld(World):
    """A world of one group and main, in which an act is over before the next begins."""

    def __init__(self, seed: int | str, plan: UndoPlan | None = None) -> None:
        self.undo_plan = plan or UndoPlan.drawn(str(seed))
        main, group, other = (
            Group(jid=jid, name=jid, folder=Folder(jid.split(":")[1]), is_main=jid == CHATS[1])
            for jid in (CHATS[1], CHATS[0], ChatJid("chirp:g1"))
        )
        super().__init__(
            f"undo {seed}",
            Plan(
                seconds=0.0,
                groups=(main, group, other),
                said=(),
                faults=(),
                deaths=self.undo_plan.deaths,
                trouble=self.undo_plan.trouble,
                idle_ms=5_000,
                services=ServicesPlan(asks_model=True),
            ),
        )
        self.done: list[Done] = []
        self.turns = self.undos = self.refused = 0
        self.at_kill: list[Snapshot] = []
        """All rows at each kill of the act that goes on."""

    def kill_host(self, why: str) -> None:
        before = self.kills
        super().kill_host(why)
        if self.kills > before:
            self.at_kill.append(self.rows_now())

    def agent(self) -> Any:
        return functools.partial(ActingAgent, world=self)

    def folder(self, name: str) -> Path:
        return self.home.groups / name

    async def _live(self) -> None:
        self.start_host()
        await self._until_quiet()
        for act in self.undo_plan.acts:
            if self.problems:
                break  # what comes then is built on what is wrong
            await self._carry_out(act)
        self.is_settling = True
        self.faults.end()
        await self._until_quiet()
        await self._shut_down()

    async def _carry_out(self, act: Act) -> None:
        await asyncio.sleep(act.pause_s)
        before, last = self.snapshot(), self._last_turn()
        self.at_kill.clear()
        quoted = self._answer_before(act)
        text = act.text or f"@Andy do {act.token}"
        if act.again:
            self.faults._again.append(act.again)
        if act.kill_in:
            self.kill_in_steps(act.kill_in, "")
        messenger = self.messenger_of(act.jid)
        messenger.write(act.jid, "Jane", text, quotes=None if quoted is None else quoted.number)
        if not await self._until_quiet():
            self.problems.append(f"It did not become quiet after: {text}")
        after = self.snapshot()
        if act.token:
            self.turns += 1
            self._note_turns(act, last, before, after)
        else:
            self._judge_undo(act, last, before, after, quoted)

    def _last_turn(self) -> int:
        return int(self.rows("SELECT ifnull(max(id), 0) AS id FROM turns")[0]["id"])

    def _answer_before(self, act: Act) -> Post | None:
        posts = [one.post for one in self.done if one.jid == act.jid and one.post is not None]
        return posts[-act.back] if 0 < act.back <= len(posts) else None

    def _note_turns(self, act: Act, last: int, before: Snapshot, after: Snapshot) -> None:
        found = self.rows("SELECT id FROM turns WHERE id > ? AND kind = 'chat' ORDER BY id", last)
        if len(found) != 1:
            self.problems.append(f"{act.token} made {len(found)} turns")
            return
        said = [one for one in self.messenger_of(act.jid).shown if one.by == "Andy" and one.jid == act.jid]
        post = next((one for one in said if one.text.startswith("Done: ") and act.token in one.text), None)
        self.done.append(Done(found[0]["id"], act.jid, before, after, post))

    # -- looking ---------------------------------------------------------------------------------------

    async def _until_quiet(self) -> bool:
        end = self.loop.time() + QUIET_SECONDS
        while self.loop.time() < end:
            await asyncio.sleep(1.0)
            is_up = self._host_task is not None and self.loop.stop_at <= self.loop.step
            if is_up and self.people.is_heard() and self._is_done():
                return True
        return False

    def _is_done(self) -> bool:
        (row,) = self.rows(
            "SELECT (SELECT count(*) FROM undos WHERE has_files_due = 1)"
            " + (SELECT count(*) FROM withdrawals WHERE state = 'due') AS n"
        )
        is_asked = any(self.home.ipc.glob("*/tasks/*.json")) or any(self.home.ipc.glob("*/messages/*.json"))
        # The host makes the files of new groups in a thread, which may take longer than a question does.
        is_made = all((self.folder(name) / "CLAUDE.md").exists() for name in FOLDERS)
        return is_made and not (row["n"] or is_asked or self.unsettled())

    def snapshot(self) -> Snapshot:
        """Return all rows and files that an undo may put back, but for what the host moves by itself."""
        found = self.rows_now()
        for folder in FOLDERS:
            found.update({(f"file {folder}", path): entry for path, entry in files_of(self.folder(folder))})
        return found

    def rows_now(self) -> Snapshot:
        """Return all rows of a snapshot."""
        found: Snapshot = {}
        for table in TRACKED:
            if table.is_sending:
                continue
            for row in self.rows(f"SELECT * FROM {table.name}"):
                values = dict(row)
                if values.get("agent") == "host":
                    continue
                key = json.dumps([values[name] for name in table.key])
                row_left = {name: value for name, value in values.items() if name not in table.host_columns}
                if table.name == "cross_session_notifications":
                    row_left["is_open"] = values["state"] in ("pending", "delivered")
                found[table.name, key] = row_left
        return found

    def with_ids(self, text: str, folder: str) -> str:
        """Put the ids of rows into a command that names them by their places."""
        for marked in re.finditer(r'"<(\w+) (\d+)>"', text):
            table, place = marked[1], int(marked[2])
            is_number = table in {"reminders", "cross_session_notifications"}
            column = "number" if table == "reminders" else "id"
            table = "notifications" if table == "reminders" else table
            try:
                found = self.rows(
                    f"SELECT {column} AS id FROM {table} WHERE group_folder = ? ORDER BY rowid",
                    folder,
                )
            except sqlite3.Error:
                found = []
            own = found[place % len(found)]["id"] if found else (999 if is_number else "none")
            text = text.replace(marked[0], json.dumps(own))
        return text

    # -- judging ---------------------------------------------------------------------------------------

    def _judge_undo(
        self, act: Act, last: int, before: Snapshot, after: Snapshot, quoted: Post | None
    ) -> None:
        made = self.rows("SELECT turn_id, undoes FROM undos WHERE turn_id > ? ORDER BY turn_id", last)
        said = self._reply_to(act)
        if not made:
            self.refused += 1
            for key in sorted({*before, *after}):
                if _is_broken(before.get(key), after.get(key)):
                    self._broken(act, f"nothing was undone ({said}), and {key} changed", before, after, key)
            self._judge_refusal(act, before, quoted, said)
            return
        self.undos += 1
        self._judge_kills(act, before, after)
        if len(made) > 1:
            self.problems.append(f"{act.text} undid {len(made)} turns")
        number, undoes = made[0]["turn_id"], made[0]["undoes"]
        turn = next((one for one in self.done if one.turn == undoes), None)
        if turn is None:
            self.problems.append(f"{act.text} undid turn {undoes}, which nobody asked for")
            return
        expected = self._expected(turn, before)
        for key in sorted({*expected, *after}):
            if _is_broken(expected.get(key), after.get(key)):
                self._broken(act, f"turn {undoes} ({said}), and {key}", expected, after, key)
        since = turn.changed_since(before)
        if since and act.text not in ANYWAY:
            self.problems.append(f"{act.text}: turn {undoes} was undone, though {since[:2]} changed since")
        turn.is_undone = True
        done = Done(number, act.jid, before, after, None, undoes=turn)
        if turn.undoes is None:
            self._judge_messages(act, turn)
        done.post = next(
            (
                one
                for one in reversed(self.messenger_of(act.jid).shown)
                if one.by == "Andy" and one.jid == act.jid
            ),
            None,
        )
        self.done.append(done)

    def _expected(self, turn: Done, before: Snapshot) -> Snapshot:
        """Return what an undo of a turn makes of `before`."""
        expected = dict(before)
        for key in turn.changed:
            if key in turn.before:
                expected[key] = turn.before[key]
            else:
                expected.pop(key, None)
        self._except_what_ran(turn, before, expected)
        _except_full_directories(turn, before, expected)
        return expected

    def _judge_messages(self, act: Act, turn: Done) -> None:
        """Complain of what a turn that was undone has sent and that is still shown."""
        word = turn.post and turn.post.text.split()[1].rstrip(".")
        for post in self.messenger_of(act.jid).shown:
            if word and post.text.startswith(f"sent {word} "):
                self.problems.append(f"{act.text}: {post.text!r} of turn {turn.turn} is still there")

    def _judge_kills(self, act: Act, before: Snapshot, after: Snapshot) -> None:
        """At each kill, the rows are what they were before the undo, or all of them what it makes of them."""
        whole = [
            {key: row for key, row in one.items() if not key[0].startswith("file ")}
            for one in (before, after)
        ]
        if any(rows not in whole for rows in self.at_kill):
            self.problems.append(f"{act.text}: a kill left it half done")

    def _broken(self, act: Act, what: str, expected: Snapshot, after: Snapshot, key: tuple[str, str]) -> None:
        self.problems.append(
            f"{act.text} of act {self.undo_plan.acts.index(act)}: {what}:"
            f" {_difference(expected.get(key), after.get(key))}"
        )

    def _reply_to(self, act: Act) -> str:
        posts = [one for one in self.messenger_of(act.jid).shown if one.jid == act.jid and one.by == "Andy"]
        return posts[-1].text[:160] if posts else ""

    def _judge_refusal(self, act: Act, before: Snapshot, quoted: Post | None, said: str) -> None:
        """Complain where nothing was undone though nothing stood in the way."""
        own = [one for one in self.done if one.jid == act.jid]
        if quoted is not None:
            own = [one for one in own if one.post is quoted]
        did = [one for one in own if one.changed or one.undoes is not None]
        if did and not did[-1].changed:
            return  # the last undo deleted messages alone, which no undo of it sends again
        left = [one for one in own if one.changed and not one.is_undone]
        if not left or said.startswith(IN_PLACE):
            return
        if not left[-1].changed_since(before):
            self.problems.append(
                f"{act.text}: turn {left[-1].turn} was not undone ({sorted(left[-1].changed)[:4]}): {said}"
            )

    def _except_what_ran(self, turn: Done, before: Snapshot, expected: Snapshot) -> None:
        """A scheduled task that has run is ended instead."""
        for key in turn.changed:
            if key[0] != "scheduled_tasks" or key in turn.before or key not in before:
                continue
            (task,) = json.loads(key[1])
            if self.rows("SELECT 1 FROM task_run_logs WHERE task_id = ?", task):
                expected[key] = {**before[key], "status": "cancelled", "next_run": None}

    def _judge(self) -> None:
        for find in (judges._unlisted, judges._errors, judges._loops, left_over):
            self.problems += find(self)
        for row in self.rows(
            "SELECT n.id, n.claim_turn FROM cross_session_notifications n JOIN turns t ON t.id = n.claim_turn"
            " WHERE n.state = 'pending' AND t.state NOT IN ('queued', 'running')"
        ):
            self.problems.append(f"Note {row['id']} is held by turn {row['claim_turn']}, which is over.")


def _is_broken(expected: Any, found: Any) -> bool:
    """Return whether something is not as it has to be; the host itself puts ended tasks of a board away."""
    if (
        isinstance(expected, dict)
        and isinstance(found, dict)
        and found.get("archived_ms")
        and found.get("status") == "completed"
    ):
        host = ("archived_ms", "updated_ms")
        expected, found = ({k: v for k, v in one.items() if k not in host} for one in (expected, found))
    return bool(expected != found)


def _difference(expected: Any, found: Any) -> str:
    if isinstance(expected, dict) and isinstance(found, dict):
        names = [name for name in expected if expected[name] != found.get(name)]
        expected, found = ({name: row.get(name) for name in names} for row in (expected, found))
    return f"expected {expected}, found {found}"


def files_of(folder: Path) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Yield what lies in a folder: kind and bytes, or where a link points."""
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if name.split("/", maxsplit=1)[0] in OWN:
            continue
        if path.is_symlink():
            yield name, ("link", os.fsencode(path.readlink()))
        elif path.is_dir():
            yield name, ("dir", b"")
        elif path.is_file():
            yield name, (f"file {path.stat().st_mode & 0o777:o}", path.read_bytes())


def _except_full_directories(turn: Done, before: Snapshot, expected: Snapshot) -> None:
    """A directory stays that holds what others have put into it since, and what is in its place waits."""
    for key in sorted(turn.changed, reverse=True):
        if not key[0].startswith("file ") or before.get(key, ("",))[0] != "dir":
            continue
        if expected.get(key, ("",))[0] == "dir":
            continue
        if any(one[0] == key[0] and one[1].startswith(f"{key[1]}/") for one in expected):
            expected[key] = before[key]


def killed_at(step: int) -> UndoWorld:
    """Return a world of one question, its undo and the undo of that, each killed at this step."""
    token = "zq11x"  # one that has rows and files changed, and a message sent
    return UndoWorld(
        f"step {step}",
        UndoPlan(
            acts=(
                Act(jid=CHATS[0], token=token),
                Act(jid=CHATS[0], text=UNDO[0], kill_in=step),
                Act(jid=CHATS[0], text=UNDO[0], kill_in=step),
            )
        ),
    )


def try_undos(seed: int, turns: int, *, is_until_broken: bool = False) -> int:
    """Try as many questions in new worlds, then a kill at each step of an undo; return the exit code.

    With `is_until_broken`, the first world that breaks a promise ends it.
    """
    total, broken, began = [0, 0, 0, 0, 0], 0, time.process_time()
    worlds = [UndoWorld(seed + number) for number in range(math.ceil(turns / TURNS))]
    for world in [*worlds, *map(killed_at, range(1, STEPS))]:
        outcome = world.run()
        own = (1, world.turns, world.undos, world.refused, outcome.kills)
        total = [a + b for a, b in zip(total, own, strict=True)]
        broken += bool(outcome.problems)
        if outcome.problems:
            print(f"Seed {outcome.seed}: " + " | ".join(outcome.problems[:3]), flush=True)
            if is_until_broken:
                break
    tried, questions, undos, refused, kills = total
    print(
        f"{tried} worlds, {questions} turns, {undos} undos, {refused} that undid nothing,"
        f" {kills} kills of the host, {broken} worlds with a broken promise,"
        f" in {time.process_time() - began:.0f} CPU seconds."
    )
    return 1 if broken else 0
