"""Hooks: programs that know a secret address post texts to one group: `POST /hooks/SECRET`.

The text is untrusted: its sender is "NAME (hook)", who is no person and has no rights.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from orchestrator.base.clock import Clock
from orchestrator.domain.errors import BadRequest, TextTooLong
from orchestrator.domain.values import HOOK_PREFIX, Group, Inbound, MessageId
from orchestrator.groups.secret_addresses import HOOKS, hashed, hook_wait_ms
from orchestrator.inbound import triggers
from orchestrator.inbound.intake import Intake, Taken
from orchestrator.store.access import secret_addresses as addresses
from orchestrator.store.access.secret_addresses import AddressKind, SecretAddress, UnknownAddress
from orchestrator.store.database import Database, Tx
from orchestrator.store.groups import groups
from orchestrator.web.bodies import BadBody, parse_object, read_body
from orchestrator.web.refusals import OnRefusal, RefusedRequest

MAX_CHARS = 4_000
MAX_BODY_BYTES = 64 * 1024
"""Room for `MAX_CHARS` characters in each type of body: an emoji takes 12 bytes in JSON, or in a form."""
MAX_KEY_CHARS = 200
BODY_SECONDS = 10.0
"""Seconds within which the whole body has to arrive."""
TYPES = ("text/plain", "application/json", "application/x-www-form-urlencoded")
# Control characters except tabs and line ends, and marks that turn the direction of writing.
_UNSEEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([^\s;"]*)')
_UTF8 = frozenset({"utf-8", "utf8"})
_LINE_ENDS = re.compile("\r\n|[\r\u2028\u2029]")


class UnreadableType(BadRequest):
    """Send the text as text/plain, as JSON {"text": …} or as the field "text" of a form, in UTF-8."""

    code = "unsupported_type"
    http_status = 415


class BodyTooSlow(BadRequest):
    """The body did not come in time."""

    code = "body_too_slow"
    http_status = 408


class HookOverused(BadRequest):
    """The hook has brought as much as it may for now."""

    code = "too_many_texts"
    http_status = 429

    def __init__(self, wait_ms: int) -> None:
        super().__init__("This hook has brought as many texts as it may for now: wait as Retry-After says.")
        self.wait_seconds = -(-wait_ms // 1000)  # rounded up


class _HookBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HookService:
    """Takes texts from programs that know the secret of a hook."""

    database: Database
    reader: Database
    intake: Intake
    clock: Clock

    async def check(self, secret: str) -> None:
        """Check that a hook has this secret and may bring a text now.

        Raises:
            UnknownAddress: no hook of a group has this secret.
            HookOverused: the hook has brought as many texts as it may for now.
        """
        async with self.reader.reading() as tx:
            await self._usable_hook(tx, secret, now_ms=self.clock.now_ms())

    async def bring(self, secret: str, text: str, *, key: str | None = None) -> None:
        """Store a program's text as a message of the hook's group, and count it.

        A text that is sent again with the same `key` of the program is counted, but not stored again.

        Raises:
            UnknownAddress, HookOverused, TextEmpty, TextTooLong: nothing was stored.
        """
        text = cleaned(text)
        if len(text) > MAX_CHARS:
            raise TextTooLong(len(text), MAX_CHARS)

        async def take(tx: Tx) -> Taken:
            """Store the text as a message of the hook's group, and return the report of the intake.

            The use of the hook is counted. Raises what `_usable_hook` raises.
            """
            now_ms = self.clock.now_ms()
            # Checked again: the hook may have been revoked, or used up, while the body arrived.
            hook, group = await self._usable_hook(tx, secret, now_ms=now_ms)
            await addresses.note_use(tx, hook.id, now_ms=now_ms)
            return await self.intake.take(tx, message_of(hook, group, text, key=key, now_ms=now_ms))

        self.intake.announce(await self.database.write(take))

    async def _usable_hook(self, tx: Tx, secret: str, *, now_ms: int) -> tuple[SecretAddress, Group]:
        """Return the hook with this secret, and its group.

        Raises:
            UnknownAddress: no hook of a group has this secret.
            HookOverused: the hook has brought as many texts as it may for now.
        """
        hook = await addresses.by_secret(tx, AddressKind.HOOK, hashed(secret))
        group = await groups.by_folder(tx, hook.folder) if hook else None
        # One error for all cases: it does not tell whether a secret was ever valid. Main takes no hook,
        # because what is written there is the owner's word (decision 32).
        if hook is None or group is None or group.is_main:
            raise UnknownAddress(
                AddressKind.HOOK, "There is no such hook: its address was revoked, or is incomplete."
            )
        wait_ms = hook_wait_ms(hook, now_ms)
        if wait_ms:
            raise HookOverused(wait_ms)
        return hook, group


def message_of(
    hook: SecretAddress, group: Group, text: str, *, now_ms: int, key: str | None = None
) -> Inbound:
    """Return the text of a hook as a message of its group's notify chat. Pure, but for a random id.

    With a `key`, the id is derived from it: the same text that is sent again is the same message. The text of
    a hook that asks the agent for something (`is_request`) calls Andy. The text of any other hook gets no
    turn, and is context for the next turn.
    """
    # The id of the hook is hashed too: the same key of another hook marks another message.
    own_id = (
        secrets.token_hex(10) if key is None else hashlib.sha256(f"{hook.id} {key}".encode()).hexdigest()[:20]
    )
    return Inbound(
        chat_jid=group.jid,
        id=MessageId(f"H{own_id}"),
        sender=f"{HOOK_PREFIX}{hook.id}",
        sender_name=f"{hook.name} (hook)",
        text=text,
        sent_ms=now_ms,
        is_call=hook.is_request,
        ignored=None if hook.is_request else triggers.HOOK,
    )


def cleaned(text: str) -> str:
    """Return a text without control characters and direction marks, and without spaces around it. Pure.

    Every line break becomes `\\n`.
    """
    return _UNSEEN.sub("", _LINE_ENDS.sub("\n", text)).strip()


def text_in(body: bytes, content_type: str) -> str:
    """Return the text that a program has sent in the body of a request. Pure.

    Raises:
        UnreadableType: the body has another type, or is not UTF-8.
        BadBody: it has no text, or other fields too.
    """
    # Such as `text/plain; charset=utf-8`. A body without a type counts as plain text; one without a charset
    # counts as UTF-8.
    kind = content_type.partition(";")[0].strip().lower() or TYPES[0]
    charsets = _CHARSET.findall(content_type.lower())
    if kind not in TYPES or not _UTF8.issuperset(charsets):
        raise UnreadableType
    try:
        # Some programs begin a text with a byte order mark, which is no part of it.
        text = body.decode("utf-8-sig")
        fields: dict[str, Any]
        match kind:
            case "application/json":
                fields = parse_object(text.encode())
            case "application/x-www-form-urlencoded":
                fields = _only_form_field(text)
            case _:
                fields = {"text": text}
        return _HookBody.model_validate(fields).text
    except UnicodeDecodeError as error:
        raise UnreadableType from error
    except ValidationError as error:
        raise BadBody('Send one text and nothing else, such as {"text": "…"}.') from error


def _only_form_field(text: str) -> dict[str, str]:
    """Return the only field of a form, as its name and text; the caller checks the name.

    Raises:
        BadBody: it is no form, or has no or several fields.
        UnicodeDecodeError: a value is not UTF-8.
    """
    try:
        # Two fields are let through, so that the second one is refused with a text of its own below.
        fields = parse_qsl(
            text, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=2
        )
    except UnicodeDecodeError:
        # A `ValueError` too, but the caller answers it as a wrong encoding.
        raise
    except ValueError as error:
        raise BadBody("Send the text as the field 'text' of the form: text=…") from error
    if len(fields) != 1:
        raise BadBody("Send the field 'text' and no other.")
    return dict(fields)


def hook_routes(service: HookService, on_refusal: OnRefusal) -> list[Route]:
    """Return the route to which programs post texts. No answer reveals anything about the group.

    `on_refusal` is called for each request to an unknown or overused hook.
    """

    async def bring(request: Request) -> Response:
        """Store a posted text as a message and answer with status 202.

        A request to an unknown or overused hook is answered with the error, and reported: nobody has to sign
        in here, so this shows who guesses addresses. The application answers all other errors.
        """
        try:
            return await _bring(request)
        except (UnknownAddress, HookOverused) as error:
            on_refusal(_refused_request(request, error.code))
            headers = {"Retry-After": str(error.wait_seconds)} if isinstance(error, HookOverused) else None
            return JSONResponse(
                {"error": {"code": error.code, "message": str(error)}},
                status_code=error.http_status,
                headers=headers,
            )

    async def _bring(request: Request) -> Response:
        """Check the address, read the body, and store its text as a message.

        Raises:
            UnknownAddress, HookOverused: the hook may bring no text now.
            BodyTooSlow, UnreadableType, BadBody, TextEmpty, TextTooLong: the text cannot be used.
        """
        secret = request.path_params["secret"]
        # A client without a valid address is refused before a byte of the body is read.
        await service.check(secret)
        if request.headers.get("content-encoding", "identity") != "identity":
            raise UnreadableType
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await read_body(request, limit=MAX_BODY_BYTES)
        except TimeoutError as error:
            raise BodyTooSlow from error
        text = text_in(body, request.headers.get("content-type", ""))
        await service.bring(secret, text, key=_key_of(request))
        return Response(status_code=202)

    return [Route(HOOKS + "{secret}", bring, methods=["POST"])]


def _key_of(request: Request) -> str | None:
    """Return the key by which a program marks a text that it may send again; None without one.

    Raises `BadBody` if it is empty or too long.
    """
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MAX_KEY_CHARS:
        raise BadBody(f"An Idempotency-Key has 1 to {MAX_KEY_CHARS} characters.")
    return key


def _refused_request(request: Request, code: str) -> RefusedRequest:
    """Return the error, method and client of a refused request; its path is without the secret part."""
    return RefusedRequest(
        error=code,
        path=f"{HOOKS}…",
        method=request.method,
        peer=request.client.host if request.client else None,
    )
