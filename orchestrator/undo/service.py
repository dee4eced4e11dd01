"""Undo a turn: plan what is restored, and restore all rows in one transaction; files follow after it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

from orchestrator.base.clock import Clock
from orchestrator.domain.errors import BadRequest, UnknownTurn
from orchestrator.domain.protocols import Feature
from orchestrator.domain.values import (
    ChatJid,
    Folder,
    OutboxState,
    Outgoing,
    Turn,
    TurnId,
    TurnKind,
    TurnState,
)
from orchestrator.groups import registration
from orchestrator.store import audit
from orchestrator.store.board import dashboards
from orchestrator.store.conversation import outbox, withdrawals
from orchestrator.store.database import Tx, after_commit, announce
from orchestrator.store.groups import groups
from orchestrator.store.notices import host_events
from orchestrator.store.runs import tool_calls, turns
from orchestrator.store.schedule import task_stops
from orchestrator.store.undo import turn_effects, undos
from orchestrator.store.undo.turn_effects import BY_NAME, RowEffect
from orchestrator.store.undo.undos import Undo
from orchestrator.undo import consequences, file_effects, later_changes, outside, texts
from orchestrator.undo.files import FolderBusy, GroupFiles, is_same
from orchestrator.undo.plan import UndoPlan, is_listed, item_of

RECENT_TURNS = 30
"""Last turns of a group that are searched for one with an effect."""
UNDONE = "undo of turn {number}"
"""The reason of a turn that is an undo from outside of a chat."""
BOARD = frozenset({"notifications", "dashboard_tasks", "questions", "insights", "people", "projects"})
_UNSENT = (OutboxState.HELD, OutboxState.PENDING)
"""States of messages that undoing can still stop."""
_POSSIBLY_SENT = (OutboxState.SENDING, OutboxState.SENT, OutboxState.UNKNOWN)


class NothingToUndo(BadRequest):
    """A turn changed nothing that can be restored."""

    code = "nothing_to_undo"


class SomethingInPlace(NothingToUndo):
    """Another row or file is in the place of one that the turn removed."""


class NotYet(BadRequest):
    """A turn of the group is running: its data must not change. Or its files cannot be compared now."""

    code = "busy"
    http_status = 409

    def __init__(self, turn: Turn) -> None:
        """`turn` is the turn that is not over."""
        self.turn = turn
        super().__init__(f"Turn {turn.id} of '{turn.folder}' is not over yet: undo it once that has ended.")


class BuiltOn(BadRequest):
    """Something that a turn changed was changed again since."""

    code = "built_on"
    http_status = 409

    def __init__(self, plan: UndoPlan) -> None:
        """`plan` is that of the undo, with the later changes."""
        self.plan = plan
        listed = "; ".join(texts.later(plan, is_korean=False))
        super().__init__(
            f"Changed again since: {listed}. Nothing was undone."
            " '--anyway' (over HTTP, \"anyway\": true) undoes it all the same; the later change is then lost."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoDone:
    """An undo that was carried out."""

    turn_id: TurnId
    """The undo's own turn."""
    plan: UndoPlan

    def to_row(self) -> dict[str, Any]:
        """Return the undo as JSON fields, as the command line and HTTP show it.

        `turn` is the undo's own turn, and `undoes` the undone one. `unsent` counts messages that were kept
        from being sent, `deleted` sent ones whose deletion was requested, and `stopped_runs` the queued turns
        of scheduled tasks that the turn had requested. `left` has the effects that stay.
        """
        plan = self.plan
        return {
            "turn": self.turn_id,
            "undoes": plan.turn.id,
            "group": plan.turn.folder,
            "put_back": [asdict(item) for item in plan.items],
            "unsent": len(plan.unsent),
            "deleted": len(plan.sent),
            "stopped_runs": len(plan.waiting_runs),
            "left": [asdict(effect) for effect in plan.outside],
            "text": texts.done(plan, is_korean=False),
        }


class Messenger(Protocol):
    """A channel or its description: what undo has to know of the messenger of a chat."""

    @property
    def features(self) -> frozenset[Feature]: ...


def _no_messenger(jid: ChatJid) -> None:
    """Return None for every chat: the default where no messenger can delete messages."""
    del jid


