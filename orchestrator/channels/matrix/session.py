"""Speak with the homeserver through one client: fetch events, without gaps, and files; and send.

Its methods return plain values and raise the errors of channels, so that their callers need not know the
answers of matrix-nio.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiofiles
import nio
import structlog
from nio.api import RelationshipType
from nio.crypto.async_attachments import async_encrypt_attachment
from nio.crypto.attachments import decrypt_attachment

from orchestrator.channels.connection import LoggedOut
from orchestrator.channels.matrix import events, screening
from orchestrator.channels.matrix.events import MatrixFile
from orchestrator.channels.matrix.login import UNREACHABLE, MatrixLogin, make_client, pause_of
from orchestrator.domain.errors import (
    LONGEST_PAUSE_SECONDS,
    ChannelDown,
    ChannelError,
    ChannelRefused,
    OutcomeUnknown,
    lengthened_pause,
)
from orchestrator.domain.values import Attachment

log = structlog.get_logger(__name__)

POLL_MS = 30_000
"""Milliseconds that the homeserver holds a sync request while nothing is new."""
PAGE_EVENTS = 100
MAX_GAP_EVENTS = 5_000
"""Messages of a room that are fetched after a long interruption; older ones are left out."""
TYPING_MS = 20_000
CALL_SECONDS = 20.0
LONGEST_SECONDS = 300.0
CHUNK_BYTES = 64 * 1024
FILTER = {
    "presence": {"types": []},
    "account_data": {"types": []},
    "room": {
        "timeline": {"limit": PAGE_EVENTS},
        "ephemeral": {"types": ["m.typing"]},
        "account_data": {"types": []},
    },
}
MAX_SEARCHED_EVENTS = 1_000
"""Andy's own messages of a room that are searched for one that may have arrived."""
MAX_CLOCK_DIFFERENCE_MS = 24 * 3_600_000
"""Milliseconds that the clocks of the homeserver and of this host may be apart."""
MAX_VERIFICATIONS = 20
VERIFICATION_END = "m.key.verification.cancel"
DECLINED = {"code": "m.user", "reason": "Andy is a program and compares no keys: he answers without that."}
UPLOAD_SECONDS, UPLOAD_BYTES_PER_SECOND = 60.0, 100_000
_ROOM_REFUSALS = frozenset({"M_FORBIDDEN", "M_NOT_FOUND", "M_UNKNOWN_ROOM"})
"""Error codes of a room that accepts nothing from Andy."""
_MESSAGE_REFUSALS = frozenset(
    {"M_TOO_LARGE", "M_BAD_JSON", "M_NOT_JSON", "M_INVALID_PARAM", "M_MISSING_PARAM"}
)
"""Error codes for one message in a room that accepts others."""
_PASSING_STATUSES = frozenset({401, 404, 405, 407, 408, 421, 425, 429})
"""HTTP statuses of a proxy before the homeserver that concern the connection, not the message."""
_LOGGED_OUT = frozenset({"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED"})


T = TypeVar("T")


class _ForeignRefusal(ChannelDown):
    """A proxy before the homeserver refuses a request, with an answer that is not Matrix's."""

    def __init__(self, status: int) -> None:
        """`status` is the HTTP status of the answer; the advice for the owner depends on it."""
        super().__init__(f"A server before the homeserver refuses it (HTTP {status}).")
        self.advice = _FOREIGN_ADVICE.get(status, _FOREIGN_ADVICE[0]).format(status=status)


_FOREIGN_ADVICE = {
    0: "a server before the homeserver refuses it (HTTP {status}). Whoever runs that server can look up why.",
    403: "a server before the homeserver refuses it (HTTP 403), as filters of web requests do for some words"
    " or files. Whoever runs that server can let it through.",
    413: "it is too large for a server before the homeserver (HTTP 413). Whoever runs that server can raise"
    " its limit, nginx by client_max_body_size; or ask me for something smaller.",
}


