"""Create and revoke secret addresses: programs read a group's calendar, or bring a text into a group."""

from __future__ import annotations

import re
import secrets
import unicodedata
from dataclasses import dataclass
from hashlib import sha256

from agent_runner.wire.unicode_forms import normalized
from orchestrator.domain.errors import BadRequest
from orchestrator.store import audit
from orchestrator.store.access import secret_addresses as addresses
from orchestrator.store.access.secret_addresses import (
    DAY_MS,
    MINUTE_MS,
    AddressKind,
    SecretAddress,
    UnknownAddress,
)
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups

CALENDARS = "/calendar/"
"""Path of calendars, served without the token: `/calendar/SECRET.ics`."""
HOOKS = "/hooks/"
"""Path of hooks, accepted without the token: `/hooks/SECRET`."""
SECRET_PATHS = (CALENDARS, HOOKS)
MAX_ADDRESSES = 20
"""The most addresses of one kind that a group has."""
MAX_NAME_CHARS = 60
SECRET_BYTES = 32
"""Random bytes of a secret: 256 bits, which nobody can guess."""
HOOK_USES_A_MINUTE, HOOK_USES_A_DAY = 10, 200
"""Texts that one hook may bring. They are counted in its row, so that a restart forgets none of them."""

_LIST = {AddressKind.CALENDAR: "andy calendar list", AddressKind.HOOK: "andy hooks list"}
_FORM = {AddressKind.CALENDAR: f"{CALENDARS}{{}}.ics", AddressKind.HOOK: f"{HOOKS}{{}}"}
# Anywhere in the path: a client that requests `//hooks/SECRET` is refused, and its path logged.
_SECRET = re.compile(
    rf"(/(?:{'|'.join(path.strip('/') for path in SECRET_PATHS)})/).+", re.IGNORECASE | re.DOTALL
)
_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


class AddressRefused(BadRequest):
    """An address cannot be created as requested."""

    code = "bad_address"

    def __init__(self, field: str, reason: str) -> None:
        """`field` is the fault: `main` or `count` of the group, `long`, `blank` or `taken` of the name."""
        super().__init__(reason)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAddress:
    """An address that was just made, with its path, which is not shown again."""

    address: SecretAddress
    path: str


async def add(
    tx: Tx, kind: AddressKind, folder: str, *, name: str, is_request: bool = False, now_ms: int
) -> NewAddress:
    """Create a secret address of a group, and return it with its path, which is not shown again.

    It is a calendar that programs read, or a hook by which programs bring a text into the group. It is
    audited.

    Args:
        tx: the transaction.
        kind: calendar or hook.
        folder: the group's folder.
        name: the name of the address; a hook needs one.
        is_request: whether a hook's text asks the group's agent something.
        now_ms: the present time, in epoch milliseconds.

    Raises:
        UnknownGroup: there is no such group.
        AddressRefused: the name cannot be used, the group has too many addresses, or is main.
    """
    group = await groups.known(tx, folder)
    if kind is AddressKind.HOOK and group.is_main:
        raise AddressRefused(
            "main", "Main takes no hook: its messages administer all groups. Choose another group."
        )
    existing = await addresses.every(tx, kind, group.folder)
    name = _checked_name(kind, name, existing)
    if len(existing) >= MAX_ADDRESSES:
        raise AddressRefused(
            "count",
            f"'{group.folder}' has {MAX_ADDRESSES} {kind}s: revoke one first, see '{_LIST[kind]}'.",
        )
    secret = secrets.token_urlsafe(SECRET_BYTES)
    address = await addresses.add(
        tx,
        kind,
        group.folder,
        name=name,
        is_request=is_request,
        secret_hash=hashed(secret),
        now_ms=now_ms,
    )
    await _audit(tx, "added", address, now_ms=now_ms)
    return NewAddress(address=address, path=_FORM[kind].format(secret))


async def revoke(tx: Tx, kind: AddressKind, address_id: int, *, now_ms: int) -> SecretAddress:
    """Delete a secret address, which stops working, and return it; this is audited.

    Raises `UnknownAddress` if there is none with this number.
    """
    address = await addresses.remove(tx, kind, address_id)
    if address is None:
        raise UnknownAddress(kind, f"There is no {kind} {address_id}: see '{_LIST[kind]}'.")
    await _audit(tx, "revoked", address, now_ms=now_ms)
    return address


def hashed(secret: str) -> str:
    """Return the hash of a secret; only the hash is stored, so that nobody can read the secret there."""
    return sha256(secret.encode("utf-8", "replace")).hexdigest()


def without_secret(path: str) -> str:
    """Return the path of a request with `…` in place of a secret in it, so that it may be logged. Pure."""
    return _SECRET.sub(r"\1…", path)


def hook_wait_ms(hook: SecretAddress, now_ms: int) -> int:
    """Return in how many milliseconds a hook takes the next text; 0 if it takes one at once. Pure.

    Its limits are for each minute and each day of the clock, in UTC.
    """
    if hook.used_ms is None:
        return 0
    waits = [
        period_ms - now_ms % period_ms
        for period_ms, uses, most in (
            (MINUTE_MS, hook.minute_uses, HOOK_USES_A_MINUTE),
            (DAY_MS, hook.day_uses, HOOK_USES_A_DAY),
        )
        if uses >= most and hook.used_ms // period_ms == now_ms // period_ms
    ]
    return max(waits, default=0)


def _checked_name(kind: AddressKind, name: str, existing: list[SecretAddress]) -> str:
    """Check the name for a new address, and return it on one line of visible characters.

    `existing` are the group's addresses of this kind. Raises `AddressRefused` if the name is too long, or,
    for a hook, empty or taken.
    """
    visible = "".join(" " if unicodedata.category(char) in _UNSEEN else char for char in name)
    name = " ".join(visible.split())
    if len(name) > MAX_NAME_CHARS:
        raise AddressRefused("long", f"The name of a {kind} has at most {MAX_NAME_CHARS} characters.")
    if kind is AddressKind.HOOK:
        if not name:
            raise AddressRefused("blank", "Name the hook after the sender of the texts, such as --name door.")
        if _folded(name) in {_folded(address.name) for address in existing}:
            raise AddressRefused(
                "taken", f"This group has a hook '{name}' already: choose another name, or revoke that one."
            )
    return name


def _folded(name: str) -> str:
    """Return a name in the form in which names are compared."""
    return normalized("NFKC", name).casefold()


async def _audit(tx: Tx, change: str, address: SecretAddress, *, now_ms: int) -> None:
    """Write to the audit log that an address was "added" or "revoked" (`change`), without its secret."""
    detail = {address.kind.value: address.id, "name": address.name}
    kind = f"{address.kind}.{change}"
    await audit.append(tx, audit.AuditEvent(at_ms=now_ms, kind=kind, folder=address.folder, detail=detail))
