"""`andy channels`: the messengers that Andy answers on, whatever they are."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import HomeOption, JsonOption, show
from orchestrator.cli.terminal import home_of, settings_of
from orchestrator.domain.errors import NotRunning, SettingError
from orchestrator.domain.home import Home

if TYPE_CHECKING:
    from orchestrator.channels.description import ChannelDescription, LoginQuestion

channels_app = App(name="channels")
ChannelArgument = Annotated[str, Parameter(help="A channel, by its name: see 'andy channels list'.")]


@channels_app.command(name="list")
def list_channels(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List every channel that is installed, whether it is on, and what it can do. Works with Andy down.

    Example: `andy channels list`
    """
    show(_rows(home_of(home)), list_lines, as_json=as_json)


def _rows(home: Home) -> list[dict[str, Any]]:
    from orchestrator.channels import discovery

    wanted = settings_of(home).channels
    rows: list[dict[str, Any]] = []
    for name in discovery.names():
        try:
            one = discovery.find(name)
        except SettingError as error:
            rows.append({"name": name, "title": name, "state": "broken", "problem": str(error)})
            continue
        rows.append(
            {
                "name": name,
                "title": one.title,
                "state": "on" if one.is_always_on or name in wanted else "off",
                "about": one.about["en"],
                "can": sorted(one.features),
                "max_text_chars": one.max_text_chars,
                "max_file_bytes": one.max_file_bytes,
                "media": list(one.media),
                "add": "" if one.is_always_on else one.add_command,
                "problem": "",
            }
        )
    return rows


def list_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Show channels to people: two lines each. Pure."""
    shown = []
    for row in rows:
        shown.append(f"{row['name']:<10} {row['state']:<6} {row['problem'] or row['about']}")
        if row["problem"]:
            continue
        limit = f"; {row['max_text_chars']} characters a message" if row["max_text_chars"] else ""
        shown.append(f"{'':17} {', '.join(row['can'])}{limit}")
        if row["state"] == "off":
            shown.append(f"{'':17} → {row['add']}")
    return shown


@channels_app.command
def add(
    channel: ChannelArgument,
    /,
    *,
    given: Annotated[
        list[str] | None,
        Parameter(name="--set", negative="", help="An answer, as NAME=VALUE. [what is missing is asked]"),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Switch a channel on and log in to it. What is secret is asked, or read from stdin, a line each.

    Example: `andy channels add matrix --set homeserver=https://matrix.org --set user=@andy:matrix.org`
    """
    print(asyncio.run(switch_on(home_of(home), channel, answers_of(given or []))))


RESTART = "if he runs now, stop him and start him again"


def answers_of(given: Sequence[str]) -> dict[str, str]:
    """Return what `--set` says, by name. Raises `UsageError`. Pure."""
    answers = {}
    for one in given:
        name, sign, value = one.partition("=")
        if not sign:
            raise UsageError(f"'--set {one}' has no '=': write NAME=VALUE.")
        answers[name.strip()] = value.strip()
    return answers


async def switch_on(home: Home, name: str, given: Mapping[str, str]) -> str:
    """Log in to a channel and write it into the setting; return what is so now.

    Raises:
        UnknownChannel: there is none of this name.
        BadRequest, ChannelError: it cannot be logged in; nothing is changed then.
    """
    from orchestrator.channels import discovery, switching

    channel = discovery.find(name)
    if channel.is_always_on:
        return f"{channel.title}: always on."
    unknown = sorted(set(given) - {one.name for one in channel.questions})
    if unknown:
        known = ", ".join(one.name for one in channel.questions) or "none"
        raise UsageError(f"{channel.title} asks for nothing named '{unknown[0]}': it takes {known}.")
    answers = {one.name: given.get(one.name) or await _asked(one) for one in channel.questions}
    said = await switching.switch_on(home, channel, answers)
    said = f"{said} " if said else ""
    pair = f" Pair it: '{channel.pair_command}'." if channel.pair_command else ""
    return f"{said}{channel.title} is on from Andy's next start: {RESTART}.{pair}"