class UploadTooSlow(ChannelDown):
    """A file did not reach the homeserver in time, although the connection works."""

    def __init__(self, name: str, *, size: int, seconds: float) -> None:
        """Set the text of the error, and the advice for the person who asked for the file.

        `name` and `size` (in bytes) are those of the file. `seconds` is the time after which the upload was
        given up.
        """
        super().__init__(f"{name} did not get to the homeserver in {seconds:.0f} s.")
        self.advice = (
            f"{name} has {size / 1e6:.1f} MB, and the line to the homeserver is too slow for it: ask me for a"
            " smaller file."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomEvents:
    """The events of a room since the last sync, oldest first."""

    room_id: str
    events: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncChanges:
    """The changes since the last sync, and the position in the stream after them."""

    position: str
    rooms: list[RoomEvents]
    invited_by: dict[str, str]
    """Each room that Andy was invited to since the last sync, with the inviting account."""
    left: frozenset[str]
    """The rooms that Andy is no longer in or invited to."""
    typed_in: list[str]
    """The rooms in which somebody else started to type, or stopped while another goes on."""


class MatrixSession:
    """A connection to the homeserver with one login.

    One task calls `sync`; other methods may be called from other tasks at any time.
    """

    def __init__(self, client: nio.AsyncClient, login: MatrixLogin) -> None:
        """`client` is the library's client with `login`; nothing connects before the first `sync`."""
        self._client = client
        self._login = login
        self.homeserver = login.homeserver
        self.account = f"{login.user_id} {login.device_id}"
        """The account and device: a homeserver recognises a repeated transaction only from the same device.
        """
        self._has_synced = False
        """Whether this session has had its first sync, which differs from later ones."""
        self._send_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """A lock per room: nio shares the keys of an encrypted one in several steps, which must not overlap.
        """
        self._silent_until = 0.0
        """Until when the homeserver wants no requests, in the loop's time."""

    @classmethod
    @asynccontextmanager
    async def open(cls, home: Path, login: MatrixLogin) -> AsyncGenerator[MatrixSession]:
        """Yield a session with a client for `login`, and close the client at the end.

        The connection is made by the first `sync`. `home` has the keys of encrypted rooms.
        """
        client = make_client(home, login)
        try:
            yield cls(client, login)
        finally:
            await client.close()

    async def sync(self, since: str | None) -> SyncChanges:
        """Return the changes after the position `since` in the stream of events; wait if there are none yet.

        With None for `since`, past events are left out. The first call of a session does not wait. The keys
        of encrypted rooms are exchanged too. Requests to compare keys are declined, if they are among the
        first `MAX_VERIFICATIONS` events from other devices.

        Raises:
            ChannelDown: the homeserver cannot be reached.
            LoggedOut: the login has ended.
        """
        answer = await self._request_patiently(
            lambda: self._client.sync(
                timeout=POLL_MS if self._has_synced else 0,
                sync_filter=FILTER,
                since=since,
                # The first sync of a session asks for the names and members of all rooms, because the library
                # does not store them when the host ends. Later syncs leave this out (None).
                full_state=not self._has_synced or None,
            )
        )
        self._has_synced = True
        rooms = [
            RoomEvents(room_id=room_id, events=await self._new_events(room_id, room_info, since))
            for room_id, room_info in answer.rooms.join.items()
            if since is not None
        ]
        await self._exchange_keys()
        for event in answer.to_device_events[:MAX_VERIFICATIONS]:
            await self._decline_device_verification(_json_of(event))
        return SyncChanges(
            position=answer.next_batch,
            rooms=[room for room in rooms if room.events],
            invited_by={
                room_id: self._inviter(invitation) for room_id, invitation in answer.rooms.invite.items()
            },
            left=frozenset(answer.rooms.leave),
            typed_in=[
                room_id
                for room_id, room_info in answer.rooms.join.items()
                if self._is_somebody_typing(room_info)
            ],
        )

    async def _new_events(self, room_id: str, room_info: Any, since: str | None) -> list[dict[str, Any]]:
        """Return the events of a room since the last sync, oldest first.

        If there are too many for one answer, the homeserver leaves out the older ones; these are fetched.
        Events from before Andy joined the room are not returned.

        Args:
            room_id: the id of the room.
            room_info: the part of the homeserver's answer about the room.
            since: the position of the last sync in the stream of events.
        """
        received = [_json_of(event) for event in room_info.timeline.events]
        join_indexes = [
            index for index, event in enumerate(received) if events.is_join_of(event, self._login.user_id)
        ]
        if join_indexes:
            # Messages from before Andy joined are not for him.
            return received[join_indexes[-1] + 1 :]
        if room_info.timeline.limited and room_info.timeline.prev_batch and since:
            missed = await self._missed_events(room_id, start=room_info.timeline.prev_batch, end=since)
            known_ids = {event.get("event_id") for event in received}
            received = [event for event in missed if event.get("event_id") not in known_ids] + received
        return received

    async def _missed_events(self, room_id: str, *, start: str, end: str) -> list[dict[str, Any]]:
        """Fetch the events of a room from the position `start` back to the earlier position `end`.

        Return them oldest first. If there are more than `MAX_GAP_EVENTS`, the oldest are left out.
        """
        missed: list[dict[str, Any]] = []
        fetched = 0
        while fetched < MAX_GAP_EVENTS:
            answer = await self._request_patiently(
                partial(
                    self._client.room_messages,
                    room_id,
                    start,
                    end=end,
                    direction=nio.MessageDirection.back,
                    limit=PAGE_EVENTS,
                )
            )
            missed += [_json_of(self._decrypted(event)) for event in answer.chunk]
            # After the last page there is no further position, or the same again.
            if not answer.end or answer.end == start:
                break
            start = answer.end
            # A page may be empty although more follow: it counts as one event, so that this ends.
            fetched += max(1, len(answer.chunk))
        log.info("matrix.caught_up", room=room_id, events=len(missed))
        return missed[::-1]

    def _decrypted(self, event: Any) -> Any:
        """Return an event decrypted; unchanged if it is not encrypted or cannot be decrypted."""
        if not isinstance(event, nio.MegolmEvent) or self._client.olm is None:
            return event
        try:
            return self._client.decrypt_event(event)
        except nio.exceptions.EncryptionError:
            return event

    def _inviter(self, invitation: Any) -> str:
        """Return the account that invited Andy to a room; empty when the `invitation` does not name it."""
        return next(
            (
                event.sender
                for event in invitation.invite_state
                if isinstance(event, nio.InviteMemberEvent)
                and event.state_key == self._login.user_id
                and event.membership == "invite"
            ),
            "",
        )

    def _is_somebody_typing(self, room_info: Any) -> bool:
        """Return whether anybody but Andy is typing in a room, by the typing notices in `room_info`.

        `room_info` is the part of the homeserver's answer about the room.
        """
        notices = [event for event in room_info.ephemeral if isinstance(event, nio.TypingNoticeEvent)]
        # The homeserver reports Andy's own typing sign to him, too.
        return any(user != self._login.user_id for notice in notices for user in notice.users)

    async def _exchange_keys(self) -> None:
        """Exchange the keys that encrypted rooms need, as the library requests it between two syncs.

        A message to a device for which the homeserver asks for a pause is sent at a later exchange. Raises
        `ChannelDown`, `LoggedOut`, `ChannelRefused`.
        """
        client = self._client
        if client.olm is None:
            return  # encryption is not installed
        if client.should_upload_keys:
            await self._request_patiently(client.keys_upload)
        if client.should_query_keys:
            await self._request_patiently(client.keys_query)
        if client.should_claim_keys:
            await self._request_patiently(lambda: client.keys_claim(client.get_users_for_key_claiming()))
        for answer in await self._request(client.send_to_device_messages()):
            try:
                _raise_for_error(answer)
            except ChannelDown as error:
                # The library keeps the message for the next exchange.
                if not error.pause_seconds:
                    raise
                log.warning("matrix.device_message_waits", reason=str(error))

    async def _request(self, call: Any, *, seconds: float = LONGEST_SECONDS) -> Any:
        """Await a `call` of the library, and return the homeserver's answer if it is no error.

        Raises:
            ChannelDown: there was no answer within `seconds`, or the request may work later.
            ChannelRefused: the homeserver will never accept the request.
            LoggedOut: the login has ended.
        """
        try:
            # The library itself would wait without end for a first sync, an upload and a download. The
            # `TimeoutError` is one of `UNREACHABLE`.
            async with asyncio.timeout(seconds):
                return _raise_for_error(await call)
        except UNREACHABLE as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise ChannelDown(f"{self._login.homeserver} cannot be reached: {reason}.") from error
        except nio.exceptions.ProtocolError as error:
            raise ChannelDown(f"The Matrix library cannot do this now: {error}.") from error
        except ChannelError:
            raise  # of `_raise_for_error`
        except Exception as error:
            log.exception("matrix.library_broke")
            raise ChannelDown(f"The Matrix library broke ({type(error).__name__}).") from error

    async def _request_for_message(self, call: Any, *, seconds: float = LONGEST_SECONDS) -> Any:
        """Return the answer to a request with a message or a file, as `_request` does.

        A refusal that is not Matrix's comes from a proxy before the homeserver. If the homeserver answers
        another request, the proxy refuses only this message: `ChannelRefused`. Otherwise the way to the
        homeserver is broken: `ChannelDown`.
        """
        try:
            return await self._request(call, seconds=seconds)
        except _ForeignRefusal as refusal:
            try:
                await self._request(self._client.whoami())
            except ChannelError:
                raise ChannelDown(str(refusal)) from refusal
            # Only this message is refused: the room takes others.
            raise ChannelRefused(refusal.advice, is_chat_fine=True) from refusal

    async def _request_patiently(self, make_request: Callable[[], Awaitable[Any]]) -> Any:
        """Return the answer to a request, repeated after each pause that the homeserver asks for.

        `make_request` starts the request again for each attempt. Raises `ChannelDown`, `LoggedOut`,
        `ChannelRefused`.
        """
        # Messages to send wait in the outbox instead. These requests would start over, or be lost, if given
        # up: a long gap is fetched from its start, and the homeserver reports an invitation once.
        return await retry_after_pauses(lambda: self._request(make_request()))

    # Rooms

    def room_name(self, room_id: str) -> str | None:
        """Return the name of a room for people; None for an unknown room."""
        room = self._client.rooms.get(room_id)
        return str(room.display_name) if room is not None else None

    def is_group(self, room_id: str) -> bool:
        """Return whether a room has more than two members, or a name."""
        room = self._client.rooms.get(room_id)
        return room is not None and (room.member_count > 2 or bool(room.name))

    def count_members(self, room_id: str) -> int | None:
        """Return the number of members of a room; None for an unknown room."""
        room = self._client.rooms.get(room_id)
        return int(room.member_count) if room is not None else None

    def is_readable(self, room_id: str) -> bool:
        """Return whether messages of a room can be read here.

        That is so if the room is not encrypted or not known, or if the library can decrypt.
        """
        room = self._client.rooms.get(room_id)
        return self._client.olm is not None or room is None or not room.encrypted

    def member_name(self, room_id: str, user_id: str) -> str:
        """Return a member's name in a room; without one, the local part of the account `@local:server`."""
        room = self._client.rooms.get(room_id)
        name = room.user_name(user_id) if room is not None else None
        return str(name or user_id.removeprefix("@").partition(":")[0])

    async def join(self, room_id: str) -> None:
        """Join a room to which Andy was invited. Raises `ChannelDown`, `LoggedOut`, `ChannelRefused`."""
        await self._request_patiently(lambda: self._client.join(room_id))

    async def leave(self, room_id: str) -> None:
        """Leave a room, or reject the invitation to it. Raises `ChannelError`."""
        await self._request_patiently(lambda: self._client.room_leave(room_id))

    async def event(self, room_id: str, event_id: str) -> dict[str, Any] | None:
        """Return one event of a room, or None if it cannot be fetched."""
        try:
            answer = await self._request(self._client.room_get_event(room_id, event_id))
        except ChannelError:
            return None
        return _json_of(self._decrypted(answer.event))

    async def mark_read(self, room_id: str, event_id: str) -> None:
        """Mark the messages of a room up to an event as read. Raises `ChannelError`."""
        await self._request(self._client.room_read_markers(room_id, event_id, event_id))

    async def set_typing(self, room_id: str, *, is_typing: bool) -> None:
        """Show or hide the typing sign in a room; the homeserver hides it after `TYPING_MS`.

        Raises `ChannelError`.
        """
        await self._request(self._client.room_typing(room_id, typing_state=is_typing, timeout=TYPING_MS))

    # Sending

    async def send(self, room_id: str, kind: str, body: dict[str, Any], *, transaction: str) -> str:
        """Send an event of the type `kind` with the content `body` to a room, and return its id.

        `transaction` is the same for each attempt to send the event: the homeserver then shows it once, and
        returns the same id.

        Raises:
            ChannelDown, LoggedOut: it may work later; during a pause that the homeserver has asked for,
                nothing is sent.
            ChannelRefused: Andy is not in the room, or the homeserver will never take the event.
        """
        if room_id not in self._client.rooms:
            raise ChannelRefused("Andy is not in this room: invite him again.")
        loop = asyncio.get_running_loop()
        async with self._send_locks[room_id]:
            # A requested pause covers all rooms: until its end, the homeserver refuses any message.
            if (remaining_seconds := self._silent_until - loop.time()) > 0:
                raise ChannelDown("The homeserver asked for a pause.", pause_seconds=remaining_seconds)
            try:
                # Nobody compares keys here, so no device of the others is ever verified.
                answer = await self._request_for_message(
                    self._client.room_send(
                        room_id, kind, body, tx_id=transaction, ignore_unverified_devices=True
                    )
                )
            except ChannelDown as error:
                if error.pause_seconds:
                    # Another room's answer may have asked for a longer pause meanwhile.
                    self._silent_until = max(self._silent_until, loop.time() + error.pause_seconds)
                raise
            finally:
                # nio leaves this state behind when it cannot claim keys, and each later send would wait for
                # it.
                if (sharing := self._client.sharing_session.pop(room_id, None)) is not None:
                    sharing.set()
        return str(answer.event_id)

    async def find_own(self, room_id: str, message_id: str, *, since_ms: int) -> str | None:
        """Search a room for the event of a message that may have been sent since `since_ms`.

        Return the event's id; None if the message is not in the room. `message_id` is the host's id of the
        message, which its content has.

        Raises:
            ChannelDown, LoggedOut: the homeserver cannot be asked now.
            ChannelRefused: it refuses to show the room's messages.
            OutcomeUnknown: the room has too many messages to search, or an own one since then was redacted.
                That has lost its id, and may have been this message.
        """
        page_start = None
        searched = 0
        may_be_there = False
        # From the newest event back, page by page.
        while searched < MAX_SEARCHED_EVENTS:
            answer = await self._request(
                self._client.room_messages(
                    room_id,
                    page_start,
                    direction=nio.MessageDirection.back,
                    limit=PAGE_EVENTS,
                    message_filter={
                        "senders": [self._login.user_id],
                        "types": [events.MESSAGE, events.POLL_START, events.ENCRYPTED],
                    },
                )
            )
            page = [_json_of(event) for event in answer.chunk]
            matches = [
                events.match_own_message(event, message_id, since_ms=since_ms - MAX_CLOCK_DIFFERENCE_MS)
                for event in page
            ]
            if "yes" in matches:
                return str(page[matches.index("yes")]["event_id"])
            may_be_there |= "perhaps" in matches
            is_at_end = "too_old" in matches or not answer.end or answer.end == page_start
            if is_at_end and not may_be_there:
                return None
            if is_at_end:
                break
            page_start = answer.end
            # A page may be empty although more follow: it counts as one event, so that the search ends.
            searched += max(1, len(page))
        raise OutcomeUnknown

    async def decline_verification(self, room_id: str, event_id: str) -> None:
        """Refuse a comparison of keys that was requested by the event `event_id` of a room.

        Without an answer the other side would wait. An error is only logged.
        """
        relation = {"m.relates_to": {"rel_type": "m.reference", "event_id": event_id}}
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self.send(
                    room_id, VERIFICATION_END, {**DECLINED, **relation}, transaction=f"verify{event_id}"
                )
        except (ChannelError, TimeoutError) as error:
            log.warning("matrix.verification", room=room_id, reason=str(error) or type(error).__name__)

    async def _decline_device_verification(self, request: dict[str, Any]) -> None:
        """Refuse a comparison of keys that another device requested directly from this one.

        Any other event, or an incomplete `request`, is ignored. An error is only logged.
        """
        content = request.get("content")
        if request.get("type") != "m.key.verification.request" or not isinstance(content, dict):
            return
        sender, device, transaction = (
            request.get("sender"), content.get("from_device"), content.get("transaction_id")
        )  # fmt: skip
        if not all(isinstance(field, str) and field for field in (sender, device, transaction)):
            return
        message = nio.ToDeviceMessage(
            VERIFICATION_END, sender, device, {**DECLINED, "transaction_id": transaction}
        )
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self._request(self._client.to_device(message))
        except (ChannelError, TimeoutError) as error:
            log.warning("matrix.verification", by=sender, reason=str(error) or type(error).__name__)

    async def redact(self, room_id: str, event_id: str) -> None:
        """Redact an event, which deletes its content for everybody. Raises `ChannelError`."""
        await self._request(self._client.room_redact(room_id, event_id, tx_id=secrets.token_hex(10)))

    async def max_file_bytes(self) -> int | None:
        """Return the bytes of the largest file that the homeserver accepts.

        None if the homeserver does not report them, answers with an error, or does not answer in time.
        """
        try:
            async with asyncio.timeout(CALL_SECONDS):
                answer = await self._request(self._client.content_repository_config())
        except (ChannelError, TimeoutError):
            return None
        return answer.upload_size or None

    async def upload(self, room_id: str, file: Attachment) -> dict[str, Any]:
        """Upload a file for a room, encrypted if the room is; return the arguments of `content.file_content`.

        The caption among them is empty.

        Raises:
            ChannelDown, LoggedOut: the upload may work later.
            ChannelRefused: the homeserver will never take the file.
            UploadTooSlow: it did not arrive in time, though the homeserver answers.
        """
        room = self._client.rooms.get(room_id)
        is_encrypted = bool(room and room.encrypted and self._client.olm)
        size = (await asyncio.to_thread(file.path.stat)).st_size

        async def upload_file() -> Any:
            """Upload the file, encrypted for an encrypted room, and return the answer with the keys."""
            keys: dict[str, Any] = {}  # `_encrypted` puts them in while the file is sent
            # The library is passed an open file, not the path: it would leave its own file open if the
            # homeserver answers before the last read.
            async with aiofiles.open(file.path, "rb") as open_file:
                # Of an encrypted file, the library is passed a function that returns the pieces to send.
                answer, _ = await self._client.upload(
                    (lambda *_: _encrypted(open_file, keys)) if is_encrypted else open_file,
                    content_type="application/octet-stream" if is_encrypted else file.mime,
                    filename=None if is_encrypted else file.name,
                    filesize=size,
                )
            return _Uploaded(answer, keys)

        seconds = UPLOAD_SECONDS + size / UPLOAD_BYTES_PER_SECOND
        try:
            async with asyncio.timeout(seconds):
                # With twice the limit, so that the one above always ends first, which raises `TimeoutError`.
                result = await self._request_for_message(upload_file(), seconds=2 * seconds)
        except TimeoutError as error:
            # If the homeserver does not answer this either, it is unreachable, and the file not too large.
            await self._request(self._client.whoami(), seconds=CALL_SECONDS)
            raise UploadTooSlow(file.name, size=size, seconds=seconds) from error
        uri = result.answer.content_uri
        source = {"file": {**result.keys, "url": uri}} if result.keys else {"url": uri}
        return {"caption": "", "name": file.name, "mime": file.mime, "size": size, "source": source}

    async def own_reaction(self, room_id: str, event_id: str, user_id: str) -> str | None:
        """Return the id of the newest reaction of an account to an event; None if there is none.

        None also if the homeserver does not know the event: the request that follows, such as one for a new
        reaction, then fails with the reason.

        Raises:
            ChannelDown: the homeserver cannot be reached, or the request may work later.
            ChannelRefused: the homeserver will never accept the request.
            LoggedOut: the login has ended.
        """
        try:
            # The homeserver returns the newest reactions first.
            async for reaction in self._client.room_get_event_relations(
                room_id, event_id, RelationshipType.annotation, events.REACTION
            ):
                if reaction.sender == user_id and not isinstance(reaction, nio.RedactedEvent):
                    return str(reaction.event_id)
        except AttributeError as error:
            # The library (0.26) raises it for each answer that is an error: it asks that for the next page.
            refusal = error.obj
            if not isinstance(refusal, nio.ErrorResponse):
                raise
            # A homeserver without this part of the specification may still take the reaction that follows.
            if refusal.status_code == "M_UNRECOGNIZED":
                return None
            # Synapse has no code of its own for an unknown event. Without any code, it is a proxy's answer.
            http_status = refusal.transport_response.status if refusal.transport_response is not None else 0
            if not (http_status == 404 and refusal.status_code):
                _raise_for_error(refusal)
            return None
        except UNREACHABLE as error:
            raise ChannelDown(
                f"{self._login.homeserver} cannot be reached: {type(error).__name__}."
            ) from error
        return None

    # Files

    async def download(self, file: MatrixFile, target: Path, *, limit_bytes: int, seconds: float) -> None:
        """Fetch a file, decrypt it if needed, and write it to `target`, which must not exist.

        `seconds` is the limit for fetching, including the pauses that the homeserver asks for.

        Raises:
            ChannelDown: the homeserver cannot be reached, or asks for longer pauses.
            ChannelRefused: it does not have the file, or the file is larger than `limit_bytes` or cannot be
                decrypted.
            OSError: `target` exists, or cannot be written.
        """
        try:
            async with asyncio.timeout(seconds):
                content = await retry_after_pauses(lambda: self._download(file, limit_bytes=limit_bytes))
        except UNREACHABLE as error:
            raise ChannelDown(f"The file could not be fetched ({type(error).__name__}).") from error
        await asyncio.to_thread(_write_new, target, _decrypted_file(content, file.key))

    async def _download(self, file: MatrixFile, *, limit_bytes: int) -> bytes:
        """Return the bytes of a file as they are stored at the homeserver, where it may be encrypted.

        Raises:
            ChannelDown: the homeserver asks for a pause.
            ChannelRefused: it does not have the file, or the file is larger than `limit_bytes`.
            One of `UNREACHABLE`: the homeserver cannot be reached.
        """
        path = f"/_matrix/client/v1/media/download/{file.uri.removeprefix('mxc://')}"
        headers = {"Authorization": f"Bearer {self._login.token}"}
        response = await self._client.send("GET", path, headers=headers)
        async with response:
            if response.status == 429:
                # Of all refusals only this one ends by itself.
                _raise_for_error(_refusal(response, await response.content.read(CHUNK_BYTES)))
            if response.status != 200:
                raise ChannelRefused(f"The homeserver does not give the file (HTTP {response.status}).")
            body = bytearray()
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                body += chunk
                if len(body) > limit_bytes:
                    raise ChannelRefused(f"The file has more than {limit_bytes} bytes.")
        return bytes(body)


@dataclass(frozen=True, slots=True)
class _Uploaded:
    """The homeserver's answer to an upload, and the keys of the file."""

    answer: Any
    keys: dict[str, Any]
    """The keys by which a receiver decrypts the file; empty if it is not encrypted."""


async def _encrypted(open_file: Any, keys: dict[str, Any]) -> AsyncGenerator[bytes]:
    """Yield the pieces of an open file encrypted, and put the keys that decrypt it into `keys`.

    An empty file is one empty piece.
    """
    last_piece = b""
    # The library yields the keys, a dictionary, after the last piece of the file. If the homeserver answers
    # right after that piece, nothing more is read. So the piece is held back until the keys are known.
    async for piece in async_encrypt_attachment(open_file):
        if isinstance(piece, dict):
            keys.update(piece)
        else:
            if last_piece:
                yield last_piece
            last_piece = piece
    yield last_piece


def _raise_for_error(response: Any) -> Any:
    """Return the homeserver's answer if it is no error; else raise the error that it means.

    Raises:
        LoggedOut: the login has ended.
        ChannelRefused: the room, or this message, will never be accepted.
        ChannelDown: it may work later, after `pause_seconds` if the homeserver asks for a pause. It is a
            `_ForeignRefusal` if not the homeserver but a proxy before it refuses.
    """
    error = response.answer if isinstance(response, _Uploaded) else response
    if not isinstance(error, nio.ErrorResponse):
        return response
    code = str(error.status_code or "")
    text = f"{error.message or code or 'the homeserver did not say why'}"[:200]
    if code in _LOGGED_OUT:
        raise LoggedOut(text)
    if code in _ROOM_REFUSALS or code in _MESSAGE_REFUSALS:
        raise ChannelRefused(f"The homeserver refuses: {text}.", is_chat_fine=code in _MESSAGE_REFUSALS)
    if pause := pause_of(error):
        raise ChannelDown(f"The homeserver asks to wait {pause:.1f} s.", pause_seconds=pause)
    status = error.transport_response.status if error.transport_response is not None else 0
    # The homeserver's own errors have a code: without one, the answer is that of a proxy before it. Some
    # statuses of a proxy concern the connection, not this message, which may work later then.
    if not code and 400 <= status < 500 and status not in _PASSING_STATUSES:
        raise _ForeignRefusal(status)
    raise ChannelDown(f"The homeserver has trouble of its own: {text}.")


def _refusal(response: Any, body: bytes) -> nio.ErrorResponse:
    """Return the error in an answer with status 429 that the library has not parsed.

    `body` is the answer's content. If that is no JSON, the error only says that there were too many requests.
    """
    try:
        error = nio.ErrorResponse.from_dict(json.loads(body))
    except (RecursionError, ValueError):
        error = nio.ErrorResponse("too many requests")
    error.transport_response = response
    return error


async def retry_after_pauses(
    request: Callable[[], Awaitable[T]], *, longest_seconds: float = LONGEST_PAUSE_SECONDS
) -> T:
    """Return the result of `request`, called again after each pause that the homeserver asks for.

    The waits grow if it asks again and again. An error that asks for no pause, or for more than
    `longest_seconds`, is raised.
    """
    pauses = 0
    while True:
        try:
            return await request()
        except ChannelDown as error:
            if not 0 < error.pause_seconds <= longest_seconds:
                raise
            pauses += 1
            seconds = lengthened_pause(error.pause_seconds, pauses=pauses)
            log.info("matrix.waits", pause_seconds=seconds)
            await asyncio.sleep(seconds)


def _json_of(event: Any) -> dict[str, Any]:
    """Return the JSON from which the library made an event; empty if it has none."""
    source = event.source
    return screening.original_event(source) if isinstance(source, dict) else {}


def _decrypted_file(body: bytes, key: dict[str, Any] | None) -> bytes:
    """Return the content of a file, decrypted with `key`; unchanged if that is None: it is not encrypted.

    Raises `ChannelRefused` when it cannot be decrypted.
    """
    if key is None:
        return body
    try:
        plain: bytes = decrypt_attachment(body, key["key"]["k"], key["hashes"]["sha256"], key["iv"])
    except Exception as error:
        raise ChannelRefused("The file could not be decrypted.") from error
    return plain


def _write_new(target: Path, body: bytes) -> None:
    """Write `body` to the file `target`, which must not exist yet; its folder is made if needed. Blocks.

    Raises `OSError`, for an existing file as well.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with target.open("xb") as file:
        file.write(body)