@dataclass(slots=True)
class UndoService:
    """Undoes turns in the transaction given."""

    clock: Clock
    files: GroupFiles
    channel_for: Callable[[ChatJid], Messenger | None] = _no_messenger
    """The messenger of a chat, which may be able to delete sent messages."""

    def can_withdraw(self, sent: Outgoing) -> bool:
        """Return whether the messenger of a sent message or reaction can delete it."""
        messenger = self.channel_for(sent.chat_jid)
        needed = Feature.WITHDRAWALS if sent.reacts_to is None else Feature.REACTIONS
        return messenger is not None and needed in messenger.features

    async def by_number(self, tx: Tx, number: int) -> Turn:
        """Return the turn with this number. Raises `UnknownTurn` if there is none."""
        # `number` is what somebody typed: one that is too large for SQLite would raise another error.
        turn = await turns.get(tx, TurnId(number)) if 0 < number < 2**53 else None
        if turn is None:
            raise UnknownTurn(number)
        return turn

    async def last(self, tx: Tx, folder: Folder, *, chat_jid: ChatJid | None = None) -> Turn | None:
        """Return the last turn of a group that had an effect and is not undone; None if there is none.

        An effect that no undo can reverse (`plan.outside`) counts, too. Only the `RECENT_TURNS` newest turns
        are looked at, and of these, ended ones that are recent enough to be undone. With `chat_jid`, only
        chat turns of that chat count, among them undos. The files of turns are read as in `plan`.

        Raises:
            NotYet: the files that a turn changed cannot be recorded now, as in `plan`.
        """
        since_ms = self.clock.now_ms() - turn_effects.UNDO_MS
        for turn in await turns.recent(tx, limit=RECENT_TURNS, folder=folder):
            is_meant = chat_jid is None or (turn.kind is TurnKind.CHAT and turn.chat_jid == chat_jid)
            is_undoable = turn.ended_ms is not None and turn.queued_ms >= since_ms
            if not is_meant or not is_undoable or await undos.of_turn(tx, turn.id) is not None:
                continue
            plan = await self.plan(tx, turn)
            if not plan.is_empty or plan.outside:
                return turn
        return None

    async def plan(self, tx: Tx, turn: Turn) -> UndoPlan:
        """Return all that undoing a turn would do, and what it cannot undo.

        The files that the turn changed are recorded first, if that was not done yet. This reads files, so it
        blocks: call it in `Database.write`, which runs in a thread of its own.

        Raises:
            NotYet: the files cannot be recorded now: others are reading them, or the folder is too large to
                be read in the transaction. The comparison of files that follows each turn will record them.
        """
        try:
            with self.files.held(turn.folder):
                return await self._plan(tx, turn)
        except FolderBusy as error:
            raise NotYet(turn) from error

    async def _plan(self, tx: Tx, turn: Turn) -> UndoPlan:
        """Return all that undoing a turn would do, and what it cannot undo.

        The files that the turn changed are recorded first, if that was not done yet.

        Raises:
            FolderBusy: that would take too long now, because the group's folder is large.
        """
        await self._record_files(tx, turn)
        effects = await turn_effects.of_turn(tx, turn.id)
        # What can be restored: rows of the database, and files whose earlier content is stored.
        rows = tuple(
            effect for effect in effects if effect.table in BY_NAME and not BY_NAME[effect.table].is_sending
        )
        rows += await _stopped_messages(tx, turn, effects)
        changed_files = [effect for effect in effects if effect.table == turn_effects.FILE]
        files = tuple(effect for effect in changed_files if self.files.can_put(turn.folder, effect.before))
        # What can be stopped or deleted: messages, and the turns of scheduled tasks that it has queued.
        queued_messages = await _messages_of(tx, turn, effects)
        task_turns = await _queued_turns(tx, effects)
        command_messages = await outbox.by_ids(tx, _command_message_ids(effects))
        ids_of_commands = {message.id for message in command_messages}
        # Only messages of commands are deleted, not answers. A reaction with an empty text has removed an
        # emoji, and leaves nothing to delete.
        possibly_sent = [
            message
            for message in queued_messages
            if message.id in ids_of_commands
            and message.state in _POSSIBLY_SENT
            and (message.text or message.reacts_to is None)
        ]
        # The messages of which an undo has already requested the deletion.
        withdrawn = await withdrawals.already_requested(tx, {message.id for message in possibly_sent})
        deletable = tuple(
            message
            for message in possibly_sent
            if message.id not in withdrawn
            and message.state is OutboxState.SENT
            and self.can_withdraw(message)
        )
        # Directories are named only if there is no file to name.
        named_files = [effect for effect in files if is_listed(effect)] or files
        return UndoPlan(
            turn=turn,
            is_redo=await _is_undo(tx, turn.id),
            rows=rows,
            files=files,
            unsent=tuple(message for message in queued_messages if message.state in _UNSENT),
            has_unsent_command=any(
                message.id in ids_of_commands and message.state in _UNSENT for message in queued_messages
            ),
            sent=deletable,
            waiting_runs=tuple(queued for queued in task_turns if queued.state is TurnState.QUEUED),
            items=tuple(map(item_of, (*filter(is_listed, rows), *named_files))),
            later=await later_changes.find(tx, self.files, turn.folder, (*rows, *files)),
            # Numbers of the effects that stay, by their kind: among them notes of the conversation (`noted`),
            # things forgotten for good (`forgotten`), and messages that cannot be deleted (`sent`).
            outside=outside.lasting_effects(
                await tool_calls.of_turn(tx, turn.id),
                noted=_count_out_of_reach(effects, "noted"),
                forgotten=_count_out_of_reach(effects, "forgotten"),
                files=sum(effect.table == turn_effects.UNKNOWN_FILES for effect in effects),
                not_kept=len(changed_files) - len(files),
                sent=len(possibly_sent) - len(deletable) - len(withdrawn),
                withdrawn=await withdrawals.count_of(tx, turn.id),
                runs=sum(task_turn.state is not TurnState.QUEUED for task_turn in task_turns),
            ),
        )

    async def _record_files(self, tx: Tx, turn: Turn) -> None:
        """Record the files that an ended turn changed, if that was not done yet.

        An undo may be requested before the comparison of files that follows each turn.

        Raises:
            FolderBusy: the group's folder is too large to be compared now.
        """
        if turn.ended_ms is None or not self.files.is_open(turn.folder, turn.id):
            return
        # A large folder is not read here: until it is read, nobody else could write to the database.
        if not self.files.is_small(turn.folder):
            raise FolderBusy
        changed_files = self.files.changes(turn.folder, turn.id)
        await file_effects.record(tx, turn.id, changed_files, now_ms=self.clock.now_ms())
        after_commit(tx, partial(self.files.close, turn.folder, turn.id))

    async def undo(
        self, tx: Tx, turn: Turn, *, by: str, is_forced: bool = False, reason: str | None = None
    ) -> UndoDone:
        """Undo a turn in the transaction, and return what was done. Its files follow after the commit.

        The undo is a turn of its own, which can be undone, too. `by` names who undoes it. `reason` is the
        text that is recorded with the undo's turn; None stands for a text that names the undone turn.
        `is_forced` overwrites later changes.

        Raises:
            NotYet: a turn of the group is running, this turn has not ended, or its files cannot be compared
                now.
            NothingToUndo: nothing can be restored, or the turn is undone already.
            SomethingInPlace: something else is in the place of a row that the turn removed.
            BuiltOn: something was changed since, and `is_forced` is not set.
        """
        for open_turn in await turns.unsettled_of(tx, turn.folder):
            if open_turn.state is TurnState.RUNNING or open_turn.id == turn.id:
                raise NotYet(open_turn)
        if await undos.of_turn(tx, turn.id) is not None:
            raise NothingToUndo(f"Turn {turn.id} is undone already.")
        plan = await self.plan(tx, turn)
        if plan.is_empty:
            lasting = texts.left(plan, is_korean=False)
            raise NothingToUndo(f"Turn {turn.id} changed nothing that can be put back. {lasting}".rstrip())
        if plan.later and not is_forced:
            raise BuiltOn(plan)
        return UndoDone(turn_id=await self._carry_out(tx, plan, by=by, reason=reason), plan=plan)

    async def _carry_out(self, tx: Tx, plan: UndoPlan, *, by: str, reason: str | None) -> TurnId:
        """Carry out the plan of an undo as a turn of its own, and return that turn's id.

        Rows are restored, a group that the turn has registered is removed, waiting messages are not sent, and
        queued turns of scheduled tasks are cancelled. `by` names who undoes the turn. `reason` is the text
        that is recorded with the undo's turn; None stands for a text that names the undone turn.

        Raises:
            SomethingInPlace: another row has the place of one that the turn removed; nothing is changed.
        """
        turn = plan.turn
        now_ms = self.clock.now_ms()
        reason = reason or UNDONE.format(number=turn.id)
        # A savepoint, because the caller's transaction goes on after a failure: the reply is stored in it.
        await tx.execute("SAVEPOINT undo")
        try:
            number = await turns.add_answered(
                tx, turn.folder, turn.chat_jid, reason=reason, now_ms=now_ms, role=turn.role
            )
            # Each row that the block changes is recorded as an effect of the undo's turn; with `with_sent`,
            # this includes the messages to send and the queued turns.
            async with turn_effects.recording(tx, number, now_ms=now_ms, with_sent=True):
                await consequences.cancel_outdated_alerts(tx, plan.rows, now_ms=now_ms)
                unregistered = await _unregistered(tx, plan.rows)
                await turn_effects.put_back(tx, plan.rows)
                await consequences.skip_past_times(tx, plan.rows, now_ms=now_ms)
                # Of a group that the turn has registered, the chats that were added since go, too: they would
                # belong to no group.
                for folder in unregistered:
                    await groups.remove(tx, folder)
                await outbox.skip_unsent(tx, [message.id for message in plan.unsent])
                for queued in plan.waiting_runs:
                    await task_stops.cancel(tx, queued, reason=f"turn {turn.id} was undone.", now_ms=now_ms)
        except sqlite3.IntegrityError as error:
            await tx.execute("ROLLBACK TO undo")
            raise SomethingInPlace(
                f"Something else is in the place of what turn {turn.id} removed: remove that first."
            ) from error
        finally:
            await tx.execute("RELEASE undo")
        # A group that the undo unregisters leaves no hook, question or task that waits, as if it were
        # removed.
        for folder, chat_jids in unregistered.items():
            await registration.end_waiting(tx, folder, chat_jids, now_ms=now_ms)
        await self._record(tx, plan, number, by=by, now_ms=now_ms)
        return number

    async def _record(self, tx: Tx, plan: UndoPlan, number: TurnId, *, by: str, now_ms: int) -> None:
        """Record an undo as the turn `number`, after its rows were restored.

        The changes of files, which follow after the commit, are recorded as effects of that turn, so that it
        can itself be undone. The deletion of sent messages is requested, the group's agent is informed, the
        audit gets a row, and the events of the change are announced. `by` names who undoes the turn.
        """
        turn = plan.turn
        for effect in plan.files:  # a hundred of them are read again in a few milliseconds
            # The key of a file's effect is its path.
            now = self.files.now(turn.folder, effect.key[0], compared_with=effect.after)
            # A file that was changed since gets another content by the undo: an undo of the undo needs this.
            if not is_same(now, effect.after):
                self.files.store_content(turn.folder, effect.key[0])
            # For the undo's turn, the file goes from its present state to the one before the undone turn.
            await turn_effects.add(
                tx, replace(effect, turn_id=number, before=now, after=effect.before), now_ms=now_ms
            )
        # The files are restored after the commit. If the host is killed before, the next start finds this row
        # and restores them.
        undo = Undo(
            turn_id=number,
            undoes=turn.id,
            folder=turn.folder,
            by=by,
            at_ms=now_ms,
            has_files_due=bool(plan.files),
        )
        await undos.add(tx, undo)
        changed = Counter(effect.table for effect in (*plan.rows, *plan.files))
        # A changed dashboard gets a new revision. It may be another group's, if the turn was one of main, the
        # owner's group. The key of a dashboard's row begins with the folder of its group.
        for folder in sorted({effect.key[0] for effect in plan.rows if effect.table in BOARD}):
            await dashboards.advance(tx, folder)
            # A deadline that was put back may be a day, which begins at another time if the time zone has
            # changed since. Clearing the stored zone lets all deadlines be computed again.
            await dashboards.note_zone(tx, folder, None)
        for message in plan.sent:
            await withdrawals.add(tx, message.id, number, now_ms=now_ms)
        listed = "; ".join(texts.items(plan, is_korean=False))
        await host_events.turn_undone(tx, turn.folder, f"turn {turn.id}: {listed}", now_ms=now_ms)
        detail = {"undoes": turn.id, "by": by, "changed": dict(changed), "unsent": len(plan.unsent)}
        event = audit.AuditEvent(
            at_ms=now_ms, kind="turn.undone", folder=turn.folder, turn_id=number, detail=detail
        )
        await audit.append(tx, event)
        announce(tx, "turn.undone", group=turn.folder, turn=turn.id, detail=str(number))
        for folder in sorted({turn.folder, *_folders_of(plan.rows)}):
            for kind in ("dashboard.changed", "task.changed", "group.configured"):
                announce(tx, kind, group=folder)


