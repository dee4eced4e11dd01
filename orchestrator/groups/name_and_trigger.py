"""The name of a group, and the trigger, the word by which people call Andy there: which ones can be used."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

from pydantic import BaseModel, ConfigDict

from agent_runner.wire.unicode_forms import normalized
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import Group
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups

MAX_NAME_CHARS = 200
MAX_TRIGGER_CHARS = 64


class GroupProfile(BaseModel):
    """The name of a group and its triggers. A field that is not set stays unchanged."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = None
    trigger: str | None = None
    """A trigger besides @Andy; an empty text removes it."""
    requires_trigger: bool | None = None
    """Whether a message must call Andy to be answered; false answers every message."""


def profile_line(group: Group) -> str:
    """Return a sentence for people about a group: its name, and which messages it answers. Pure."""
    if group.is_main or not group.requires_trigger:
        answers = "every message"
    else:
        # The assistant's own name is the owner's choice, and not known here.
        own = f" or by {group.trigger}" if group.trigger else ""
        answers = f"messages that call the assistant by its name{own}"
    return f"'{group.folder}' is called {group.name} and answers {answers}."


class ProfileRefused(BadRequest):
    """A group's name or trigger cannot be used."""

    def __init__(self, field: str, reason: str) -> None:
        """`field` is the field of `GroupProfile` that cannot be used, and `reason` says why."""
        super().__init__(reason)
        self.field = field


class NameTaken(ProfileRefused):
    """Another group has this name."""

    def __init__(self, other: Group) -> None:
        """`other` is the group that has the name."""
        super().__init__(
            "name", f"'{other.folder}' is called '{other.name}' already: choose another name for this group."
        )
        self.folder = other.folder


def checked_name(text: str) -> str:
    """Return a name on one line. Raises `ProfileRefused` if it is empty or too long."""
    name = " ".join(text.replace("\0", "").split())
    if not 0 < len(name) <= MAX_NAME_CHARS:
        raise ProfileRefused(
            "name", f"A name has 1 to {MAX_NAME_CHARS} characters: say what people call the group."
        )
    return name


def checked_trigger(text: str | None) -> str | None:
    """Return a trigger on one line; None for an empty one. Raises `ProfileRefused` if it is too long."""
    trigger = " ".join((text or "").replace("\0", "").split())
    if len(trigger) > MAX_TRIGGER_CHARS:
        raise ProfileRefused("trigger", f"A trigger has at most {MAX_TRIGGER_CHARS} characters.")
    return trigger or None


def typeable(trigger: str | None) -> str | None:
    """Check that people can type a trigger, the word that calls Andy in a group, and return it on one line.

    None for None or an empty text. This is for triggers that a person chooses. Only the length of stored and
    imported ones is checked, so that a group does not lose the trigger that it has.

    Raises:
        ProfileRefused: it cannot be used.
    """
    trigger = checked_trigger(trigger)
    if trigger is None:
        return None
    is_word = (
        any(character.isalnum() for character in trigger) and "`" not in trigger and "://" not in trigger
    )
    if len(trigger) == 1 and trigger.isascii():
        is_word = False  # A letter is in every other sentence, but one character of Korean may be a word.
    if not is_word or not trigger.isprintable():
        raise ProfileRefused(
            "trigger",
            "A trigger is what people type, such as @house: more than one letter, nothing that cannot"
            " be seen, and no link.",
        )
    return trigger


def _chosen_trigger(current: str | None, wanted: str) -> str | None:
    """Return the trigger `wanted` that a person chooses for a group; None for an empty one.

    The group's `current` trigger is always accepted. Raises `ProfileRefused` for another that people cannot
    type.
    """
    return current if wanted == (current or "") else typeable(wanted)


async def check_name_is_free(tx: Tx, group: Group) -> None:
    """Check that no other group has the name of `group`, as people read it. Raises `NameTaken`."""
    for other in await groups.every(tx):
        if other.folder != group.folder and _as_read(other.name) == _as_read(group.name):
            raise NameTaken(other)


def _as_read(name: str) -> str:
    """Return a name in the form in which `check_name_is_free` compares names.

    Upper case, other Unicode forms of a letter, and invisible characters make no difference in it.
    """
    folded = normalized("NFKC", name).casefold()
    # Cf is the category of Unicode for invisible characters, such as zero-width marks.
    return "".join(character for character in folded if unicodedata.category(character) != "Cf")


def with_profile(group: Group, profile: GroupProfile) -> Group:
    """Return a group with those fields of a profile that are set; the others stay. Pure.

    Raises:
        ProfileRefused: one of them cannot be used; the error names it.
    """
    if group.is_main and profile.requires_trigger:
        raise ProfileRefused("requires_trigger", "Main answers every message: only you write there.")
    changed = group
    if profile.name is not None:
        changed = replace(changed, name=checked_name(profile.name))
    if profile.trigger is not None:
        changed = replace(changed, trigger=_chosen_trigger(group.trigger, profile.trigger))
    if profile.requires_trigger is not None:
        changed = replace(changed, requires_trigger=profile.requires_trigger)
    return changed
