"""Decide which of the owner's folders a group may see, by a list that no container or agent can change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.domain.protocols import Mount
from orchestrator.domain.values import Group
from orchestrator.groups import settings
from orchestrator.groups.owner import OwnerFile
from orchestrator.groups.settings import MountRequest

FILE = "mount-allowlist.json"
TARGET = "/workspace/extra"
BLOCKED = (
    ".ssh", ".gnupg", ".gpg", ".aws", ".azure", ".gcloud", ".kube", ".docker", "credentials", "credentials.*",
    ".env", ".env.*", ".netrc", ".npmrc", ".pypirc", "id_rsa", "id_ecdsa", "id_ed25519", "private_key",
    ".secret", ".secrets",
)  # fmt: skip
"""Names that no part of a path may have, whatever the list allows: they usually contain secrets."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Root(_Strict):
    """A folder of the list: groups may see what is in it."""

    path: str = Field(min_length=1)
    allow_read_write: Annotated[bool, Field(alias="allowReadWrite", strict=True)] = False
    description: str | None = None


class MountRules(_Strict):
    """The content of the owner's file `mount-allowlist.json`."""

    allowed_roots: tuple[Root, ...] = Field((), alias="allowedRoots")
    blocked_patterns: tuple[str, ...] = Field((), alias="blockedPatterns")
    non_main_read_only: Annotated[bool, Field(alias="nonMainReadOnly", strict=True)] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class MountRequester:
    """The group that requests mounts, and the paths that no group ever gets."""

    is_main: bool
    owner_home: Path
    """The home of the machine's owner, not of the group: what `~` means."""
    protected: tuple[Path, ...]
    """Resolved paths that may not be mounted: neither they, nor their contents, nor
    folders that contain them.
    """
    mount_hindrance: Callable[[Path], str | None] = lambda _: None
    """Returns why containers cannot be given a path, if Andy runs in a container itself; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtraMounts:
    """The granted mounts, and a line for the owner about each that is refused, or
    only granted for reading.
    """

    mounts: tuple[Mount, ...] = ()
    refusals: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """The refused mounts' names as the group would see them: they reveal nothing of the host's paths."""


class MountRefused(Exception):
    """One mount is not granted; the text says why and how to fix it."""


Resolve = Callable[[Path], Path | None]
"""Follows every link of a path to a folder or a plain file; returns None when there is none."""


def resolve(path: Path) -> Path | None:
    """Return the real path of a folder or plain file, every link followed; None if none exists. Blocks."""
    try:
        real = path.resolve(strict=True)
        return real if real.is_dir() or real.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def decide(
    requests: Iterable[MountRequest],
    rules: MountRules,
    requester: MountRequester,
    *,
    resolve: Resolve = resolve,
) -> ExtraMounts:
    """Grant or refuse each requested mount by the owner's rules: a refused one does not affect the others.

    Return the mounts, and the reasons of the refusals with the names under which the group would have seen
    the mounts. If only writing is refused, the mount is granted for reading, and also counts as a refusal.
    `requester` is the group that requests. Pure but for `resolve`, which follows the links of a path.
    """
    mounts: dict[str, Mount] = {}
    refusals: list[str] = []
    names: list[str] = []
    for request in requests:
        try:
            name = _mount_name(request, taken_names=mounts)
            real = _checked_source(request, rules, requester, resolve)
            root = _root_of(real, rules, requester, resolve)
        except MountRefused as refused:
            refusals.append(f"{request.path} is not shown: {refused}")
            names.append(_visible_name(request))
            continue
        denial = _write_denial(root, rules, requester) if request.writable else None
        if denial:
            refusals.append(f"{request.path} is shown read-only: {denial}")
            names.append(name)
        mounts[name.casefold()] = Mount(
            source=real, target=f"{TARGET}/{name}", is_writable=request.writable and denial is None
        )
    return ExtraMounts(mounts=tuple(mounts.values()), refusals=tuple(refusals), names=tuple(names))


def _visible_name(request: MountRequest) -> str:
    """Return the name under which the group would see a mount: as requested, else the path's last part."""
    return request.name if request.name is not None else Path(request.path).name


def _mount_name(request: MountRequest, *, taken_names: Iterable[str]) -> str:
    """Return the name of the folder under which the container sees a requested mount.

    `taken_names` are the names of other mounts, case-folded.

    Raises:
        MountRefused: the name is not usable, or is taken.
    """
    name = _visible_name(request)
    has_text = bool(name.strip(". "))  # not only dots and spaces, such as '..'
    is_plain = has_text and name.isprintable() and not any(sign in name for sign in ("/", "\\", ":"))
    if not is_plain or name.startswith("."):
        raise MountRefused(f"'{name}' is no name to show it under; give it a 'name' without '/' and ':'.")
    if name.casefold() in taken_names:
        raise MountRefused(f"the name '{name}' is taken by another; give it a 'name' of its own.")
    return name