def _folders_of(effects: Sequence[RowEffect]) -> set[str]:
    """Return the folders of the groups whose rows these effects changed, also those that are gone."""
    rows = [row for effect in effects for row in (effect.before, effect.after) if row is not None]
    return {folder for row in rows if (folder := row.get("group_folder") or row.get("folder"))}


async def _is_undo(tx: Tx, turn_id: TurnId) -> bool:
    """Return whether a turn is an undo; the undo of an undo is none, since it does the thing again."""
    is_undo = False
    while (undo := await undos.get(tx, turn_id)) is not None:
        turn_id, is_undo = undo.undoes, not is_undo
    return is_undo


def _count_out_of_reach(effects: Sequence[RowEffect], kind: str) -> int:
    """Return the number of effects of a kind that no undo can reverse: changes in the host's own files.

    The kinds are `noted`, what the agent has noted of the conversation, and `forgotten`, what was forgotten
    for good at a request.
    """
    return sum(effect.table == turn_effects.OUT_OF_REACH and effect.key[0] == kind for effect in effects)


async def _unregistered(tx: Tx, effects: Sequence[RowEffect]) -> dict[Folder, list[ChatJid]]:
    """Return the folders of the groups that undoing these effects unregisters, each with its present chats.

    Those are the groups that the undone turn has registered; chats may have been added since.
    """
    folders = [
        Folder(effect.after["folder"])
        for effect in effects
        if effect.table == "registered_groups" and effect.before is None and effect.after is not None
    ]
    if not folders:
        return {}
    chats = await groups.folders_of_chats(tx)
    return {folder: [jid for jid, other in chats.items() if other == folder] for folder in folders}


