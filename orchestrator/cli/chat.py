"""`andy chat` and `andy say`: write to a group and read its replies, and speak in it as Andy."""

from __future__ import annotations

import asyncio
import json
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from orchestrator.cli.client import Client
from orchestrator.cli.exit_codes import FAILED
from orchestrator.cli.options import GroupArgument, HomeOption, JsonOption, show
from orchestrator.cli.terminal import home_of, read, say_aside, settings_of
from orchestrator.domain.errors import AndyError
from orchestrator.domain.home import Home

WAIT_SECONDS = 120.0


def chat(
    group: GroupArgument = "main",
    /,
    *,
    message: Annotated[
        str | None, Parameter(name=["-m", "--message"], help="Say this, print the reply and exit.")
    ] = None,
    sender: Annotated[str, Parameter(help="Who is writing.")] = "you",
    wait: Annotated[
        float,
        Parameter(
            help="Seconds to wait for the reply to -m; it is not lost when it comes later.",
            validator=Number(gte=0, lte=600),
        ),
    ] = WAIT_SECONDS,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> int:
    """Write to a group from this terminal and read its replies.

    Example: `andy chat main -m "remind me in 10 minutes to stretch"`
    """
    if message is None:
        return asyncio.run(_converse(home, group, sender=sender))
    return asyncio.run(_say(home, group, message, sender=sender, wait_seconds=wait, as_json=as_json))


def say_as_andy(
    group: GroupArgument,
    text: Annotated[str, Parameter(help="What Andy is to say, word for word.")],
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Speak in a group as Andy; its agent reads it as what Andy said. To speak to Andy, use 'andy chat'.

    Example: `andy say family "Dinner is at seven today."`
    """
    done = asyncio.run(_say_as_andy(home, group, text))
    show(done, lambda found: [f"It is on its way to '{found['group']}'."], as_json=as_json)


async def _say(
    given: Path | None, group: str, text: str, *, sender: str, wait_seconds: float, as_json: bool
) -> int:
    """Send one message, print what came of it, and return the exit code."""
    async with Client.of(home_of(given)) as client:
        place = await client.say(group, text, sender=sender, wait_seconds=wait_seconds)
    said = json.dumps(place, ensure_ascii=False, indent=2) if as_json else await _answer_text(given, place)
    print(said)
    return FAILED if place["outcome"] == "failed" else 0


async def _answer_text(given: Path | None, place: dict[str, Any]) -> str:
    if place.get("reply"):
        return str(place["reply"])
    match place["outcome"]:
        case "answered":
            return "(Andy had nothing to say.)"
        case "ignored":
            return await _ignored_text(given, place)
        case "queued":
            return f"(Waiting, place {place['place']}. See it with: andy messages {place['group']})"
        case outcome:
            return f"({outcome}; see it with: andy messages {place['group']})"


async def _ignored_text(given: Path | None, place: dict[str, Any]) -> str:
    """Explain why a message is not for Andy and, where nobody called him, how to call him."""
    from orchestrator.inbound.triggers import NO_TRIGGER
    from orchestrator.store import groups

    home = home_of(given)
    name = settings_of(home).assistant_name
    if place["reason"] != NO_TRIGGER:
        return f"(Not for {name}: {place['reason']}.)"
    group = read(home.root, partial(groups.known, folder=place["group"]))
    own = f" or {group.trigger}" if group.trigger else ""
    return f"(Not for {name}: {NO_TRIGGER}. To call him, write @{name}{own} in the message.)"


async def _converse(given: Path | None, group: str, *, sender: str) -> int:
    """Send the lines that are typed and print replies and what Andy says by himself, until Ctrl-D."""
    if not sys.stdin.isatty():
        return await _say_each(given, group, sender=sender)
    home = home_of(given)
    async with Client.of(home) as client:
        await client.open_chat(group)
        say_aside(f"You are in '{group}'. Write; Ctrl-D ends.")
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(_show_sent(client, home, group), name="listen")
            while text := await asyncio.to_thread(sys.stdin.readline):
                if text.strip():
                    await _one_line(given, client, text.strip(), group=group, sender=sender)
            listening.cancel()
    return 0


async def _say_each(given: Path | None, group: str, *, sender: str) -> int:
    """Send the lines of a pipe, each after the reply to the one before; return 1 when one failed."""
    codes = [0]
    while text := await asyncio.to_thread(sys.stdin.readline):
        if text.strip():
            codes.append(
                await _say(
                    given, group, text.strip(), sender=sender, wait_seconds=WAIT_SECONDS, as_json=False
                )
            )
    return max(codes)


async def _one_line(given: Path | None, client: Any, text: str, *, group: str, sender: str) -> None:
    try:
        place = await client.say(group, text, sender=sender, wait_seconds=0)
    except AndyError as error:
        say_aside(str(error))
        return
    if place["outcome"] == "ignored":
        say_aside(await _answer_text(given, place))


async def _say_as_andy(given: Path | None, group: str, text: str) -> dict[str, Any]:
    """Have the running Andy send a text of the owner's; return `{group, …}` of it. Raises `NotRunning`."""
    async with Client.of(home_of(given)) as client:
        return await client.say_as_andy(group, text)


async def _show_sent(client: Any, home: Home, group: str) -> None:
    async for event in client.events():
        if event.get("kind") == "message.sent" and event.get("group") == group:
            # Indented, so that no line of his can pass for another's.
            text = (await text_of(home, event["message"])).replace("\n", "\n      ")
            print(f"Andy: {text}", flush=True)


async def text_of(home: Home, message_id: str) -> str:
    """Return the text of a stored message, empty when there is no such message."""
    from orchestrator.store import messages

    message = read(home.root, partial(messages.by_id, message_id=message_id))
    return message.text if message else ""
