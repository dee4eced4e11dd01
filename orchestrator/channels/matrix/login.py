"""Log in to a homeserver once by password, and store the token in a file that only the owner can read."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import nio
import structlog
from pydantic import BaseModel, ConfigDict, ValidationError

from agent_runner.wire.files import write_whole
from orchestrator.channels.matrix.content import MESSAGE_ID_KEY
from orchestrator.channels.matrix.description import FOLDER, LOGIN
from orchestrator.channels.matrix.screening import parse_hostile_json, with_parsable_events
from orchestrator.channels.server_address import checked_address
from orchestrator.domain.errors import (
    LEAST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    BadRequest,
    ChannelDown,
    ChannelRefused,
)

log = structlog.get_logger(__name__)

DEVICE = "Andy"
CRYPTO = f"{FOLDER}/crypto"
UNREACHABLE = (aiohttp.ClientError, TimeoutError, OSError)
REQUEST_SECONDS = 60.0
UNNAMED_PAUSE_SECONDS = 5.0
_ACCOUNT = re.compile(r"@[^\s:@]{1,200}:[^\s@]{1,200}")


class MatrixLogin(BaseModel):
    """A login at a homeserver: the account, and the token that replaces its password."""

    model_config = ConfigDict(frozen=True)

    homeserver: str
    user_id: str
    device_id: str
    token: str
    owner: str
    """The account whose invitations are accepted."""


def read_login(home: Path) -> MatrixLogin | None:
    """Return the stored Matrix login of a home, or None if nobody is logged in. Blocks.

    Raises:
        ChannelDown: the file with the login is there and cannot be read.
    """
    path = home / LOGIN
    try:
        return MatrixLogin.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ChannelDown(f"The Matrix login {path} cannot be read: 'andy channels add matrix'.") from error


class _Client(nio.AsyncClient):  # type: ignore[misc]  # the library is not typed everywhere
    """The library's client, hardened against broken events; its encrypted events contain their message id."""

    is_closed = False
    client_session: aiohttp.ClientSession | None

    async def close(self) -> None:
        """Close the connections permanently: the library would open new ones for a later request."""
        session: aiohttp.ClientSession | None = self.client_session
        self.is_closed = True
        await super().close()
        # The library has set this to None, and would open a new session for None. The closed one prevents it.
        self.client_session = session

    async def send(self, *arguments: Any, **options: Any) -> Any:
        """Send a request with the arguments of the library's own `send`, and return the answer.

        Raises `aiohttp.ClientError` when the client is closed or the homeserver cannot be reached.
        """
        if self.is_closed:
            raise aiohttp.ClientConnectionError("The session is over.")
        return await super().send(*arguments, **options)

    async def parse_body(self, transport_response: Any) -> dict[Any, Any]:
        """Return the JSON of an answer without the parts that the library cannot parse; empty for no JSON."""
        try:
            answer = await super().parse_body(transport_response)
        except (RecursionError, ValueError):
            # If the answer failed as a whole, it would come again with each sync, and hold up all rooms.
            answer = parse_hostile_json(await transport_response.read())
        return with_parsable_events(answer)

    def _handle_decrypt_to_device(self, to_device_event: nio.ToDeviceEvent) -> nio.ToDeviceEvent | None:
        """Decrypt an event from another device; return None for one that the library cannot read."""
        try:
            return super()._handle_decrypt_to_device(to_device_event)
        except Exception as error:  # noqa: BLE001 - of the library; a device wrote it
            log.warning("matrix.device_event_not_read", reason=repr(error)[:200])
            return None

    def guard_decryption(self) -> None:
        """Make the library keep an event as undecrypted if reading it after decryption raises any error.

        The library does so for its own `EncryptionError` alone. The sender of an event can write anything
        into it, and any other error would break the whole answer of the homeserver.
        """
        if self.olm is None:
            return  # encryption is not installed
        self.olm.decrypt_megolm_event = _with_encryption_errors(self.olm.decrypt_megolm_event)

    def encrypt(self, room_id: str, message_type: str, content: dict[Any, Any]) -> tuple[str, dict[str, str]]:
        """Return the type and the content of a message encrypted for its room.

        The host's id of the message is left readable in the content: a later login has other keys, and has to
        recognise the message by it.
        """
        kind, encrypted = super().encrypt(room_id, message_type, content)
        if MESSAGE_ID_KEY in content:
            encrypted[MESSAGE_ID_KEY] = content[MESSAGE_ID_KEY]
        return kind, encrypted


