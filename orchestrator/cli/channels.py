"""`andy channels`: the messengers that Andy answers on, whatever they are."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from orchestrator.cli.exit_codes import UsageError
from orchestrator.cli.options import HomeOption, JsonOption, show
from orchestrator.cli.terminal import home_of, settings_of, settings_to_show, typed
from orchestrator.domain.errors import AndyError, ChannelError, NotRunning, SettingError
from orchestrator.home.directory import Home

if TYPE_CHECKING:
    from orchestrator.channels.description import ChannelDescription, LoginQuestion

channels_app = App(name="channels")
ChannelArgument = Annotated[str, Parameter(help="A channel, by its name: see 'andy channels list'.")]


@channels_app.command(name="list")
def list_channels(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List every channel that is installed, whether it is on, and what it can do. Works with Andy down.

    Example: `andy channels list`
    """
    show(_channel_rows(home_of(home)), list_lines, as_json=as_json)


def _channel_rows(home: Home) -> list[dict[str, Any]]:
    """Return all installed channels (messengers) as rows for `--json`.

    A channel whose package cannot be loaded has its problem in place of the facts.
    """
    from orchestrator.channels import discovery

    switched_on = settings_to_show(home).channels
    rows: list[dict[str, Any]] = []
    for name in discovery.names():
        try:
            channel = discovery.find(name)
        except SettingError as error:
            # The package of one channel that cannot be loaded must not hide the others.
            rows.append({"name": name, "title": name, "state": "broken", "problem": str(error)})
            continue
        rows.append(
            {
                "name": name,
                "title": channel.title,
                "state": "on" if channel.is_always_on or name in switched_on else "off",
                "about": channel.about["en"],
                "can": sorted(channel.features),
                "max_text_chars": channel.max_text_chars,
                "max_file_bytes": channel.max_file_bytes,
                "media": list(channel.media),
                "add": "" if channel.is_always_on else channel.add_command,
                "problem": "",
            }
        )
    return rows


def list_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows about channels (messengers) as lines for people: up to three for each. Pure."""
    lines = []
    for row in rows:
        lines.append(f"{row['name']:<10} {row['state']:<6} {row['problem'] or row['about']}")
        if row["problem"]:
            continue
        limit = f"; {row['max_text_chars']} characters a message" if row["max_text_chars"] else ""
        lines.append(f"{'':17} {', '.join(row['can'])}{limit}")
        if row["state"] == "off":
            lines.append(f"{'':17} → {row['add']}")
    return lines


@channels_app.command
def add(
    channel: ChannelArgument,
    /,
    *,
    assignments: Annotated[
        list[str] | None,
        Parameter(
            name="--set",
            negative="",
            help="A value that the channel needs, as NAME=VALUE. [missing ones are prompted for]",
        ),
    ] = None,
    home: HomeOption = None,
) -> None:
    """Switch a channel on and log in to it. Secrets are prompted for, or read from stdin, one a line.

    Example: `andy channels add matrix --set homeserver=https://matrix.org --set user=@andy:matrix.org`
    """
    print(asyncio.run(switch_on(home_of(home), channel, answers_of(assignments or []))))


RESTART = "if he runs now, stop him and start him again"


def answers_of(assignments: Sequence[str]) -> dict[str, str]:
    """Return the values of options `--set NAME=VALUE` by name. Raises `UsageError` without a `=`. Pure."""
    answers = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign:
            raise UsageError(f"'--set {assignment}' has no '=': write NAME=VALUE.")
        answers[name.strip()] = value.strip()
    return answers


async def switch_on(home: Home, name: str, provided: Mapping[str, str]) -> str:
    """Log in to the channel (messenger) `name`, and add it to ANDY_CHANNELS; return a text about the result.

    `provided` has answers to questions of its login by their names; the owner is asked for the others. For a
    channel that is always on, nothing is done.

    Raises:
        UnknownChannel: no channel has this name.
        UsageError: an answer is missing, or belongs to no question of this channel.
        BadRequest, ChannelError: the login fails; nothing is changed then.
    """
    from orchestrator.channels import discovery, switching

    channel = discovery.find(name)
    if channel.is_always_on:
        return f"{channel.title}: always on."
    unknown = sorted(set(provided) - {question.name for question in channel.questions})
    if unknown:
        known_names = ", ".join(question.name for question in channel.questions) or "none"
        raise UsageError(f"{channel.title} asks for nothing named '{unknown[0]}': it takes {known_names}.")
    answers = {
        question.name: provided.get(question.name) or _prompt(question) for question in channel.questions
    }
    note = await switching.switch_on(home, channel, answers)
    note = f"{note} " if note else ""
    pair = f" Pair it: '{channel.pair_command}'." if channel.pair_command else ""
    return f"{note}{channel.title} is on from Andy's next start: {RESTART}.{pair}"


def _prompt(question: LoginQuestion) -> str:
    """Return the answer to a question of a messenger's login.

    A person types the answer at the terminal. If stdin is no terminal, a secret is read as one line of stdin,
    and any other answer is the question's default. A question that is rarely needed is not asked: its default
    is returned.

    Raises:
        UsageError: there is neither an answer nor a default.
    """
    is_terminal = sys.stdin.isatty()
    if question.is_rare:
        return question.default
    if question.is_secret:
        from getpass import getpass

        # Not shown while it is typed.
        read = (lambda: getpass(f"{question.text}: ")) if is_terminal else sys.stdin.readline
    elif is_terminal:
        hint = f" [{question.default}]" if question.default else ""
        read = lambda: input(f"{question.text}{hint}: ")  # noqa: E731 - one of two ways to read
    else:
        read = str  # nobody can be asked: an empty answer, so that the default is used
    answer = typed(read).strip() or question.default
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
    """Remove the channel (messenger) `name` from ANDY_CHANNELS and end its login; return a text about it.

    The login stays if the channel cannot end it, or if its library is not installed.

    Raises:
        UnknownChannel: no channel has this name.
        UsageError: the channel cannot be switched off.
    """
    from orchestrator.channels import discovery, switching

    channel = discovery.find(name)
    if channel.is_always_on:
        raise UsageError(f"{channel.title} cannot be switched off.")
    remaining_channels = [other for other in settings_of(home).channels if other != name]
    await asyncio.to_thread(switching.write_setting, home, remaining_channels)
    text = f"{channel.title} is off from Andy's next start: {RESTART}."
    if channel.log_out is not None:
        try:
            return f"{text} {await channel.log_out(home.root)}"
        except ImportError:
            return f"{text} Its login stays in the home: {channel.missing_library}"
    return f"{text} Its login stays in the home."


@channels_app.command
def status(
    channel: Annotated[str | None, Parameter(help="A channel, by its name. [all channels]")] = None,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show the state of each channel's connection, or of one channel's. Works with Andy down.

    Example: `andy channels status matrix`
    """
    show(asyncio.run(_statuses(home_of(home), channel)), status_lines, as_json=as_json)


