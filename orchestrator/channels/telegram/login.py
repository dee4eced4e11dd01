"""Check a bot's token once, and store it in a file that only the owner can read."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import telegram
from pydantic import BaseModel, ConfigDict, ValidationError
from telegram.error import InvalidToken, RetryAfter, TelegramError
from telegram.request import HTTPXRequest

from agent_runner.wire.files import write_whole
from orchestrator.channels.server_address import checked_address
from orchestrator.channels.telegram.description import FOLDER, LOGIN
from orchestrator.domain.errors import BadRequest, ChannelDown, ChannelRefused, bounded_pause

# The library returns time spans as numbers unless configured otherwise, and warns each time.
os.environ.setdefault("PTB_TIMEDELTA", "1")

API = "https://api.telegram.org"
REQUEST_SECONDS = 30.0
UNNAMED_PAUSE_SECONDS, LEAST_PAUSE_SECONDS = 5.0, 1.0
"""Seconds of a pause that is asked for without a number, and of the shortest pause."""
TOO_MANY_REQUESTS = 429
UNREADABLE = (KeyError, RecursionError, TypeError, ValueError)
"""Errors of the library for an answer of another form than Telegram's, such as that of a proxy."""
_TOKEN = re.compile(r"[0-9]{3,20}:[A-Za-z0-9_-]{20,100}")


class TelegramLogin(BaseModel):
    """The bot and its owner. Whoever has the `token` can act as the bot."""

    model_config = ConfigDict(frozen=True)

    token: str
    bot_id: int
    username: str
    owner: int
    """The owner's user id; 0 if it is not known."""
    server: str = API
    """The Bot API: Telegram's own, or a server of the owner's."""
    nonce: str = ""
    """A value that changes with each login, so that the same token is tried again."""

    def is_owner(self, user_id: int | None) -> bool:
        """Return whether a user is the owner; False for None and 0, a message without sender."""
        return user_id != 0 and user_id == self.owner


def read(home: Path) -> TelegramLogin | None:
    """Return the stored Telegram login of a home, or None if no bot is logged in. Blocks.

    Raises:
        ChannelDown: the file with the login is there and cannot be read.
    """
    path = home / LOGIN
    try:
        return TelegramLogin.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ChannelDown(
            f"The Telegram login {path} cannot be read: 'andy channels add telegram'."
        ) from error


def write(home: Path, login: TelegramLogin) -> None:
    """Store a login in a file that only the owner can read. Blocks. Raises `OSError`."""
    path = home / LOGIN
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, login.model_dump_json(indent=2) + "\n", mode=0o600)


class PollingBot(telegram.Bot):
    """A client of the Bot API that returns raw updates, each to be parsed alone.

    The library parses a page of updates as a whole: one with an unexpected field loses the whole page.
    Telegram then sends the page again without end, because it is never confirmed.
    """

    async def raw_updates(self, *, offset: int | None, seconds: int, kinds: Sequence[str]) -> Any:
        """Return the updates that Telegram has for the bot as JSON: a list of objects, if Telegram is right.

        This confirms all updates before the number `offset`, which Telegram then deletes.

        Args:
            offset: the number of the first update to return; None for all that are not confirmed.
            seconds: how long Telegram waits for a first update.
            kinds: the kinds of updates to return.

        Raises:
            TelegramError: there was no answer, or Telegram refuses.
        """
        data = {"offset": offset, "timeout": seconds, "allowed_updates": list(kinds)}
        return await self._post("getUpdates", data, read_timeout=REQUEST_SECONDS + seconds)