def _checked_source(
    request: MountRequest, rules: MountRules, requester: MountRequester, resolve: Resolve
) -> Path:
    """Return the real path of a requested mount, with all links followed.

    Raises:
        MountRefused: the path is not absolute, does not exist, or is blocked; it is or contains a protected
            path, or lies in one; or Andy's own container, if he runs in one, does not have it.
    """
    path = _expand_home(request.path, requester)
    if not path.is_absolute():
        raise MountRefused("the path has to begin with '/' or '~'.")
    # Judged by the real path: a link in an allowed folder may lead anywhere.
    real = resolve(path)
    if real is None:
        advice = requester.mount_hindrance(path) or ""
        raise MountRefused(f"there is no such folder or file. {advice}".strip())
    for secret in requester.protected:
        if _contains(secret, real) or _contains(real, secret):
            raise MountRefused(f"{secret} is Andy's own, and no group may see it.")
    blocked = _blocked_part(real, (*BLOCKED, *rules.blocked_patterns))
    if blocked is not None:
        raise MountRefused(f"'{blocked}' in {real} is blocked.")
    hindrance = requester.mount_hindrance(real)
    if hindrance is not None:
        raise MountRefused(hindrance)
    return real


def _contains(outer: Path, inner: Path) -> bool:
    """Return whether `inner` is `outer` or inside of it, also on a disk that ignores case."""
    parts = [part.casefold() for part in outer.parts]
    return [part.casefold() for part in inner.parts[: len(parts)]] == parts


def _blocked_part(path: Path, patterns: Sequence[str]) -> str | None:
    """Return the first part of the path that matches one of the patterns, ignoring case; None if none does.

    A pattern has to match the whole part: `token` does not match `tokenizer`.
    """
    folded = [pattern.casefold() for pattern in patterns]
    for part in path.parts:
        if any(fnmatchcase(part.casefold(), pattern) for pattern in folded):
            return part
    return None


def _root_of(real: Path, rules: MountRules, requester: MountRequester, resolve: Resolve) -> Root:
    """Return the innermost of the owner's allowed folders (`allowed_roots`) that contains the path `real`.

    Raises:
        MountRefused: none contains it.
    """
    innermost: Root | None = None
    most_parts = 0
    for root in rules.allowed_roots:
        path = resolve(_expand_home(root.path, requester))
        if path is not None and real.is_relative_to(path) and len(path.parts) > most_parts:
            innermost, most_parts = root, len(path.parts)
    if innermost is None:
        raise MountRefused(f"it lies in none of the 'allowedRoots' of {FILE}.")
    return innermost


def _write_denial(root: Root, rules: MountRules, requester: MountRequester) -> str | None:
    """Return why the group may not write to mounts below the allowed folder `root`; None if it may.

    The text follows "PATH is shown read-only: ", and addresses the owner.
    """
    if not root.allow_read_write:
        return f"{root.path} does not allow more ('allowReadWrite')."
    if rules.non_main_read_only and not requester.is_main:
        return "only main may write in folders of yours ('nonMainReadOnly')."
    return None


def _expand_home(path: str, requester: MountRequester) -> Path:
    """Return a path of the owner's list or of a request, with a leading `~` replaced by the owner's home."""
    if path == "~" or path.startswith("~/"):
        return requester.owner_home / path[2:]  # `~/a` → `a`; after `~` alone nothing is left
    return Path(path)


class MountAllowlist:
    """Decides by the present content of the owner's file."""

    def __init__(
        self,
        file: OwnerFile[MountRules],
        *,
        home: Path,
        owner_home: Path,
        mount_hindrance: Callable[[Path], str | None] = lambda _: None,
    ) -> None:
        """`home` is Andy's home, whose data no group may mount; `owner_home` is the owner's, which `~` means.

        `mount_hindrance` returns why a path cannot be mounted in containers; None when it can.
        """
        self._file = file
        self._mount_hindrance = mount_hindrance
        self._owner_home = owner_home
        owned = (
            *(home / name for name in ("data", "store", "groups", ".env", "andy.toml")),
            # The folder of this very list, too: whoever may write there decides what is mounted.
            file.path.parent,
        )
        self._protected = tuple(path.resolve() for path in owned)

    def grant(self, group: Group) -> ExtraMounts:
        """Return which mounts of a group's settings the owner's file allows, and why others are refused.

        Without a readable file all are refused. Blocks.
        """
        requests = settings.of(group).mounts
        if not requests:
            return ExtraMounts()
        allowlist = self._file.read()
        if allowlist.rules is None:
            reason = allowlist.trouble or f"there is no list of what may be: {self._file.path}."
            return ExtraMounts(
                refusals=tuple(f"{request.path} is not shown: {reason}" for request in requests),
                names=tuple(map(_visible_name, requests)),
            )
        requester = MountRequester(
            is_main=group.is_main,
            owner_home=self._owner_home,
            protected=self._protected,
            mount_hindrance=self._mount_hindrance,
        )
        return decide(requests, allowlist.rules, requester)
