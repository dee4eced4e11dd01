"""Signing in to the console: a one-time code or the token starts a session, which a cookie identifies.

The cookie is `ID.SECRET`. The store has only the hash of the secret: a copy of the database admits nobody.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from hashlib import sha256

import structlog

from orchestrator.base.clock import Clock
from orchestrator.base.rate_limits import TokenBucket
from orchestrator.domain.errors import BadRequest, StoreError
from orchestrator.store import audit
from orchestrator.store.access import web_sessions
from orchestrator.store.access.web_sessions import WebSession
from orchestrator.store.database import Database

log = structlog.get_logger(__name__)

CODE_MS = 30_000
"""Milliseconds for which a one-time code is valid."""
MAX_CODES = 20
"""The largest number of unused codes: more than anybody requests in the 30 s that a code is valid."""
WRONG_AT_ONCE, WRONG_A_MINUTE = 10, 2
"""Wrong tries that are allowed at once, and then in each minute."""
TOUCH_MS = 60_000
"""Milliseconds after which the use of a session is recorded again."""
MAX_BROWSER_CHARS = 240
ALSO = ", also "


class SignInRefused(BadRequest):
    """That is neither the token nor a code that can still be used."""

    code = "sign_in_refused"
    http_status = 403


class TooManyTries(BadRequest):
    """Too many wrong tries: wait a minute, or use 'andy open'."""

    code = "too_many_tries"
    http_status = 429


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedIn:
    """A session with the secret that its cookie has."""

    session: WebSession
    secret: str

    @property
    def cookie(self) -> str:
        """The value of the cookie by which the browser shows its session."""
        return f"{self.session.id}.{self.secret}"


class SessionService:
    """Makes one-time codes and sessions, and finds the session of a cookie."""

    def __init__(self, database: Database, reader: Database, *, token: str, clock: Clock) -> None:
        """`database` is for writing, and `reader` for reading.

        `token` is that of the API: it signs anybody in.
        """
        self._database = database
        self._reader = reader
        self._token = token
        self._clock = clock
        self._codes: dict[str, tuple[str, int]] = {}
        """The id of a code → the hash of its secret, and the end of its validity in `Clock.steady_ms`.

        The wall clock may be set back, and the code would be valid for longer.
        """
        self._tries = TokenBucket(clock, at_once=WRONG_AT_ONCE, a_second=WRONG_A_MINUTE / 60)

    def make_code(self) -> str:
        """Return a new one-time code, which signs in one browser within `CODE_MS`.

        If `MAX_CODES` are unused, the oldest one becomes invalid.
        """
        steady_ms = self._clock.steady_ms()
        self._codes = {name: code for name, code in self._codes.items() if code[1] > steady_ms}
        # The oldest goes first: a dict keeps its entries in the order in which they came.
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        name, secret = secrets.token_hex(4), secrets.token_urlsafe(24)
        self._codes[name] = (hashed(secret), steady_ms + CODE_MS)
        return f"{name}.{secret}"

    async def sign_in(self, credential: str, *, agent: str) -> SignedIn:
        """Start the session of a browser that sends a credential: the token, or a one-time code.

        `agent` is the browser's `User-Agent`. The sign-in is written to the audit.

        Raises:
            SignInRefused: it is neither the token nor a valid code.
            TooManyTries: too many wrong tries came before; codes still work.
        """
        kind = "code" if self._use_code(credential) else "token"
        if kind == "token":
            self._check_token(credential)
        now_ms, secret = self._clock.now_ms(), secrets.token_urlsafe(32)
        session = WebSession(
            id=secrets.token_hex(4),
            secret_hash=hashed(secret),
            browser=browser_name(agent),
            created_ms=now_ms,
            seen_ms=now_ms,
        )
        async with self._database.transaction() as tx:
            await web_sessions.add(tx, session)
            detail = {"session": session.id, "by": kind}
            await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind="web.signed_in", detail=detail))
        return SignedIn(session=session, secret=secret)

    def _use_code(self, credential: str) -> bool:
        """Return whether a text is a valid one-time code; if it is, the code becomes invalid.

        A wrong guess leaves all codes valid: otherwise, somebody who guesses could lock others out.
        """
        # `make_code` has joined a name and a secret. An unknown name has no hash, and counts as expired.
        name, _, secret = credential.partition(".")
        code_hash, until_ms = self._codes.get(name, ("", 0))
        if self._clock.steady_ms() >= until_ms or not hmac.compare_digest(hashed(secret), code_hash):
            return False
        del self._codes[name]
        return True

    def _check_token(self, credential: str) -> None:
        """Check that a text is the token of the API.

        Raises:
            SignInRefused: it is not.
            TooManyTries: too many wrong tries came before.
        """
        # Only wrong tries take from the bucket `_tries`. While it is empty, even the right token is refused,
        # or guessing could go on.
        if self._tries.wait_ms() > 0:
            raise TooManyTries
        if not hmac.compare_digest(credential.strip().encode(), self._token.encode()):
            self._tries.take(1)
            raise SignInRefused

    async def find(self, cookie: str, *, agent: str) -> SignedIn | None:
        """Return the session of a browser's cookie; None if it has expired, was revoked or never existed.

        `agent` is the browser's `User-Agent`. If another kind of browser sends the cookie, it may be stolen:
        the session then lists both browsers, and the audit has a row. The use is recorded, at most once a
        minute if the browser is the same, unless the store cannot be written.
        """
        session_id, _, secret = cookie.partition(".")
        if not (session_id and secret):
            return None
        session = await self._reader.read(lambda tx: web_sessions.find(tx, session_id))
        now_ms = self._clock.now_ms()
        if session is None or session.is_over(now_ms):
            return None
        if not hmac.compare_digest(hashed(secret), session.secret_hash):
            return None
        browser = _with_browser(session.browser, browser_name(agent))
        # At most one write a minute for a browser: this is called for every page, part and stream.
        if now_ms - session.seen_ms > TOUCH_MS or browser != session.browser:
            try:
                await self._record_use(session, browser, now_ms=now_ms)
            except StoreError as error:
                # On a full disk, the pages are where the owner reads what is wrong. The next request tries
                # again.
                log.warning("console.use_not_recorded", session=session.id, reason=str(error))
        return SignedIn(session=session, secret=secret)

    async def _record_use(self, session: WebSession, browser: str, *, now_ms: int) -> None:
        """Record that a session was used at `now_ms`, by the browsers that the text `browser` names.

        The audit gets a row if the session had other browsers so far. Raises `StoreError`.
        """
        async with self._database.transaction() as tx:
            await web_sessions.touch(tx, session.id, browser=browser, now_ms=now_ms)
            if browser != session.browser:
                detail = {"session": session.id, "browsers": browser}
                row = audit.AuditEvent(at_ms=now_ms, kind="web.session_shared", detail=detail)
                await audit.append(tx, row)

    async def sign_out(self, signed_in: SignedIn) -> None:
        """End a browser's session, and write that to the audit.

        Raises `UnknownSession` if it ended meanwhile.
        """
        async with self._database.transaction() as tx:
            await web_sessions.remove(tx, signed_in.session.id)
            await audit.append(
                tx,
                audit.AuditEvent(
                    at_ms=self._clock.now_ms(),
                    kind="web.signed_out",
                    detail={"session": signed_in.session.id},
                ),
            )


def browser_name(agent: str) -> str:
    """Return the browser and the system that a `User-Agent` names, such as `Firefox (Linux)`. Pure.

    An unknown browser is shown by the beginning of its `User-Agent`.
    """
    system = next(
        (name for name in ("iPhone", "iPad", "Android", "Windows", "Mac OS", "Linux") if name in agent), ""
    )
    # In this order: Edge names itself Chrome, too, and both name themselves Safari.
    names = {"Edg/": "Edge", "Firefox/": "Firefox", "Chrome/": "Chrome", "Safari/": "Safari"}
    # `ascii` makes control characters and foreign letters visible; the slice removes its quotes.
    name = next((name for part, name in names.items() if part in agent), ascii(agent[:40])[1:-1])
    return f"{name} ({system})" if system else name or "?"


def _with_browser(stored: str, name: str) -> str:
    """Return the names of a session's browsers, as it stores them, with the browser `name` added. Pure.

    They are unchanged if it is among them, or if they would be longer than `MAX_BROWSER_CHARS`.
    """
    longer = f"{stored}{ALSO}{name}"
    return stored if name in stored.split(ALSO) or len(longer) > MAX_BROWSER_CHARS else longer


def hashed(secret: str) -> str:
    """Return the SHA-256 of a secret in hex, as the store has it."""
    return sha256(secret.encode()).hexdigest()
