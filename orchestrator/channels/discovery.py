"""Find the descriptions of channels by name, loading only the requested ones.

The channels that come with Andy are the packages beside this module that have a `description.py`: they are
found without the metadata of an installed package, which the image of Docker Compose lacks. Those of other
packages are found by entry points of the group `andy.channels`, each naming a `ChannelDescription`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from orchestrator.channels.description import ChannelDescription
from orchestrator.domain.errors import SettingError

ENTRY_POINTS = "andy.channels"
ALWAYS_ON = "local"
"""The chats of this machine, which are needed to set anything else up."""


class UnknownChannel(SettingError):
    """No channel has this name."""

    def __init__(self, name: str) -> None:
        """Set the text of the error, which lists the names of the channels that there are."""
        self.name = name
        super().__init__(f"'{name}' is no channel: known are {', '.join(names())}.")


class BrokenChannel(SettingError):
    """A channel of another package cannot be loaded."""


@cache
def shipped() -> tuple[str, ...]:
    """Return the names of the channels that come with Andy."""
    return tuple(sorted(path.parent.name for path in Path(__file__).parent.glob("*/description.py")))


def _other_entry_points() -> dict[str, Any]:
    """Return the entry points of channels of other packages, by name.

    An entry point with the name of a channel that comes with Andy is left out.
    """
    # Searching the metadata of all packages takes tens of milliseconds: only on request.
    from importlib.metadata import entry_points

    entry_points_by_name = {entry_point.name: entry_point for entry_point in entry_points(group=ENTRY_POINTS)}
    return {
        name: entry_point
        for name, entry_point in sorted(entry_points_by_name.items())
        if name not in shipped()
    }


def names() -> list[str]:
    """Return the name of every channel that is installed, those that come with Andy first."""
    return [*shipped(), *_other_entry_points()]


def find(name: str) -> ChannelDescription:
    """Return the description of a channel, loading no other one.

    Raises:
        UnknownChannel: there is none of this name.
        BrokenChannel: another package has the channel and cannot be loaded, or the channel has no
            `ChannelDescription` of this name. For a channel that comes with Andy, the import's error is
            raised as it is.
    """
    if name in shipped():
        description = import_module(f"orchestrator.channels.{name}.description").CHANNEL
    else:
        entry = _other_entry_points().get(name)
        if entry is None:
            raise UnknownChannel(name)
        try:
            description = entry.load()
        except Exception as error:
            raise BrokenChannel(
                f"The channel '{name}' cannot be loaded ({error}): fix or remove {entry.dist.name}."
            ) from error
    if not isinstance(description, ChannelDescription) or description.name != name:
        raise BrokenChannel(f"The channel '{name}' does not describe itself as a ChannelDescription.")
    return description


def installed() -> list[ChannelDescription]:
    """Return the descriptions of all installed channels, except those that raise `BrokenChannel`."""
    descriptions = []
    for name in names():
        with suppress(BrokenChannel):
            descriptions.append(find(name))
    return descriptions


def switched_on(requested: Sequence[str]) -> list[ChannelDescription]:
    """Return the descriptions of the local channel, which is always on, and of those with `requested` names.

    They are in this order, each once.

    Raises:
        UnknownChannel, BrokenChannel: as `find` raises them, for one of the names.
    """
    return [find(name) for name in dict.fromkeys((ALWAYS_ON, *requested))]