async def _asked(question: LoginQuestion) -> str:
    is_terminal = sys.stdin.isatty()
    if question.is_rare:
        return question.default
    if question.is_secret:
        from getpass import getpass

        read = (lambda: getpass(f"{question.text}: ")) if is_terminal else sys.stdin.readline
    elif is_terminal:
        hint = f" [{question.default}]" if question.default else ""
        read = lambda: input(f"{question.text}{hint}: ")  # noqa: E731 - one of two ways to read
    else:
        read = str
    answer = (await asyncio.to_thread(read)).strip() or question.default
    if not answer:
        how = "as a line on stdin" if question.is_secret else f"with --set {question.name}=…"
        raise UsageError(f"An answer is missing: give it {how}. The question: {question.text}.")
    return answer


@channels_app.command
def remove(channel: ChannelArgument, /, *, home: HomeOption = None) -> None:
    """Switch a channel off and end its login. Its chats and their history stay.

    Example: `andy channels remove matrix`
    """
    print(asyncio.run(switch_off(home_of(home), channel)))


async def switch_off(home: Home, name: str) -> str:
    """Take a channel out of the setting and end its login; return what is so now.

    Raises:
        UnknownChannel: there is none of this name.
        UsageError: it cannot be switched off.
    """
    from orchestrator.channels import discovery, switching

    channel = discovery.find(name)
    if channel.is_always_on:
        raise UsageError(f"{channel.title} cannot be switched off.")
    wanted = [one for one in settings_of(home).channels if one != name]
    await asyncio.to_thread(switching.write_setting, home, wanted)
    said = f"{channel.title} is off from Andy's next start: {RESTART}."
    if channel.log_out is not None:
        try:
            return f"{said} {await channel.log_out(home.root)}"
        except ImportError:
            return f"{said} Its login stays in the home: {channel.missing_library}"
    return f"{said} Its login stays in the home."


@channels_app.command
def status(channel: str | None = None, /, *, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Tell how the connection of each channel is that is on, or of one. Works with Andy down.

    Example: `andy channels status matrix`
    """
    show(asyncio.run(_statuses(home_of(home), channel)), status_lines, as_json=as_json)


async def _statuses(home: Home, name: str | None) -> list[dict[str, Any]]:
    from orchestrator.channels import discovery

    wanted = [name] if name else settings_of(home).channels
    found = [one for each in wanted if not (one := discovery.find(each)).is_always_on]
    rows = [{"name": one.name} | await connection_status(home, one) for one in found]
    for row, one in zip(rows, found, strict=True):
        if row["state"] == "unpaired" and not row["advice"]:
            row["advice"] = one.add_command
    return rows


def status_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Show connections to people: a line each, and what to do. Pure."""
    shown = []
    for row in rows:
        state = str(row["state"]).replace("_", " ")
        running = "" if row["is_running"] else " (Andy is not running)"
        shown.append(f"{row['name']:<10} {row['account'] or 'nobody is logged in'}: {state}{running}")
        if row["advice"]:
            shown.append(f"{'':10} → {row['advice']}")
    return shown or ["No messenger is on: see 'andy channels list'."]


async def connection_status(home: Home, channel: ChannelDescription) -> dict[str, Any]:
    """Return who is logged in and how the connection is: of the running Andy, else as it was last."""
    from orchestrator.channels import status as condition
    from orchestrator.cli.client import Client

    path = home.root / channel.status_file if channel.status_file else Path(os.devnull)
    stored = await asyncio.to_thread(condition.read, path)
    account = await asyncio.to_thread(channel.account, home.root)
    found = stored.model_dump() | {"is_running": False, "account": account}
    try:
        async with Client.of(home) as client:
            reported: dict[str, Any] = (await client.status())["channels"].get(channel.name, {})
    except NotRunning:
        down = "logged_out" if stored.state == "logged_out" and not account else "down"
        return found | {
            "state": down if account or stored.account else "unpaired",
            "advice": "" if account and stored.state == "logged_out" else stored.advice,
            "connected_since_ms": None,
            "next_try_ms": None,
        }
    return {**found, **reported, "is_running": True}
