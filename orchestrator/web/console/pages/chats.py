"""Chats: each group's conversation with the outcome of every message, a box to write, a message's history."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from itertools import zip_longest
from typing import NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import structlog
from starlette.responses import Response

from orchestrator.base.clock import local_iso
from orchestrator.domain.errors import BadRequest, StoreError
from orchestrator.domain.values import Group, Inbound, Run, Turn
from orchestrator.groups import attachments, registration
from orchestrator.inbound.intake import check_length
from orchestrator.queue.owner_actions import TurnActions
from orchestrator.reports import message_timeline, messages, turn_work
from orchestrator.reports.audit import detail_text
from orchestrator.reports.messages import MessageView
from orchestrator.reports.turn_work import ToolCallView
from orchestrator.store import audit
from orchestrator.store.audit import AuditView
from orchestrator.store.conversation import chats, outbox
from orchestrator.store.conversation import messages as message_store
from orchestrator.store.conversation.messages import MAX_UNREAD
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.runs import runs, turns
from orchestrator.store.undo import undos
from orchestrator.undo import texts
from orchestrator.undo.plan import UndoPlan
from orchestrator.undo.service import NotYet
from orchestrator.web import downloads
from orchestrator.web.bodies import whole_number
from orchestrator.web.console.form_tokens import SentForm, UploadedFile
from orchestrator.web.console.page import Page, View

log = structlog.get_logger(__name__)

SHOWN, MAX_SHOWN = 50, 300
"""Lines that a page shows at first, and the most that it shows after new ones arrived."""
MAX_SENDER_CHARS = 80
FILE = re.compile(r"^\[\w+ attachments/([^\]/\n]{1,200})\]$", re.MULTILINE)
"""The line in a message that names the file attached to it."""
WORK_ROWS = 30
MAX_UPLOAD_BYTES = 512 * 1024 * 1024
"""The largest upload in bytes that the console reads; people set a lower one with `ANDY_ATTACHMENT_MB`."""


async def index(view: View) -> Response:
    """Show every group with its newest message; the group in the query's `open` is marked as opened."""
    summaries = await view.host.reader.read(message_store.group_summaries)
    # The list of groups beside a conversation loads itself again from this address, as a part, and marks that
    # group. On this page itself no group is open, whatever the query says.
    return view.render(
        "chats.html", summaries=summaries, most=MAX_UNREAD, opened=view.query("open") if view.part else ""
    )


async def conversation(view: View) -> Response:
    """Show a group's conversation: its newest messages, updated live, or those before a message in the query.

    The host is notified that somebody is about to write, so that it can start a container before the message
    is sent.
    """
    # Neither the reload of a live part nor a look at older lines means that somebody is about to write.
    if view.part is None and not view.number("before"):
        await view.api.chat.open(view.path_param("folder"))
    return await _conversation(view)


