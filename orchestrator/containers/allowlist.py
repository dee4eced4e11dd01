"""Decide which of the owner's folders a group may see, by a list that no
container and no agent can change.
"""

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
    own_home: Path
    """The user's home: what `~` means."""
    protected: tuple[Path, ...]
    """Resolved paths that may not be mounted: neither they, nor their contents, nor
    folders that contain them.
    """
    hindrance: Callable[[Path], str | None] = lambda _: None
    """Returns why containers cannot be given a path, if Andy runs in a container itself; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
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
    """Return the real path of a folder or plain file on this disk, else None. Blocks."""
    try:
        real = path.resolve(strict=True)
        return real if real.is_dir() or real.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def decide(
    requests: Iterable[MountRequest], rules: MountRules, asker: MountRequester, *, resolve: Resolve = resolve
) -> Extra:
    """Grant or refuse each requested mount independently: a refused one does not affect the others."""
    mounts: dict[str, Mount] = {}
    refusals: list[str] = []
    names: list[str] = []
    for request in requests:
        try:
            name = _name(request, taken=mounts)
            real = _real(request, rules, asker, resolve)
            root = _root_of(real, rules, asker, resolve)
        except MountRefused as refused:
            refusals.append(f"{request.path} is not shown: {refused}")
            names.append(_shown_as(request))
            continue
        denial = _write_denial(root, rules, asker) if request.writable else None
        if denial:
            refusals.append(f"{request.path} is shown read-only: {denial}")
            names.append(name)
        mounts[name.casefold()] = Mount(
            source=real, target=f"{TARGET}/{name}", is_writable=request.writable and denial is None
        )
    return Extra(mounts=tuple(mounts.values()), refusals=tuple(refusals), names=tuple(names))


def _shown_as(request: MountRequest) -> str:
    return request.name if request.name is not None else Path(request.path).name


def _name(request: MountRequest, *, taken: Iterable[str]) -> str:
    name = _shown_as(request)
    is_plain = name.strip(". ") and name.isprintable() and not any(sign in name for sign in ("/", "\\", ":"))
    if not is_plain or name.startswith("."):
        raise MountRefused(f"'{name}' is no name to show it under; give it a 'name' without '/' and ':'.")
    if name.casefold() in taken:
        raise MountRefused(f"the name '{name}' is taken by another; give it a 'name' of its own.")
    return name


def _real(request: MountRequest, rules: MountRules, asker: MountRequester, resolve: Resolve) -> Path:
    path = _expanded(request.path, asker)
    if not path.is_absolute():
        raise MountRefused("the path has to begin with '/' or '~'.")
    # Judged by the real path: a link in an allowed folder may lead anywhere.
    real = resolve(path)
    if real is None:
        raise MountRefused(f"there is no such folder or file. {asker.hindrance(path) or ''}".strip())
    for secret in asker.protected:
        if _holds(secret, real) or _holds(real, secret):
            raise MountRefused(f"{secret} is Andy's own, and no group may see it.")
    blocked = _blocked_part(real, (*BLOCKED, *rules.blocked_patterns))
    if blocked is not None:
        raise MountRefused(f"'{blocked}' in {real} is blocked.")
    hindrance = asker.hindrance(real)
    if hindrance is not None:
        raise MountRefused(hindrance)
    return real


def _holds(outer: Path, inner: Path) -> bool:
    """Return whether `inner` is `outer` or inside of it, also on a disk that ignores case."""
    parts = [part.casefold() for part in outer.parts]
    return [part.casefold() for part in inner.parts[: len(parts)]] == parts


def _blocked_part(path: Path, patterns: Sequence[str]) -> str | None:
    """Return a part of the path that matches a pattern as a whole (`token` does not
    match `tokenizer`), else None.
    """
    folded = [pattern.casefold() for pattern in patterns]
    return next(
        (part for part in path.parts if any(fnmatchcase(part.casefold(), one) for one in folded)), None
    )


def _root_of(real: Path, rules: MountRules, asker: MountRequester, resolve: Resolve) -> Root:
    """Return the innermost root that contains a path. Raises `MountRefused`."""
    roots = ((resolve(_expanded(root.path, asker)), root) for root in rules.allowed_roots)
    above = [(path, root) for path, root in roots if path is not None and real.is_relative_to(path)]
    if not above:
        raise MountRefused(f"it lies in none of the 'allowedRoots' of {FILE}.")
    return max(above, key=lambda found: len(found[0].parts))[1]


def _write_denial(root: Root, rules: MountRules, asker: MountRequester) -> str | None:
    if not root.allow_read_write:
        return f"{root.path} does not allow more ('allowReadWrite')."
    if rules.non_main_read_only and not asker.is_main:
        return "only main may write in folders of yours ('nonMainReadOnly')."
    return None


def _expanded(path: str, asker: MountRequester) -> Path:
    if path == "~" or path.startswith("~/"):
        return asker.own_home / path[2:]
    return Path(path)


class MountAllowlist:
    """Decides by the present content of the owner's file."""

    def __init__(
        self,
        file: OwnerFile[MountRules],
        *,
        home: Path,
        own_home: Path,
        hindrance: Callable[[Path], str | None] = lambda _: None,
    ) -> None:
        """`hindrance` returns why containers cannot be given a path; None when they can."""
        self._file = file
        self._hindrance = hindrance
        self._own_home = own_home
        owned = (
            *(home / name for name in ("data", "store", "groups", ".env", "andy.toml")),
            # The folder of this very list, too: whoever may write there decides what is mounted.
            file.path.parent,
        )
        self._protected = tuple(path.resolve() for path in owned)

    def grant(self, group: Group) -> Extra:
        """Decide about the mounts that the group's configuration requests. Blocks."""
        requests = settings.of(group).mounts
        if not requests:
            return Extra()
        found = self._file.read()
        if found.rules is None:
            why = found.trouble or f"there is no list of what may be: {self._file.path}."
            return Extra(
                refusals=tuple(f"{request.path} is not shown: {why}" for request in requests),
                names=tuple(map(_shown_as, requests)),
            )
        asker = MountRequester(
            is_main=group.is_main,
            own_home=self._own_home,
            protected=self._protected,
            hindrance=self._hindrance,
        )
        return decide(requests, found.rules, asker)