def _with_encryption_errors(decrypt: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls `decrypt`, and raises any error of it as an `EncryptionError`.

    The library handles that error alone: it keeps the event as one that cannot be decrypted.
    """

    def guarded(*arguments: Any, **options: Any) -> Any:
        """Decrypt an event of a room; raise `EncryptionError` for any error, as the library expects."""
        try:
            return decrypt(*arguments, **options)
        except nio.exceptions.EncryptionError:
            raise
        except Exception as error:
            raise nio.exceptions.EncryptionError(f"It cannot be read ({type(error).__name__}).") from error

    return guarded


def make_client(home: Path, login: MatrixLogin) -> nio.AsyncClient:
    """Return a client with this login, after loading the keys of encrypted rooms from the home. Blocks."""
    store = home / CRYPTO
    store.mkdir(mode=0o700, parents=True, exist_ok=True)
    client = _client(login.homeserver, login.user_id, store=str(store), device_id=login.device_id)
    client.restore_login(login.user_id, login.device_id, login.token)
    # Otherwise one malformed event of an encrypted room would break the whole answer of the homeserver.
    client.guard_decryption()
    return client


def _client(homeserver: str, user: str, *, store: str = "", device_id: str = "") -> _Client:
    """Return the library's client for an account, with timeouts but no retries of its own.

    `store` is the folder for the keys of encrypted rooms; if it is empty, the client does not encrypt.
    `device_id` is the id of an existing login; empty for a client that logs in.
    """
    # No retry of the library's own: the channel has to know that it is down, and waits longer each time. No
    # pause of its own either: it would delay a send until the delivery considers the channel dead.
    config = nio.AsyncClientConfig(
        max_timeouts=0,
        max_limit_exceeded=0,
        request_timeout=REQUEST_SECONDS,
        store_sync_tokens=False,
        encryption_enabled=nio.crypto.ENCRYPTION_ENABLED and bool(store),
    )
    return _Client(homeserver, user, device_id=device_id or None, store_path=store, config=config)


def pause_of(error: nio.ErrorResponse) -> float:
    """Return the pause in seconds that a homeserver asks for in an error; 0 if it asks for none.

    It is `UNNAMED_PAUSE_SECONDS` if the error does not say how long, and is brought between the shortest and
    the longest pause that the host makes.
    """
    http = error.transport_response
    if error.status_code != "M_LIMIT_EXCEEDED" and (http is None or http.status != 429):
        return 0.0
    # The homeserver gives the pause in the body; a proxy before it gives it in the header, or not at all.
    retry_after = http.headers.get("Retry-After", "") if http is not None else ""
    seconds = UNNAMED_PAUSE_SECONDS
    # For the answer to a message to a device, the library (0.26) puts that message into the field instead of
    # a number. Such an answer counts as one without a length.
    if isinstance(error.retry_after_ms, int) and error.retry_after_ms:
        seconds = min(error.retry_after_ms, int(LONGEST_PAUSE_SECONDS * 1000)) / 1000
    elif retry_after.isascii() and retry_after.isdecimal():
        seconds = float(retry_after[:9])  # cut, because a header may have any number of digits
    return min(max(seconds, LEAST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)


async def log_in(home: Path, answers: Mapping[str, str]) -> str:
    """Log in to a homeserver and store the login in the home; return a sentence about the result.

    `answers` has `homeserver`, `user` (Andy's account), `owner` (the owner's account) and `password`. A login
    that was stored before is replaced, and ended at its homeserver; if it cannot be read, only replaced.

    Raises:
        BadRequest: an answer cannot be used.
        ChannelRefused: the homeserver refuses the login, for example because the password is wrong.
        ChannelDown: it cannot be reached, or asks for a pause; or the login cannot be stored, and then it is
            ended again.
    """
    homeserver = checked_address(answers["homeserver"], credential_kind="password")
    user, owner = answers["user"], answers["owner"]
    for account_name in (user, owner):
        if not _ACCOUNT.fullmatch(account_name):
            raise BadRequest(f"'{account_name}' is no account of Matrix, such as @andy:matrix.org.")
    if user == owner:
        raise BadRequest("Andy needs an account of his own: make a second one, and name yours as the owner.")
    client = _client(homeserver, user)
    try:
        response = await client.login(answers["password"], device_name=DEVICE)
    except UNREACHABLE as error:
        raise ChannelDown(f"{homeserver} cannot be reached ({_reason(error)}).") from error
    finally:
        await client.close()
    if not isinstance(response, nio.LoginResponse):
        if pause := pause_of(response):
            raise ChannelDown(f"{homeserver} has had too many tries: try again in {pause:.0f} s.")
        raise ChannelRefused(f"{homeserver} refuses the login: {response.message or response.status_code}.")
    login = MatrixLogin(
        homeserver=homeserver,
        user_id=response.user_id,
        device_id=response.device_id,
        token=response.access_token,
        owner=owner,
    )
    previous_login, open_session_advice = None, ""
    try:
        previous_login = await asyncio.to_thread(read_login, home)
    except ChannelDown:
        # A broken login is repaired by a new one, so it must not prevent that.
        open_session_advice = (
            f" The login before it cannot be read: end its session '{DEVICE}' at its homeserver."
        )
    try:
        await asyncio.to_thread(_write_login, home, login)
    except OSError as error:
        # Nobody else has the token, so nobody could end the session at the homeserver later.
        await _log_out_at_server(login)
        raise ChannelDown(f"The Matrix login {home / LOGIN} cannot be written ({_reason(error)}).") from error
    if previous_login is not None:
        await _log_out_at_server(previous_login)
    return f"Logged in as {login.user_id}; {owner} may invite it.{open_session_advice}"


def _write_login(home: Path, login: MatrixLogin) -> None:
    """Store a login, then delete the keys of encrypted rooms that belong to other logins. Blocks.

    Raises `OSError` when the login cannot be stored; the previous one and its keys stay then.
    """
    path = home / LOGIN
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, login.model_dump_json(indent=2) + "\n", mode=0o600)
    # The library names the files with keys after account and device. Those of this login are left: a running
    # host may have made them already.
    for keys in (home / CRYPTO).glob("*"):
        if not keys.name.startswith(f"{login.user_id}_{login.device_id}."):
            with suppress(OSError):
                keys.unlink()


async def log_out(home: Path) -> str:
    """End the login at the homeserver and delete it here; return a sentence about the result.

    A homeserver that is unreachable or refuses is no error. A stored login that cannot be read is only
    deleted. Raises `ChannelDown` when it cannot be deleted.
    """
    try:
        login = await asyncio.to_thread(read_login, home)
    except ChannelDown:
        keys_advice = await asyncio.to_thread(_delete_login, home)
        return (
            f"The login cannot be read and is deleted here: end the session '{DEVICE}' at its server."
            + keys_advice
        )
    if login is None:
        return "Nobody was logged in."
    failure = await _log_out_at_server(login)
    keys_advice = await asyncio.to_thread(_delete_login, home)
    if failure is None:
        return f"{login.user_id} is logged out.{keys_advice}"
    return (
        f"The login is deleted here; {login.homeserver} {failure}: end the session '{DEVICE}' there."
        + keys_advice
    )


def _delete_login(home: Path) -> str:
    """Delete the stored login and, if possible, its keys. Blocks.

    Return a sentence, after a blank, about keys that cannot be deleted; empty if none are left. Raises
    `ChannelDown` when the login cannot be deleted.
    """
    try:
        (home / LOGIN).unlink(missing_ok=True)
    except OSError as error:
        raise ChannelDown(f"The Matrix login {home / LOGIN} cannot be deleted ({_reason(error)}).") from error
    shutil.rmtree(home / FOLDER, ignore_errors=True)
    keys = home / CRYPTO
    return (
        f" The keys of its encrypted rooms cannot be deleted: delete {keys} yourself."
        if keys.exists()
        else ""
    )


async def _log_out_at_server(login: MatrixLogin) -> str | None:
    """End a login at its homeserver. Return None if it is ended there, else what the homeserver did instead.

    That is the end of a sentence whose subject is the homeserver: `did not answer`, `refused it (…)`. The
    error `M_UNKNOWN_TOKEN` means that the login was ended before, unless it is a "soft logout", after which
    the session still exists there.
    """
    client = _client(login.homeserver, login.user_id)
    client.access_token = login.token
    try:
        answer = await client.logout()
    except UNREACHABLE:
        return "did not answer"
    finally:
        await client.close()
    if isinstance(answer, nio.LogoutResponse):
        # The library takes an answer that is no JSON, as of a proxy, for an empty one.
        status = answer.transport_response.status if answer.transport_response else 200
        return None if status == 200 else f"answered {status}"
    if answer.status_code == "M_UNKNOWN_TOKEN" and not answer.soft_logout:
        return None
    return f"refused it ({' '.join(str(answer.message).split())[:200]})"


def _reason(error: BaseException) -> str:
    """Return an error's text on one line, or its type's name if it has none."""
    return " ".join(str(error).split())[:200] or type(error).__name__