async def _conversation(
    view: View,
    *,
    error: str = "",
    text: str = "",
    speaker: str = "",
    sender: str = "",
    chat: str = "",
    status: int = 200,
) -> Response:
    """Show a group's conversation, and mark the messages that it shows as read.

    After a refused message, `error` says why, `status` is the HTTP status, and the other arguments are what
    was typed and chosen in the box.
    """
    folder = view.path_param("folder")
    async with view.host.reader.reading() as tx:
        group = await groups.known(tx, folder)
        # Each is the `seq` of a message, or 0: the page shows messages before `before_seq`, or those from
        # `first_seq` on.
        before_seq, first_seq = await _window(tx, view, folder)
        limit = MAX_SHOWN if first_seq and not before_seq else SHOWN
        lines = await messages.rows(tx, folder, limit=limit, before_seq=before_seq or None)
        if first_seq and not before_seq:
            # The page keeps its first line while new ones arrive: nothing moves away from the reader.
            # If all its lines are gone, it shows the newest, as without `from`.
            lines = [line for line in lines if line["seq"] >= first_seq] or lines[-SHOWN:]
        work = await _turn_at_work(tx, group) if not before_seq else None
        summaries = await message_store.group_summaries(tx) if view.part is None else ()
        read_seq = await message_store.read_up_to(tx, group.folder)
        several = await chats.of_group(tx, group) if len(group.chats) > 1 else []
        undoable = await undos.undoable(tx, {line["turn"] for line in lines if line["turn"]})
    chosen_chat = chat or registration.writing_chat(group)
    await _mark_read(view, group, lines, read_seq)
    # What the agent writes at this moment is shown only until the turn has its first message.
    if work is not None and not work["said"]:
        work["draft"] = await view.services.containers.pool.draft(work["turn"].run_id, work["turn"].id)
    return view.render(
        "chats_group.html",
        status=status,
        group=group,
        calls=_call_words(view, group),
        summaries=summaries,
        most=MAX_UNREAD,
        opened=group.folder,
        lines=lines,
        days=first_of_days(lines, view.console.zone),
        quiet=ignored_sequences(lines),
        undoable=undoable,
        around=view.number("around"),
        before=before_seq,
        first=lines[0]["seq"] if lines else 0,
        # A page that is not full begins with the first message that there is.
        has_older=bool(lines) and lines[0]["seq"] > 1 and len(lines) >= SHOWN,
        is_open=any(line["state"] in ("queued", "running") for line in lines),
        work=work,
        is_local=chosen_chat.startswith("local:"),
        chosen=chosen_chat,
        several=several,
        files=[FILE.findall(line["text"]) for line in lines],
        box={"text": text, "speaker": speaker or "member", "sender": sender, "error": error},
    )


def _call_words(view: View, group: Group) -> str:
    """Return the words that call Andy in a group, such as `@Andy, @house`."""
    calls = (f"@{view.host.settings.assistant_name}", group.trigger)
    # Without repetition: the trigger of an imported group may be Andy's own name.
    return ", ".join(dict.fromkeys(filter(None, calls)))


async def _mark_read(view: View, group: Group, lines: list[MessageView], read_seq: int) -> None:
    """Store that the owner has read a group's messages up to the last of these lines.

    `read_seq` is the `seq` up to which they were read so far. The owner is one person, in whatever browser. A
    failure to store it is only logged.
    """
    # The other live parts do not show the lines: loading one of them alone is no reading.
    if not lines or lines[-1]["seq"] <= read_seq or view.part not in (None, "lines"):
        return
    try:
        await view.host.database.write(lambda tx: message_store.mark_read(tx, group.folder, lines[-1]["seq"]))
    except StoreError as error:  # on a full disk, the conversation can still be read
        log.warning("chat.not_marked", group=group.folder, reason=str(error))


class PageWindow(NamedTuple):
    """The `seq` of the message before which a page ends, and of the one with which it begins; 0 if open."""

    before: int
    first: int