def make_bot(token: str, server: str) -> PollingBot:
    """Return a client of the Bot API for the bot with this token; it connects with its first request.

    `server` is the address of the Bot API, without a trailing slash. In the whole process, the libraries that
    the client uses log only warnings and errors from now on.
    """
    # The token is a part of each request's address, which they would log.
    for name in ("httpx", "httpcore", "telegram"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return PollingBot(
        token,
        base_url=f"{server}/bot",
        base_file_url=f"{server}/file/bot",
        request=_http_client(connections=16),
        # Its own connection, since a request for updates stays open while there are none.
        get_updates_request=_http_client(connections=1),
    )


class _HttpClient(HTTPXRequest):
    """An HTTP client that reads the pause that an answer asks for.

    The library breaks on a pause that is no number or too large, and overlooks one of 0, which counts only
    with the status `TOO_MANY_REQUESTS`. It also breaks on JSON that is nested too deeply, or that is a list
    where Telegram has an object: such an error is passed on without its content.
    """

    async def do_request(self, *args: Any, **options: Any) -> tuple[int, bytes]:
        """Return the status and the content of the answer. Raises `RetryAfter` if it asks for a pause."""
        status, content = await super().do_request(*args, **options)
        if status < 400:
            return status, content
        try:
            parameters = json.loads(content).get("parameters") or {}
            pause = parameters.get("retry_after")
        except ValueError:
            pause = None  # no JSON, such as the page of a proxy
        except (AttributeError, RecursionError):
            pause, content = None, b""  # JSON of a form at which the library would break
        if status == TOO_MANY_REQUESTS or pause:
            seconds = max(bounded_pause(pause, default=UNNAMED_PAUSE_SECONDS), LEAST_PAUSE_SECONDS)
            raise RetryAfter(timedelta(seconds=seconds))
        return status, content


def _http_client(*, connections: int) -> HTTPXRequest:
    """Return an HTTP client with timeouts, and with at most `connections` connections at once."""
    return _HttpClient(
        connection_pool_size=connections,
        connect_timeout=10.0,
        read_timeout=REQUEST_SECONDS,
        write_timeout=REQUEST_SECONDS,
        pool_timeout=10.0,
    )


async def log_in(home: Path, answers: Mapping[str, str]) -> str:
    """Check a bot's token at Telegram and store the login in the home; return a sentence about the result.

    `answers` has `token` (the bot's), `owner` (the owner's user id; 0 if unknown) and `server` (the address
    of the Bot API).

    Raises:
        BadRequest: an answer cannot be used.
        ChannelRefused: Telegram does not know the token.
        ChannelDown: it cannot be reached.
        OSError: the login cannot be stored.
    """
    token, owner = answers["token"].strip(), answers["owner"].strip()
    if not _TOKEN.fullmatch(token):
        raise BadRequest("That is no token of a bot: @BotFather gives one such as 123456:ABC-def….")
    if not owner.isdecimal():
        raise BadRequest(f"'{owner}' is no user id: it is a number, which @userinfobot tells you.")
    server = checked_address(answers["server"], credential_kind="token")
    try:
        async with make_bot(token, server) as bot:
            me = await bot.get_me()
        login = TelegramLogin(
            token=token,
            bot_id=me.id,
            username=me.username or "",
            owner=int(owner),
            server=server,
            nonce=secrets.token_hex(8),
        )
    except InvalidToken as error:
        raise ChannelRefused("Telegram does not know this token: ask @BotFather for /token.") from error
    except TelegramError as error:
        raise ChannelDown(f"Telegram cannot be reached ({error}).") from error
    except UNREADABLE as error:
        raise ChannelDown(f"What answers at {server} is no Bot API of Telegram's.") from error
    await asyncio.to_thread(write, home, login)
    hint = (
        ""
        if me.can_read_all_group_messages
        else " In groups it sees only what calls or answers it, until /setprivacy of @BotFather is 'Disable'."
    )
    return f"The bot is @{login.username}; write to it, or add it to a group.{hint}"


async def log_out(home: Path) -> str:
    """Delete the stored login with its token from the home; return a sentence about the result.

    The token stays valid at Telegram. A login that cannot be read is deleted, too. Raises `ChannelDown` when
    it cannot be deleted.
    """
    try:
        login = await asyncio.to_thread(read, home)
    except ChannelDown:
        bot = "the bot, whose login could not be read,"
    else:
        if login is None:
            return "No bot was logged in."
        bot = f"@{login.username}"
    await asyncio.to_thread(_delete, home)
    return f"The token of {bot} is deleted here; @BotFather's /revoke ends it everywhere."


def _delete(home: Path) -> None:
    """Delete the stored login, then the rest of the channel's folder. Blocks.

    Raises `ChannelDown` when the login cannot be deleted.
    """
    try:
        (home / LOGIN).unlink(missing_ok=True)
    except OSError as error:
        raise ChannelDown(f"The Telegram login {home / LOGIN} cannot be deleted ({error}).") from error
    shutil.rmtree(home / FOLDER, ignore_errors=True)
