"""Define how a channel describes itself: all that the rest of Andy knows of a messenger before it runs.

A description loads quickly: its module imports neither the messenger's library nor modules that do. The
command line, the doctor, the console and the registry all use it, so none of them names a messenger.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from orchestrator.base import installation
from orchestrator.domain.protocols import Channel, Feature
from orchestrator.domain.values import ChatJid

if TYPE_CHECKING:
    from orchestrator.channels.context import ChannelContext

Words = Mapping[str, str]
"""A text by language: `{"en": …, "ko": …}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelFinding:
    """The result of one check for `andy doctor`. `text` is a fact, or a problem with its fix."""

    is_problem: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginQuestion:
    """A value that is needed to log in to a messenger. The terminal asks for it."""

    name: str
    """The question's name in `andy channels add CHANNEL --set NAME=VALUE`."""
    text: str
    default: str = ""
    is_rare: bool = False
    """Whether the terminal does not ask: the default is used unless `--set` gives another value."""
    is_secret: bool = False
    """Whether the answer is hidden while it is typed, and read from stdin instead of the command line."""


def deferred(name: str) -> Callable[..., Any]:
    """Return a function that, when called, imports the function `name` (`module:function`) and calls it.

    With it, a description refers to code without importing it.
    """

    return partial(_import_and_call, name)


def _import_and_call(name: str, *arguments: Any) -> Any:
    """Import `name`, which is `module:function`, call it and return its result."""
    return resolve_name(name)(*arguments)


def _no_account(_: Path) -> str:
    """Return an empty account name, for channels without a login."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDescription:
    """A messenger as the rest of Andy sees it. Paths are relative to the home."""

    name: str
    """The name in settings, commands, `/status` and the table of chats: lower case, no blanks."""
    title: str
    """The name for people: `WhatsApp`."""
    about: Words
    """One sentence: what it is and what it needs."""
    owns: Callable[[ChatJid], bool]
    """Return whether a chat's address is one of this channel. Pure; never raises."""
    prefix: str = ""
    """The prefix of its addresses, which the messenger's own chat ids do not have."""
    build: Callable[[ChannelContext], Channel]
    """Build the channel, importing what it needs. Raises `ImportError` when its library is not installed."""
    features: frozenset[Feature]
    max_text_chars: int | None = None
    """The longest message of the messenger, in code points; a longer text is sent in parts."""
    max_file_bytes: int | None = None
    media: tuple[str, ...] = ()
    """The kinds of files that it displays (`image`, `audio`, …); others are sent as documents."""
    is_always_on: bool = False
    """Whether it can be neither switched on nor off."""
    extra: str = ""
    """The optional extra of `pyproject.toml` that installs its library; empty when it comes with Andy."""
    library: str = ""
    """The name of the library's module, which may be missing; empty when it needs none."""
    questions: tuple[LoginQuestion, ...] = ()
    log_in: Callable[[Path, Mapping[str, str]], Awaitable[str]] | None = None
    """Log in with the answers and store the login in the home; return a sentence about the result.

    Raises:
        BadRequest: an answer cannot be used; the sentence names it.
        ChannelError: the messenger refuses, or cannot be reached.
    """
    log_out: Callable[[Path], Awaitable[str]] | None = None
    """End the login, delete it from the home, and return a sentence about the result.

    Raises `ChannelError`.
    """
    pair_command: str = ""
    """The command that logs in, if that takes more than answers."""
    account: Callable[[Path], str] = _no_account
    """Return the name of the account that is logged in, for people; empty when there is none. Blocks.

    Raises `ChannelDown` when the login is there and cannot be read.
    """
    status_command: str = ""
    """The command that shows more of the connection than `andy channels status`."""
    status_file: str = ""
    """The path of the file that holds the state of the connection, written by `status.StatusFile`."""
    secret_files: tuple[str, ...] = ()
    """The paths of files that no other user of this machine may read."""
    checks: tuple[Callable[[Path], ChannelFinding], ...] = ()
    """The checks of `andy doctor`, which run in this order up to the first problem. They block."""
    advice: Mapping[str, Words] = field(default_factory=dict)
    """Advice to the owner for each state of the connection, by the state's name, for the console. `{reason}`
    in it is replaced by why the connection last ended. A state without advice shows the status's own text.
    """

    @property
    def is_installed(self) -> bool:
        """Whether its library is installed. The library is looked for but not loaded."""
        return not self.library or find_spec(self.library) is not None

    @property
    def install_command(self) -> str:
        """The command that installs its library."""
        return installation.command_to_add(self.extra or self.name)

    @property
    def add_command(self) -> str:
        """The command by which the owner logs in to the messenger."""
        return self.pair_command or f"andy channels add {self.name}"

    @property
    def shown_status_command(self) -> str:
        """The command that shows the state of the connection."""
        return self.status_command or f"andy channels status {self.name}"

    @property
    def missing_library(self) -> str:
        """The sentence for the owner that the channel's library is not installed, and how to install it."""
        return (
            f"{self.title} needs a library that is not installed:"
            f" {self.install_command}. Then start Andy again."
        )