async def _window(tx: Tx, view: View, folder: str) -> PageWindow:
    """Return which messages of a group the page shows, by its query `before`, `from` and `around`.

    Without any of them, the page ends with the newest message, and begins as far back as it has room. A page
    around a message has as many lines after it as before it, if there are so many; with `before` or `from`,
    `around` has no effect.
    """
    before, first, around = view.number("before"), view.number("from"), view.number("around")
    if not around or before or first:
        return PageWindow(before=before, first=first)
    # One row more than half a page: if there is one, the page ends before it, else with the newest message.
    later = await messages.rows(tx, folder, limit=SHOWN // 2 + 1, after_seq=around)
    if len(later) > SHOWN // 2:
        return PageWindow(before=later[-1]["seq"], first=0)
    earlier = await messages.rows(tx, folder, limit=SHOWN - len(later), before_seq=around + 1)
    return PageWindow(before=0, first=earlier[0]["seq"] if earlier else 0)


def first_of_days(lines: list[MessageView], zone: ZoneInfo) -> dict[int, str]:
    """Return the date of each day in `zone` on which one of the messages was sent. Pure.

    The keys are the `seq` of the first message of each day.
    """
    first_lines: dict[int, str] = {}
    earlier_date = ""
    for line in lines:
        date = local_iso(line["at_ms"], zone)[:10]
        if date != earlier_date:
            first_lines[line["seq"]] = date
        earlier_date = date
    return first_lines


def ignored_sequences(lines: list[MessageView]) -> dict[int, int]:
    """Return the lengths of the sequences of messages that were ignored because they did not call Andy. Pure.

    The keys are the `seq` of the last message of each sequence. The other messages of a sequence are mapped
    to 0; messages of no sequence are left out.
    """
    sequence_lengths: dict[int, int] = {}
    length = 0
    for line, next_line in zip_longest(lines, lines[1:]):
        length = length + 1 if _did_not_call(line) else 0
        if length:
            is_last = next_line is None or not _did_not_call(next_line)
            sequence_lengths[line["seq"]] = length if is_last else 0
    return sequence_lengths


def _did_not_call(line: MessageView) -> bool:
    """Return whether a message was ignored because it did not call Andy."""
    return (line["state"], line["reason"]) == ("ignored", "no trigger")


class RequestLine(AuditView):
    """A request of the agent, with its detail in one line."""

    words: str


class TurnAtWork(TypedDict):
    """The current work of a group's agent; of tool calls and audited requests (`asked`) the newest."""

    turn: Turn
    run: Run | None
    asked: list[RequestLine]
    tools: list[ToolCallView]
    tools_before: int
    said: list[str]
    draft: str


async def _turn_at_work(tx: Tx, group: Group) -> TurnAtWork | None:
    """Return the turn that a group's agent works on, with its tool calls, requests and messages so far.

    The requests to the host are the turn's rows of the audit, under `asked`. None if the agent is idle. Only
    the last `WORK_ROWS` calls and requests are returned. `tools_before` is the number of calls before those.
    `draft` is left empty.
    """
    turn = await turns.running_of(tx, group.folder)
    if turn is None:
        return None
    run = await runs.get(tx, turn.run_id) if turn.run_id else None
    audit_rows = await audit.of_turn(tx, turn.id, since_ms=turn.started_ms or turn.queued_ms)
    # What a running turn says is held back until the turn ends.
    held_texts = [outgoing.text for outgoing in await outbox.of_turn(tx, turn.id) if outgoing.state == "held"]
    # Calls of earlier attempts are shown in the history of the message.
    tools = [row for row in await turn_work.tool_rows(tx, turn) if row["attempt"] == turn.attempt]
    return {
        "turn": turn,
        "run": run,
        "asked": [{**row, "words": detail_text(row["detail"])} for row in audit_rows[-WORK_ROWS:]],
        "tools": tools[-WORK_ROWS:],
        "tools_before": max(0, len(tools) - WORK_ROWS),
        "said": held_texts,
        "draft": "",
    }


async def one_message(view: View) -> Response:
    """Show the history of the message that the address names: its turn, its answer, and what was logged."""
    folder = view.path_param("folder")
    async with view.host.reader.reading() as tx:
        timeline = await message_timeline.find(tx, folder, view.path_param("message"))
        group = await groups.known(tx, folder)
        message = (
            await message_store.by_seq(tx, timeline["group"], timeline["message"]["seq"])
            if timeline["message"]
            else None
        )
    timeline = await asyncio.to_thread(message_timeline.with_logs, timeline, view.host.home.logs)
    files = FILE.findall(timeline["message"]["text"]) if timeline["message"] else []
    return view.render(
        "chats_message.html",
        # 0 is the number of no turn, which cannot be undone.
        undo=await _undo_preview(view, timeline["turn"]["id"] if timeline["turn"] else 0),
        found=timeline,
        message=message,
        folder=folder,
        name=group.name,
        calls=_call_words(view, group),
        files=files,
    )


async def say(view: View, form: SentForm) -> Response:
    """Send the text of the box, as a message of a member of the chat or as Andy.

    A file is sent only with a member's message, and refused with one of Andy's. A refused message is shown in
    the box again, with the reason.
    """
    folder, text = view.path_param("folder"), form.raw("text")
    speaker, sender = form.text("speaker"), form.text("sender")[:MAX_SENDER_CHARS]
    chat = form.text("chat") or None
    try:
        file = form.file("file")
        if speaker == "andy":
            _refuse_file_of_andy(file)
            await view.api.groups.say(folder, text, chat=chat)
        else:
            # The line that names the file in the message.
            file_line = await _store_file(view, folder, file, text, chat) if file is not None else None

            def write(group: Group, now_ms: int) -> Inbound:
                """Return the typed message, with its file, for the chosen chat of its group."""
                jid = registration.chosen_chat(group, chat, default=registration.writing_chat(group))
                inbound = view.api.write(jid, text, sender=sender or "you", now_ms=now_ms)
                return replace(inbound, file=file_line) if file_line else inbound

            await view.api.chat.say(write, folder, wait_seconds=0)
    except BadRequest as refused:
        # A group that is gone has no page on which the text could be shown again.
        if refused.http_status == 404:
            raise
        return await _conversation(
            view,
            error=view.why(refused),
            text=text,
            speaker=speaker,
            sender=sender,
            chat=chat or "",
            status=refused.http_status,
        )
    return view.done(f"/chats/{folder}#end")


def _refuse_file_of_andy(file: UploadedFile | None) -> None:
    """Raise `BadRequest` if a file was chosen for a message of Andy's, which can have none."""
    if file is not None:
        raise BadRequest("A file goes with a message of yours only: send it as you, not as Andy.")


async def _store_file(view: View, folder: str, file: UploadedFile, text: str, chat: str | None) -> str:
    """Store an uploaded file in the group's attachments, and return the line that names it in a message.

    `text` is the message's, and `chat` its chat; None for the group's usual one.

    Raises:
        UnknownGroup: there is no group with this folder.
        BadRequest: it has no such chat.
        TextTooLong: the text is too long.
        FileRefused: the file is too large, or cannot be stored.
    """
    host = view.host
    group = await host.reader.read(lambda tx: groups.known(tx, folder))
    # Before the file is stored: a refused message must not leave it to the agent.
    registration.chosen_chat(group, chat, default=registration.writing_chat(group))
    check_length(text)
    if file.size > host.attachment_bytes:
        limit = host.settings.andy_attachment_mb
        raise attachments.FileRefused(f"'{file.name}' is larger than {limit} MB (ANDY_ATTACHMENT_MB).")
    try:
        path = await asyncio.to_thread(
            attachments.keep_body, host.home.root, group.folder, file.name, file.body
        )
    except OSError as error:
        # The disk is full, or the agent, whose folder it is, has put something in the way.
        raise attachments.FileRefused(
            f"'{file.name}' cannot be stored ({error.strerror or error})."
        ) from error
    kind = "image" if file.mime.startswith("image/") else "file"
    return f"[{kind} {path}]"


async def download(view: View) -> Response:
    """Send a file from a group's attachments as a download; it is never shown in a page."""
    return await downloads.received(view.api.lists, view.path_param("folder"), view.path_param("name"))


async def download_sent(view: View) -> Response:
    """Send the copy of a file that Andy sent with a message, as a download."""
    return await downloads.sent(view.api.lists, view.path_param("folder"), view.path_param("message"))


async def stop(view: View, form: SentForm) -> Response:
    """Stop the queued or running turn that the form names."""
    turn = await _actions(view).stop(_turn_number(form))
    return view.done(f"/chats/{turn.folder}#end", view.t(".stopped", turn=turn.id))


class UndoPreview(TypedDict):
    """The effects that undoing a turn would have, as texts for people."""

    turn: int
    items: list[str]
    """A text for each thing that is undone."""
    later: list[str]
    """A text for each thing that was changed since the turn."""
    left: str
    """A sentence about the effects of the turn that cannot be undone; empty if there are none."""


async def _undo_preview(view: View, number: int) -> UndoPreview | None:
    """Return what undoing the turn with this number would do; None if it cannot be undone, or not yet.

    Return None also if nothing would be undone.
    """
    service, is_korean = view.services.undo, view.language == "ko"

    async def plan_undo(tx: Tx) -> UndoPlan | None:
        """Return the plan for undoing the turn; None where it cannot be undone, or not yet."""
        if number not in await undos.undoable(tx, {number}):
            return None
        try:
            return await service.plan(tx, await service.by_number(tx, number))
        except NotYet:
            return None

    # A write, because the plan records the files that the turn changed, if that was not done yet.
    plan = await view.host.database.write(plan_undo)
    if plan is None or plan.is_empty:
        return None
    return {
        "turn": number,
        "items": texts.items(plan, is_korean=is_korean),
        "later": texts.later(plan, is_korean=is_korean),
        "left": texts.left(plan, is_korean=is_korean),
    }


async def undo(view: View, form: SentForm) -> Response:
    """Undo the turn that the address names.

    With `anyway` in the form, later changes of the same things, which the page has named, are overwritten.
    Raises `BuiltOn` for such changes without it, and what `UndoApi.undo` raises.
    """
    number = whole_number(view.path_param("turn")) or 0
    undo_result = await view.api.undos.undo(number, by="console", is_forced=form.text("anyway") == "1")
    folder, is_korean = undo_result.plan.turn.folder, view.language == "ko"
    undone_items = "; ".join(texts.items(undo_result.plan, is_korean=is_korean))
    done_text = view.t(".undone", turn=number, items=undone_items)
    # An undo is a turn with effects of its own, so that it can be undone in the same way.
    return view.done(
        f"/chats/{folder}#end", done_text, undo=f"/chats/{folder}/turns/{undo_result.turn_id}/undo"
    )


async def ask_again(view: View, form: SentForm) -> Response:
    """Have the failed turn that the form names tried again, or a waiting one tried at once."""
    turn = await _actions(view).ask_again(_turn_number(form))
    return view.done(f"/chats/{turn.folder}#end", view.t(".asked_again"))


def _actions(view: View) -> TurnActions:
    """Return the service by which the owner stops turns and has them tried again."""
    return TurnActions(view.host, stop_run=view.services.containers.stop_run)


def _turn_number(form: SentForm) -> int:
    """Return the number of the turn in a form; 0, which no turn has, if it is no number."""
    return whole_number(form.text("turn")) or 0


CHANGES_LIST = ("message.*", "turn.*", "group.*")
PAGE = Page(
    name="chats",
    order=20,
    is_daily=True,
    shows={
        "/chats": index,
        "/chats/{folder}": conversation,
        "/chats/{folder}/messages/{message}": one_message,
        "/chats/{folder}/files/{name}": download,
        "/chats/{folder}/sent/{message}": download_sent,
    },
    changes={
        "/chats/{folder}/say": say,
        "/chats/{folder}/stop": stop,
        "/chats/{folder}/again": ask_again,
        "/chats/{folder}/turns/{turn}/undo": undo,
    },
    live={
        "list": CHANGES_LIST,
        "lines": ("message.*", "turn.*", "run.ended"),
        "work": ("turn.*", "run.*", "command.*", "conversation.*", "agent.*"),
        "way": ("message.*", "turn.*", "run.*", "command.*", "agent.tool"),
    },
    of_all_groups=("list",),
    upload_bytes=MAX_UPLOAD_BYTES,
)