async def _statuses(home: Home, name: str | None) -> list[dict[str, Any]]:
    """Return the state of each channel's connection as rows for `--json`.

    The row of the channel `name` is returned; for None, those of all channels that are switched on. A channel
    that is always on has no connection and is left out. The advice for a channel without a login is the
    command that adds the channel. A channel that cannot be loaded, or cannot say how it is, has the state
    `broken` and its problem as the advice.

    Raises:
        UnknownChannel, BrokenChannel: the channel `name` cannot be loaded.
        ChannelDown: the login of the channel `name` cannot be read.
    """
    from orchestrator.base.supervision import reason_of
    from orchestrator.channels import discovery

    rows: list[dict[str, Any]] = []
    for channel_name in [name] if name else settings_to_show(home).channels:
        # One broken channel must not hide the others.
        try:
            channel = discovery.find(channel_name)
            if channel.is_always_on:
                continue
            row = await connection_status(home, channel)
        except (SettingError, ChannelError) as error:
            if name:
                raise
            row = await _broken_status(home, str(error))
        except AndyError:
            raise  # of the running Andy
        except Exception as error:  # noqa: BLE001 - a channel of somebody else's package may raise anything
            row = await _broken_status(home, f"It cannot say how it is ({reason_of(error)}): upgrade it.")
        else:
            if row["state"] == "unpaired" and not row["advice"]:
                row["advice"] = channel.add_command
        rows.append({"name": channel_name} | row)
    return rows


def status_lines(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows about connections to messengers as lines for people, with what to do below. Pure."""
    lines = []
    for row in rows:
        state = str(row["state"]).replace("_", " ")
        running = "" if row["is_running"] else " (Andy is not running)"
        account = row["account"] or ("account unknown" if state == "broken" else "nobody is logged in")
        lines.append(f"{row['name']:<10} {account}: {state}{running}")
        if row["advice"]:
            lines.append(f"{'':10} → {row['advice']}")
    return lines or ["No messenger is on: see 'andy channels list'."]


async def connection_status(home: Home, channel: ChannelDescription) -> dict[str, Any]:
    """Return a channel's account and the state of its connection, and whether Andy runs.

    A running Andy is asked for the state. If none runs, or if he does not use the channel, it is worked out:
    `unpaired` if no account is known, neither now nor from the last connection; `logged_out` if the messenger
    ended the last login and nobody has logged in since; else `down`.
    """
    from orchestrator.channels import status as condition

    # A channel without a status file has an empty status, which `read` returns for an empty file.
    path = home.root / channel.status_file if channel.status_file else Path(os.devnull)
    stored = await asyncio.to_thread(condition.read, path)
    account = await asyncio.to_thread(channel.account, home.root)
    reports = await _reported_states(home)
    is_running = reports is not None
    reported: dict[str, Any] | None = (reports or {}).get(channel.name)
    fields = stored.model_dump() | {"is_running": is_running, "account": account}
    if reported is not None:
        # A channel that reports nothing has no connection that could be down.
        return fields | {"state": "connected"} | reported
    # Somebody has logged in since the login was ended, so the advice to do that is out of date.
    advice = "" if account and stored.state == "logged_out" else stored.advice
    if is_running and account:
        advice = (
            f"The running Andy does not use {channel.title}: if it is switched on, stop him and start him"
            f" again, else type '{channel.add_command}'."
        )
    # The file says how the last connection was; nothing is connected now, and nothing tries to.
    state_without_host = "logged_out" if stored.state == "logged_out" and not account else "down"
    return fields | {
        "state": state_without_host if account or stored.account else "unpaired",
        "advice": advice,
        "connected_since_ms": None,
        "next_try_ms": None,
    }


async def _broken_status(home: Home, problem: str) -> dict[str, Any]:
    """Return the status of a channel that cannot say how it is, in the fields of `connection_status`."""
    from orchestrator.channels.status import ChannelStatus

    is_running = await _reported_states(home) is not None
    return ChannelStatus(state="broken", advice=problem).model_dump() | {"is_running": is_running}


async def _reported_states(home: Home) -> dict[str, Any] | None:
    """Return the states of the channels as a running Andy reports them, by name; None if none runs."""
    from orchestrator.cli.client import Client

    with suppress(NotRunning):
        async with Client.of(home) as client:
            channels: dict[str, Any] = (await client.status())["channels"]
            return channels
    return None
