"""`andy chat` and `andy say`: write to a group and read its replies, and speak in it as Andy."""

from __future__ import annotations

import asyncio
import io
import json
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from orchestrator.cli.client import AnswerLost, Client
from orchestrator.cli.exit_codes import FAILED, NOT_ANSWERED, NOT_FOR_ANDY
from orchestrator.cli.options import GroupArgument, HomeOption, JsonOption, show
from orchestrator.cli.terminal import home_of, read, say_aside, settings_of, typed
from orchestrator.domain.errors import AndyError, NotRunning, leaves
from orchestrator.home.directory import Home

if TYPE_CHECKING:
    from orchestrator.web.api.groups import TextQueued

WAIT_SECONDS = 120.0
MAX_WAIT_SECONDS = 600.0
MAX_TYPED_BYTES = 4096
"""Bytes that are read from the terminal at once: it hands over no longer line."""
RETRY_SECONDS = 1.0
"""Seconds between two tries to reach a host that ended before it had answered."""


def chat(
    group: GroupArgument = "main",
    /,
    *,
    message: Annotated[
        str | None, Parameter(name=["-m", "--message"], help="Send this message, print the reply and exit.")
    ] = None,
    sender: Annotated[str, Parameter(help="The name of the writer.")] = "you",
    wait: Annotated[
        float,
        Parameter(
            help="Seconds to wait for the reply to -m; a later reply is stored all the same.",
            validator=Number(gte=0, lte=600),
        ),
    ] = WAIT_SECONDS,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> int:
    """Write to a group from this terminal and read its replies.

    With -m, progress is printed to stderr, and the exit code is the outcome: 0 answered, 1 failed, 4 not
    answered in time (the reply comes later), 5 the message did not call Andy. With --wait 0 it is 0 as soon
    as the message is stored.

    Example: `andy chat main -m "remind me in 10 minutes to stretch"`
    """
    if message is None:
        return asyncio.run(_converse(home, group, sender=sender))
    return asyncio.run(_say(home, group, message, sender=sender, wait_seconds=wait, as_json=as_json))


def say_as_andy(
    group: GroupArgument,
    text: Annotated[str, Parameter(help="The text that Andy sends, word for word.")],
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Send a text to a group as Andy; its agent reads it as Andy's own. To write to Andy, use 'andy chat'.

    Example: `andy say family "Dinner is at seven today."`
    """
    queued_text = asyncio.run(_say_as_andy(home, group, text))
    show(queued_text, lambda sent: [f"It is on its way to '{sent['group']}'."], as_json=as_json)


async def _say(
    home_option: Path | None, group: str, text: str, *, sender: str, wait_seconds: float, as_json: bool
) -> int:
    """Send one message to a group, print its reply or its state, and return the exit code.

    With `wait_seconds` of 0 no reply is waited for.
    """
    message = TerminalMessage(group=group, text=text, sender=sender, key=secrets.token_hex(16))
    state = await _send_until_accepted(home_of(home_option), message, wait_seconds=wait_seconds)
    is_waiting = wait_seconds > 0
    if as_json:
        print(json.dumps(state, ensure_ascii=False, indent=2))
    else:
        print(await _answer_text(home_option, state, is_waiting=is_waiting))
    return exit_code(state["outcome"], is_waiting=is_waiting)


def exit_code(outcome: str, *, is_waiting: bool) -> int:
    """Return the exit code for the outcome of a message; `is_waiting` says that a reply was waited for.

    Without waiting, it is 0: the message is stored.
    """
    if not is_waiting:
        return 0
    match outcome:
        case "failed":
            return FAILED
        case "ignored":
            return NOT_FOR_ANDY
        case "queued" | "running":
            return NOT_ANSWERED
        case _:
            return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalMessage:
    """A message to send. By its `key` the host accepts it once, even if it is sent again."""

    group: str
    text: str
    sender: str
    key: str


async def _send_until_accepted(
    home: Home, message: TerminalMessage, *, wait_seconds: float
) -> dict[str, Any]:
    """Send a message and return its state as JSON: with its `outcome` and, if there is one, its `reply`.

    If the host ends before it answers, the message is sent again until `wait_seconds` are over.

    Raises:
        NotRunning: no host answers at first, or none does again in time.
    """
    deadline = time.monotonic() + wait_seconds
    is_first = True
    while True:
        try:
            async with Client.of(home) as client:
                return await _send_and_wait(client, home, message, wait_seconds=deadline - time.monotonic())
        except NotRunning as error:
            # If no Andy answered at all, there is nothing to wait for. One that ended under way may start
            # again; by its key the message is taken only once.
            if is_first and not isinstance(error.__cause__, AnswerLost):
                raise
            if time.monotonic() + RETRY_SECONDS > deadline:
                raise
            is_first = False
            await asyncio.sleep(RETRY_SECONDS)


async def _send_and_wait(
    client: Client, home: Home, message: TerminalMessage, *, wait_seconds: float
) -> dict[str, Any]:
    """Send a message and return its state as JSON once it is answered or `wait_seconds` are over.

    A message that is not for Andy is not waited for, and the longest wait is `MAX_WAIT_SECONDS`. Meanwhile
    other texts that Andy sends to its chat are printed on stderr.
    """
    async with aclosing(client.events(group=message.group)) as events:
        await anext(events)  # the first event is empty: from here on no event is missed
        state = await client.say(
            message.group, message.text, sender=message.sender, wait_seconds=0, key=message.key
        )
        if state["outcome"] == "ignored" or wait_seconds <= 0:
            return state
        # Without a place in the queue the message is not waiting. It may be answered already, but its reply
        # still has to be sent, so its state is requested again below.
        if state.get("joined") or state.get("place", 1) > 1:
            say_aside(f"({_waiting_text(state)}.)")
        try:
            async with asyncio.TaskGroup() as tasks:
                showing = tasks.create_task(
                    _show_other_texts(events, home, message.group), name="show-other-texts"
                )
                final_state = await client.find(state["id"], wait_seconds=min(wait_seconds, MAX_WAIT_SECONDS))
                showing.cancel()
        except BaseExceptionGroup as errors:
            # The caller handles single errors such as `NotRunning`, not a group of them.
            raise leaves(errors)[0] from None
        return final_state


async def _show_other_texts(events: AsyncIterator[dict[str, Any]], home: Home, group: str) -> None:
    """Print on stderr the messages to a group that are no answer, such as that Andy is waiting.

    `events` are those of the running Andy. Endless, until cancelled.
    """
    async for event in events:
        if event.get("kind") == "message.sent" and event.get("group") == group and "turn" not in event:
            say_aside(text_of(home, event["message"]))


def _waiting_text(state: dict[str, Any]) -> str:
    """Return the place of a message in the queue as text, such as `Waiting, place 2`.

    If the message is answered together with earlier ones, the text also has their number.
    """
    joined = state.get("joined", 0)
    noun = "message" if joined == 1 else "messages"
    joined_note = f", answered with {joined} {noun} before it" if joined else ""
    return f"Waiting, place {state['place']}{joined_note}"


async def _answer_text(home_option: Path | None, state: dict[str, Any], *, is_waiting: bool) -> str:
    """Return the reply to a message or, if it has none, a text about its state.

    `is_waiting` says that the command waited for a reply.
    """
    if state.get("reply"):
        return str(state["reply"])
    match state["outcome"]:
        case "answered" if is_waiting:
            return "(Andy had nothing to say.)"
        case "ignored":
            return _ignored_text(home_option, state)
        case "queued":
            return f"({_waiting_text(state)}. See it with: andy messages {state['group']})"
        case outcome:
            return f"({outcome}; see it with: andy messages {state['group']})"


def _ignored_text(home_option: Path | None, state: dict[str, Any]) -> str:
    """Return a text that explains why a message is not for Andy and, if it called nobody, how to call him."""
    from orchestrator.inbound.triggers import NO_TRIGGER
    from orchestrator.store.groups import groups

    home = home_of(home_option)
    name = settings_of(home).assistant_name
    if state["reason"] != NO_TRIGGER:
        return f"(Not for {name}: {state['reason']}.)"
    group = read(home.root, partial(groups.known, folder=state["group"]))
    or_own_trigger = f" or {group.trigger}" if group.trigger else ""
    return f"(Not for {name}: {NO_TRIGGER}. To call him, write @{name}{or_own_trigger} in the message.)"


async def _converse(home_option: Path | None, group: str, *, sender: str) -> int:
    """Send each typed line to a group, and print all that Andy sends there, until Ctrl-D; return 0.

    If stdin is no terminal but a pipe, its lines are sent one after another, and the highest exit code of
    the lines is returned.
    """
    if not sys.stdin.isatty():
        return await _send_lines_of_pipe(home_option, group, sender=sender)
    home = home_of(home_option)
    async with Client.of(home) as client:
        await client.open_chat(group)
        say_aside(f"You are in '{group}'. Write; Ctrl-D ends.")
        try:
            async with asyncio.TaskGroup() as tasks:
                listening = tasks.create_task(_listen(client, home, group), name="listen")
                typed_lines = _lines_of_terminal()
                # An empty text is the end of the input.
                while text := (await typed_lines.readline()).decode(errors="replace"):
                    if text.strip():
                        await _send_line(home_option, client, text.strip(), group=group, sender=sender)
                listening.cancel()
        except BaseExceptionGroup as errors:
            # `Client.of` and the caller handle single errors, such as a connection that broke.
            raise leaves(errors)[0] from None
    return 0


async def _listen(client: Client, home: Home, group: str) -> None:
    """Print what Andy sends to a group, until cancelled. Raises `NotRunning` once he has ended."""
    await _show_sent(client, home, group)
    raise NotRunning("Andy has ended, and so has this conversation: what you wrote is stored.")


def _lines_of_terminal() -> asyncio.StreamReader:
    """Return a stream of the lines that a person types.

    The event loop reads the terminal itself, as soon as there is a line: Ctrl-C could not end a thread that
    waits for a line.
    """
    loop, stream, descriptor = asyncio.get_running_loop(), asyncio.StreamReader(), sys.stdin.fileno()

    def take() -> None:
        """Pass the typed text on to the stream; an empty text is the end of the input, by Ctrl-D."""
        try:
            text = os.read(descriptor, MAX_TYPED_BYTES)
        except BlockingIOError:  # there is nothing to read after all
            return
        except OSError:  # the terminal is gone: the end of the input, too
            text = b""
        if text:
            stream.feed_data(text)
        else:
            loop.remove_reader(descriptor)
            stream.feed_eof()

    loop.add_reader(descriptor, take)
    return stream


async def _send_lines_of_pipe(home_option: Path | None, group: str, *, sender: str) -> int:
    """Send the lines of stdin to a group, each after the reply to the one before.

    Print the replies, and return the highest exit code of all lines; 0 without any.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # one line that is not UTF-8 must not lose those after it
    codes = [0]
    while text := typed(sys.stdin.readline):
        if text.strip():
            codes.append(
                await _say(
                    home_option, group, text.strip(), sender=sender, wait_seconds=WAIT_SECONDS, as_json=False
                )
            )
    return max(codes)


async def _send_line(home_option: Path | None, client: Client, text: str, *, group: str, sender: str) -> None:
    """Send one line to a group, and print on stderr why it failed or is not for Andy."""
    try:
        state = await client.say(group, text, sender=sender, wait_seconds=0)
    except AndyError as error:
        say_aside(str(error))
        return
    if state["outcome"] == "ignored":
        say_aside(await _answer_text(home_option, state, is_waiting=False))


async def _say_as_andy(home_option: Path | None, group: str, text: str) -> TextQueued:
    """Let the running Andy send `text` to a group word for word; return the response of his API.

    Raises:
        NotRunning: Andy does not run.
    """
    async with Client.of(home_of(home_option)) as client:
        return await client.say_as_andy(group, text)


async def _show_sent(client: Client, home: Home, group: str) -> None:
    """Print what Andy sends to a group, until he ends or this is cancelled."""
    async for event in client.events():
        if event.get("kind") == "message.sent" and event.get("group") == group:
            # Indented, so that a line of a reply cannot look like another message.
            text = text_of(home, event["message"]).replace("\n", "\n      ")
            print(f"Andy: {text}", flush=True)


def text_of(home: Home, message_id: str) -> str:
    """Return the text of a stored message; empty if there is no such message. Blocks."""
    from orchestrator.store.conversation import messages

    message = read(home.root, partial(messages.by_id, message_id=message_id))
    return message.text if message else ""
