"""Keep a channel connected with the stored login, and record the state of the connection.

For messengers that need only a login. WhatsApp, with its pairing and its bans, decides itself when to
connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from orchestrator.base.backoff import doubled_pause
from orchestrator.base.supervision import HEALTHY_MS
from orchestrator.channels.context import ChannelContext
from orchestrator.channels.description import ChannelDescription
from orchestrator.channels.status import StatusFile
from orchestrator.domain.errors import ChannelDown, ChannelError
from orchestrator.store.board import deliveries

log = structlog.get_logger(__name__)

LOGIN_SECONDS = 5.0
"""Seconds between two checks for a login while there is none. A check reads one file."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 300.0

Login = TypeVar("Login")


class LoggedOut(ChannelError):
    """The messenger has ended the login."""


class ChannelConnection(Generic[Login]):
    """Connects a channel with its login, again after each break, and records the status of the connection.

    One task calls `stay_connected`.
    """

    def __init__(
        self,
        context: ChannelContext,
        channel: ChannelDescription,
        *,
        read_login: Callable[[Path], Login | None],
        address_prefix: str,
        chance: Callable[[], float],
    ) -> None:
        """Set up the connection; nothing connects before `stay_connected`.

        Args:
            context: the parts of the host that channels use, such as its database.
            channel: the description of the channel.
            read_login: returns the login that is stored in a home, or None; it blocks.
            address_prefix: the prefix of the addresses of the channel's chats.
            chance: returns a number from [0, 1), by which waits vary.
        """
        self._context = context
        self._channel = channel
        self._read_login = read_login
        self._address_prefix = address_prefix
        self._chance = chance
        self.status = StatusFile(context.home / channel.status_file)

    async def stay_connected(self, connect: Callable[[Login], Awaitable[None]]) -> None:
        """Call `connect` with the stored login, again after each end of the connection, until cancelled.

        Once connected, `connect` calls `note_connected`, and runs until it raises: `LoggedOut` when the
        login has ended, else `ChannelDown`. While no login is stored, or the stored one has ended, this
        waits. A stored login that cannot be read is treated as a broken connection.
        """
        await self.status.load()
        failures = 0
        while True:
            login = None
            try:
                login = await asyncio.to_thread(self._read_login, self._context.home)
                if login is None:
                    await self._wait_for_login()
                    continue
                await connect(login)
            # `connect` may run tasks in groups, whose errors come in exception groups: `except*` matches them
            # in both forms.
            except* LoggedOut as error:
                await self._wait_for_another_login(login, str(_first_error(error)))
            except* ChannelError as error:
                # A connection that lasted begins a new row of failures, so that the next pause is short.
                failures = 1 if self._was_healthy() else failures + 1
                await self._pause(_first_error(error), failures, login)

    def _was_healthy(self) -> bool:
        """Return whether the connection that just ended had lasted for at least `HEALTHY_MS`."""
        since_ms = self.status.current.connected_since_ms
        # The state is still "connected": the end is recorded only after this.
        if self.status.current.state != "connected" or since_ms is None:
            return False
        return self._context.clock.now_ms() - since_ms >= HEALTHY_MS

    async def note_connected(self) -> None:
        """Record and publish that the messenger has answered, and make messages waiting for it due now."""
        now_ms = self._context.clock.now_ms()
        await self.status.record(state="connected", connected_since_ms=now_ms, advice="", next_try_ms=None)
        log.info("channel.connected", channel=self._channel.name)
        self._context.bus.publish("channel.state", detail=f"{self._channel.name} connected")
        # Messages that waited for the messenger are sent now, not when the pause after their failure ends.
        address_pattern = f"{self._address_prefix}%"  # of SQL's LIKE: all addresses of the channel
        await self._context.database.write(lambda tx: deliveries.hurry(tx, [address_pattern], now_ms=now_ms))
        self._context.wake_outbox()

    def why_down(self) -> ChannelDown:
        """Return the error for an action that needs a connection while there is none.

        Its text is the advice in the status, or the state of the connection if there is no advice.
        """
        status = self.status.current
        return ChannelDown(status.advice or f"{self._channel.title} is {status.state.replace('_', ' ')}.")

    async def _wait_for_login(self) -> None:
        """Record that nobody is logged in, and wait until the next check for a login."""
        # Each record writes the file, which is needed only once for many checks.
        if self.status.current.state != "unpaired":
            await self.status.record(state="unpaired", account="", connected_since_ms=None)
        await asyncio.sleep(LOGIN_SECONDS)

    async def _pause(self, error: BaseException, failures: int, failed_login: Login | None) -> None:
        """Record that the connection ended by `error`, and wait before the next one.

        The wait ends early if another login is stored meanwhile, or if the login is removed.

        `failures` is the number of connections in a row, from 1 on, that failed: the more, the longer the
        wait. If the messenger asks for a longer pause, the wait is that long. `failed_login` is the login of
        the connection; None if the stored one could not be read.
        """
        reason = str(error)
        # Pauses grow, because messengers ban an address that reconnects without end.
        full_seconds = doubled_pause(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, failures=failures)
        # A random wait between half of it and all of it, so that not all hosts reconnect at once.
        seconds = full_seconds * (1 - self._chance() / 2)
        if isinstance(error, ChannelDown):
            seconds = max(seconds, error.pause_seconds)
        await self._record_end("disconnected", reason, seconds=seconds)
        log.warning("channel.down", channel=self._channel.name, reason=reason, pause_seconds=seconds)
        while seconds > 0:
            await asyncio.sleep(min(seconds, LOGIN_SECONDS))
            seconds -= LOGIN_SECONDS
            if await self._has_login_changed(failed_login):
                return

    async def _has_login_changed(self, failed_login: Login | None) -> bool:
        """Return whether the stored login is another than `failed_login`, or was removed.

        A login that cannot be read has not changed.
        """
        try:
            return await asyncio.to_thread(self._read_login, self._context.home) != failed_login
        except ChannelError:
            return False

    async def _wait_for_another_login(self, ended_login: Login | None, reason: str) -> None:
        """Record that the login has ended, and wait until another one, or none, is stored.

        `ended_login` is the login that has ended. Raises `ChannelError` when the stored login cannot be read.
        """
        await self._record_end("logged_out", reason, seconds=None)
        log.error("channel.logged_out", channel=self._channel.name, reason=reason)
        # Another process writes the file: there is no event to wait for.
        while await asyncio.to_thread(self._read_login, self._context.home) == ended_login:  # noqa: ASYNC110
            await asyncio.sleep(LOGIN_SECONDS)

    def _advice(self, state: str, reason: str) -> str:
        """Return the English advice of the channel's description about a state of the connection.

        If the description has no advice about it, name the state and the `reason` why the connection ended.
        """
        text = self._channel.advice.get(state, {}).get("en")
        if text is None:
            return f"{self._channel.title} is {state.replace('_', ' ')}: {reason}"
        # Not `format`: another package's description may contain other braces.
        return text.replace("{reason}", reason)

    async def _record_end(self, state: str, reason: str, *, seconds: float | None) -> None:
        """Record and publish that the connection ended: its new `state`, and the `reason`.

        `seconds` is the time until the next try; None if no try follows.
        """
        now_ms = self._context.clock.now_ms()
        await self.status.record(
            state=state,
            connected_since_ms=None,
            last_disconnect=reason,
            last_disconnect_ms=now_ms,
            last_error=reason,
            advice=self._advice(state, reason),
            next_try_ms=now_ms + int(seconds * 1000) if seconds is not None else None,
        )
        self._context.bus.publish("channel.state", detail=f"{self._channel.name} {state}", reason=reason)


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error in a group of errors, which may contain groups."""
    error = group.exceptions[0]
    return _first_error(error) if isinstance(error, BaseExceptionGroup) else error
