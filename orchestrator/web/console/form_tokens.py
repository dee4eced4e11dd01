"""Forms of the console: each can be sent once, by its session, and has the state that its page showed.

The hidden field `_form` of a form is its CSRF token: a random number, signed with the secret of the session.
No other site can make one, and a used one is refused.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import BinaryIO
from urllib.parse import parse_qs

from orchestrator.base.clock import Clock
from orchestrator.domain.errors import BadRequest
from orchestrator.store.access import web_sessions
from orchestrator.store.database import Database
from orchestrator.web.console.sessions import SignedIn

TOKEN_FIELD, SHOWN_STATE = "_form", "_seen"
"""The names of the hidden fields with a form's CSRF token and with the state that its page showed."""
MAX_FIELDS = 1_000


class FormForged(BadRequest):
    """This form was not made for your session: open the page again, then send it once more."""

    code = "bad_form"
    http_status = 403


class FormSentTwice(BadRequest):
    """This form was sent before, and what it asked for was done once."""

    code = "form_sent_twice"
    http_status = 409


class FormCutOff(BadRequest):
    """This form was sent before and may not have been carried out to the end: look, then send it anew."""

    code = "form_cut_off"
    http_status = 409


class ChangedSince(BadRequest):
    """The thing that you were about to change has changed since you opened the page."""

    code = "changed_since"
    http_status = 409

    def __init__(self, before: Mapping[str, str], now: Mapping[str, str]) -> None:
        """`before` is the state that the page showed, and `now` the present state, as texts by field."""
        super().__init__()
        self.before = dict(before)
        self.now = dict(now)

    @property
    def shown(self) -> list[tuple[str, str, str]]:
        """Name, earlier value and present value of each field, without internal fields (`_…`)."""
        return [
            (name, before, self.now.get(name, ""))
            for name, before in self.before.items()
            if not name.startswith("_")
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedFile:
    """A file of a form; its body is on the disk or in memory until the answer is sent."""

    name: str
    mime: str
    size: int
    body: BinaryIO


class SentForm:
    """The fields that were sent, each with its last value, and the files."""

    def __init__(
        self, fields: Mapping[str, list[str]], files: Mapping[str, UploadedFile] | None = None
    ) -> None:
        """`fields` has the values of each field that was sent, `files` the uploaded files, by field."""
        self._fields = fields
        self._files = files or {}

    @classmethod
    def parse(cls, body: bytes) -> SentForm:
        """Return the form in a body of the type `application/x-www-form-urlencoded`.

        Raises `FormForged` for a body that is not UTF-8 or has more than `MAX_FIELDS` fields.
        """
        try:
            text = body.decode()
            return cls(parse_qs(text, keep_blank_values=True, max_num_fields=MAX_FIELDS))
        except ValueError as error:
            raise FormForged from error

    def text(self, name: str) -> str:
        """Return the last value of a field without spaces around it; empty if the field was not sent."""
        return self.raw(name).strip()

    def raw(self, name: str) -> str:
        """Return the last value of a field as it was typed; empty if the field was not sent.

        Line breaks become `\\n`.
        """
        return self._fields.get(name, [""])[-1].replace("\r\n", "\n")

    def all(self, name: str) -> list[str]:
        """Return all values that a field was sent with, such as those of the ticked boxes of one name."""
        return list(self._fields.get(name, []))

    @property
    def names(self) -> Collection[str]:
        """The names of the fields that were sent."""
        return self._fields.keys()

    def is_set(self, name: str) -> bool:
        """Return whether a field was sent; browsers send a box only if it is ticked."""
        return name in self._fields

    def file(self, name: str) -> UploadedFile | None:
        """Return the uploaded file of a field; None if no file was chosen, as then it has no name."""
        file = self._files.get(name)
        return file if file is not None and file.name else None

    def shown_state(self) -> dict[str, str]:
        """Return the values that the form's page showed before the change, as texts by field.

        The form sends them in a hidden field. Raises `FormForged` if that is missing or unreadable.
        """
        try:
            return {str(name): str(value) for name, value in json.loads(self.raw(SHOWN_STATE)).items()}
        except (ValueError, AttributeError) as error:
            raise FormForged from error

    def check_unchanged(self, present: Mapping[str, object]) -> None:
        """Check that the thing to change still has the state that the page showed.

        `present` is its present state, by field.

        Raises:
            ChangedSince: the states differ; the error page shows both.
            FormForged: the form does not have the state that the page showed.
        """
        present_texts, before = state_as_text(present), self.shown_state()
        if before != present_texts:
            raise ChangedSince(before, present_texts)


@dataclass(slots=True)
class TakenForm:
    """A form that is being carried out; `is_done` is set to True once what it asked for was done."""

    is_done: bool = False


def state_as_text(state: Mapping[str, object]) -> dict[str, str]:
    """Return a state that a page shows with each value as text, empty for None. Pure."""
    return {name: "" if value is None else str(value) for name, value in state.items()}


def typed(form: SentForm | None, *names: str) -> dict[str, str]:
    """Return the values of the named fields of a form that is shown again; empty texts for None. Pure."""
    return {name: form.raw(name) if form else "" for name in names}


class FormGuard:
    """Makes the signed numbers of forms, and accepts each once, also across a restart of the host."""

    def __init__(self, database: Database, *, clock: Clock) -> None:
        """`database` stores the numbers of forms that were used."""
        self._database = database
        self._clock = clock
        self._under_way: set[str] = set()
        """Numbers of forms that are being carried out, by which a second click is recognised."""

    def make(self, key: str) -> str:
        """Return the hidden field of a new form: a random number, and its signature with `key`.

        `key` is the secret of the browser's session, so no other site can make such a field.
        """
        number = secrets.token_urlsafe(12)
        return f"{number}.{_seal(key, number)}"

    @asynccontextmanager
    async def carrying_out(self, signed_in: SignedIn, field: str) -> AsyncIterator[TakenForm]:
        """Accept a sent form while the block carries out its change; each form is accepted once.

        The block sets `is_done` once the change was made. If it does not, or raises, the form may be sent
        again. `field` is the form's hidden field, see `make`.

        Raises:
            FormForged: it was not made for this session.
            FormSentTwice: it was used before.
            FormCutOff: it was used before, and it is not known whether it was carried out: Andy was killed
                meanwhile, or the browser disconnected just as it began.
        """
        # `make` has put the number and its seal into the field.
        number, _, seal = field.partition(".")
        if not hmac.compare_digest(seal.encode(), _seal(signed_in.secret, number).encode()):
            raise FormForged
        if number in self._under_way:
            raise FormSentTwice
        # Added before anything is awaited: the second click of a double click must find it.
        self._under_way.add(number)
        try:
            # Outside of the inner block: a form that it refuses must not be given back.
            await self._use(signed_in.session.id, number)
            taken = TakenForm()
            try:
                yield taken
            except BaseException:
                # Shielded: a browser that disconnects cancels the request, and the form would stay recorded
                # as being carried out.
                await asyncio.shield(self._record_end(number, is_done=False))
                raise
            await asyncio.shield(self._record_end(number, is_done=taken.is_done))
        finally:
            self._under_way.discard(number)

    async def _use(self, session_id: str, number: str) -> None:
        """Record that the form with this number is being carried out.

        Raises `FormSentTwice` if it was carried out before, `FormCutOff` if that was perhaps not completed.
        """
        async with self._database.transaction() as tx:
            if await web_sessions.use_form(tx, session_id, number, now_ms=self._clock.now_ms()):
                return
            # A form that was used and not finished was being carried out when the host was killed: nobody
            # knows whether its change was made.
            is_done = await web_sessions.is_form_done(tx, number)
        raise FormSentTwice if is_done else FormCutOff

    async def _record_end(self, number: str, *, is_done: bool) -> None:
        """Record that the form with this number was carried out or, if not `is_done`, may be sent again."""
        async with self._database.transaction() as tx:
            if is_done:
                await web_sessions.finish_form(tx, number)
            else:
                await web_sessions.give_form_back(tx, number)


def _seal(key: str, number: str) -> str:
    """Return the signature of a form's number with the secret of a session."""
    return hmac.new(key.encode(), number.encode(), sha256).hexdigest()