def _command_message_ids(effects: Sequence[RowEffect]) -> set[int]:
    """Return the ids of the messages that a turn's commands queued, without its answers."""
    return {effect.key[0] for effect in effects if effect.table == "outbox" and effect.before is None}


async def _stopped_messages(tx: Tx, turn: Turn, effects: Sequence[RowEffect]) -> tuple[RowEffect, ...]:
    """Return the changes of rows of the outbox by which a turn prevented unsent messages from being sent.

    Undoing the turn makes these messages pending again. Only a turn that is itself an undo has such changes.
    For any other turn this is empty: its own messages are not rows to restore, but are deleted or not sent.
    """
    if await undos.get(tx, turn.id) is None:  # the turn is no undo
        return ()
    return tuple(effect for effect in effects if effect.table == "outbox" and effect.before and effect.after)


async def _messages_of(tx: Tx, turn: Turn, effects: Sequence[RowEffect]) -> list[Outgoing]:
    """Return a turn's answers, and the messages that its commands queued.

    Of a turn that is itself an undo, the answers are left out: they only report the undo.
    """
    answers = [] if await undos.get(tx, turn.id) is not None else await outbox.of_turn(tx, turn.id)
    command_messages = await outbox.by_ids(tx, _command_message_ids(effects))
    ids_of_commands = {message.id for message in command_messages}
    return [*(message for message in answers if message.id not in ids_of_commands), *command_messages]


async def _queued_turns(tx: Tx, effects: Sequence[RowEffect]) -> list[Turn]:
    """Return the turns that a turn with these effects has queued, such as runs of scheduled tasks."""
    numbers = [
        TurnId(effect.key[0]) for effect in effects if effect.table == "turns" and effect.before is None
    ]
    return await turns.by_ids(tx, numbers)
