"""Read the owner's files of rules, which are outside of every home and container, and notify the owner."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from orchestrator.base.installation import as_typed_here
from orchestrator.store.conversation import outbox
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups

Rules = TypeVar("Rules", bound=BaseModel)
MAX_BYTES = 1024 * 1024
ASKED = outbox.ASKED_OF_OWNER.removeprefix("owner:")
"""Prefix of `about` of a question to the owner that quotes other people."""


def owner_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the owner's files: `~/.config/andy`, or `andy` in `XDG_CONFIG_HOME`."""
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path("~/.config").expanduser()) / "andy"


async def notify(tx: Tx, text: str, *, about: str, now_ms: int) -> bool:
    """Queue a text to the owner, in the main group, and return whether it is queued now.

    Nothing is queued if the same text with the same `about` (the subject, a key of any form) was queued
    before, or if there is no main group.
    """
    main = next((group for group in await groups.every(tx) if group.is_main), None)
    if main is None:
        return False
    # The text is part of the key, so that another text about the same subject is sent. It is hashed before
    # its commands are written for this installation: a new way to type them is no new text.
    digest = hashlib.sha256(f"{about}\n{text}".encode()).hexdigest()[:20]
    return await outbox.add(
        tx,
        chat_jid=main.jid,
        folder=main.folder,
        text=as_typed_here(text),
        dedupe_key=f"owner:{digest}",
        now_ms=now_ms,
    )


async def notify_replacing_unsent(tx: Tx, text: str, *, about: str, now_ms: int) -> None:
    """Queue a text to the owner, in the main group, in place of an unsent one about the same subject.

    `about` is the subject, a key of any form. A text that was sent already does not prevent this one. Without
    a main group, nothing is queued. Quoted commands in the text, such as 'andy status', become those that the
    owner of this installation types.
    """
    main = next((group for group in await groups.every(tx) if group.is_main), None)
    text = as_typed_here(text)
    if main is None or await outbox.replace_unsent(tx, f"owner:{about}:", text):
        return
    await outbox.add(
        tx,
        chat_jid=main.jid,
        folder=main.folder,
        text=text,
        dedupe_key=f"owner:{about}:{secrets.token_hex(8)}",
        now_ms=now_ms,
    )


async def notify_once(tx: Tx, text: str, *, about: str, now_ms: int) -> None:
    """Queue a text to the owner, in the main group, if none about the same subject was sent before.

    `about` is the subject, a key of any form. A text about it that is queued and not yet sent is replaced;
    after one was sent, or without a main group, nothing is queued.
    """
    main = next((group for group in await groups.every(tx) if group.is_main), None)
    key, text = f"owner:{about}:", as_typed_here(text)
    if main is None or await outbox.replace_unsent(tx, key, text):
        return
    await outbox.add(tx, chat_jid=main.jid, folder=main.folder, text=text, dedupe_key=key, now_ms=now_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRules(Generic[Rules]):
    """The rules in a file; None if it is missing or broken. `trouble` says why it is broken."""

    rules: Rules | None = None
    trouble: str | None = None
    version: str = ""
    """A value that changes whenever the file does."""


class OwnerFile(Generic[Rules]):
    """A JSON file that is read again whenever it changes."""

    def __init__(self, path: Path, model: type[Rules]) -> None:
        """`model` is the type of the file's content."""
        self.path = path
        self._model = model
        self._current: OwnerRules[Rules] = OwnerRules()

    def read(self) -> OwnerRules[Rules]:
        """Return the present content of the file: its rules, or what is wrong with it. Blocks.

        The file is only parsed again if it has changed. A missing file has neither rules nor trouble.
        """
        try:
            state = self.path.stat()
            version = f"{state.st_mtime_ns}-{state.st_ctime_ns}-{state.st_size}-{state.st_ino}"
            if version != self._current.version:
                self._current = self._parsed(self.path.read_bytes()[:MAX_BYTES], version)
        except (FileNotFoundError, NotADirectoryError):
            self._current = OwnerRules()
        except OSError as error:
            self._current = OwnerRules(trouble=f"{self.path} cannot be read: {error.strerror}.")
        return self._current

    def _parsed(self, text: bytes, version: str) -> OwnerRules[Rules]:
        """Return the rules in the text of the file, or what is wrong with it; `version` is the file's."""
        try:
            return OwnerRules(rules=self._model.model_validate_json(text), version=version)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            field = ".".join(map(str, first["loc"]))  # empty for a file that is no JSON
            place = f"{field}: " if field else ""
            trouble = f"{self.path} cannot be used: {place}{first['msg']}."
            return OwnerRules(trouble=trouble, version=version)
