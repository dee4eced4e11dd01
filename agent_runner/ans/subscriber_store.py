"""Read subscribers and templates: Andy's own, and those in the group's folder, which may change anytime."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agent_runner.ans import safe_folder
from agent_runner.ans.escaping import one_line
from agent_runner.ans.safe_folder import FileStamp
from agent_runner.ans.subscriber import BadSubscriber, Subscriber, parse_subscriber

logger = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent
"""The folder with Andy's own subscribers and templates."""
GROUP_SUBFOLDER = "subscribers"
"""The folder of subscribers and templates in a group's folder."""
DISABLED = "disabled.txt"
"""The name of the file with the ids of disabled subscribers."""
MAX_FILE_BYTES = 16 * 1024
"""Most bytes of a file in the group's folder."""
MAX_OF_GROUP = 50
"""Most subscribers of a group, and most templates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberFolder:
    """All subscribers in their order, the disabled ids, and the texts of templates."""

    subscribers: tuple[Subscriber, ...] = ()
    disabled: frozenset[str] = frozenset()
    shipped_templates: dict[str, str] = field(default_factory=dict)
    group_templates: dict[str, str] = field(default_factory=dict)

    def template_named(self, subscriber: Subscriber) -> str | None:
        """Return the text of a subscriber's template, or None if there is none.

        For a subscriber of the group, the group's templates are preferred to Andy's own.
        """
        name = subscriber.output.template
        if subscriber.is_of_group and name in self.group_templates:
            return self.group_templates[name]
        return self.shipped_templates.get(name)


class SubscriberStore:
    """Reads subscribers and templates, again when the group's folder has changed. Blocks: use in a thread.

    A file that cannot be used is logged in one line at each reading, and the others are used.
    """

    def __init__(self, group: Path | None, *, shipped: Path = SHIPPED) -> None:
        """`group` is the group's folder, or None for Andy's own files alone; `shipped` has these."""
        self._group_folder = group / GROUP_SUBFOLDER if group is not None else None
        self._shipped = shipped
        self._lock = threading.Lock()
        self._last_stamps: list[FileStamp] | None = None
        """The state of the group's files when they were read last; None before the first time."""
        self._shipped_subscribers: tuple[Subscriber, ...] = ()
        self._last_read = SubscriberFolder()

    def read(self) -> SubscriberFolder:
        """Return the present subscribers and templates; the same object as long as no file has changed."""
        with self._lock, safe_folder.opened(self._group_folder) as descriptor:
            stamps = _stamps(descriptor)
            return self._last_read if stamps == self._last_stamps else self._read(descriptor, stamps)

    def _read(self, descriptor: int | None, stamps: list[FileStamp]) -> SubscriberFolder:
        """Read the group's files, and at the first call Andy's own; store and return the result.

        `descriptor` is the group's open folder, None if there is none; `stamps` are the files in it.
        """
        # Andy's own files do not change during a run, so only those of the group are read again.
        if self._last_stamps is None:
            self._shipped_subscribers = _read_shipped_subscribers(self._shipped / "subscribers")
        group_subscribers = _group_subscribers(
            descriptor, stamps, taken={subscriber.id for subscriber in self._shipped_subscribers}
        )
        self._last_read = SubscriberFolder(
            subscribers=self._shipped_subscribers + group_subscribers,
            disabled=_disabled(descriptor, stamps),
            shipped_templates=self._last_read.shipped_templates or _templates(self._shipped / "templates"),
            group_templates=_group_templates(descriptor, stamps),
        )
        for subscriber in group_subscribers:
            # The notices of such a subscriber are written in a plain form instead.
            if self._last_read.template_named(subscriber) is None:
                logger.warning(
                    "subscriber %s uses the plain form: no template %s",
                    subscriber.id,
                    subscriber.output.template,
                )
        self._last_stamps = stamps
        return self._last_read


def _stamps(descriptor: int | None) -> list[FileStamp]:
    """Return a stamp of each file in the group's folder that is read: it shows whether the file has changed.

    `descriptor` is that of the open folder; None, and so no stamps, without a folder.
    """
    if descriptor is None:
        return []
    return safe_folder.stamps(descriptor, (".toml", ".j2", DISABLED))


def _read_shipped_subscribers(directory: Path) -> tuple[Subscriber, ...]:
    """Return Andy's own subscribers from their files in a folder."""
    paths = sorted(directory.glob("*.toml"))
    return _unique((path.name, path.read_text(encoding="utf-8")) for path in paths)


def _templates(directory: Path) -> dict[str, str]:
    """Return the texts of the templates in a folder, by file name."""
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.j2"))}


def _group_subscribers(
    descriptor: int | None, stamps: list[FileStamp], taken: set[str]
) -> tuple[Subscriber, ...]:
    """Return the group's subscribers, at most `MAX_OF_GROUP`, without those whose ids are `taken`.

    `descriptor` is the group's open folder, None if there is none; `stamps` are the files in it.
    """
    names = [stamp.name for stamp in stamps if stamp.name.endswith(".toml")]
    if len(names) > MAX_OF_GROUP:
        logger.warning("only the first %d of %d subscribers of the group are used", MAX_OF_GROUP, len(names))
    texts = ((name, _read_text(descriptor, name)) for name in names[:MAX_OF_GROUP])
    return _unique(((name, text) for name, text in texts if text is not None), taken=taken, is_of_group=True)


def _unique(
    files: Iterable[tuple[str, str]], *, taken: Iterable[str] = (), is_of_group: bool = False
) -> tuple[Subscriber, ...]:
    """Return the subscribers in files, given as (name, text); one that cannot be used is logged.

    Each id is used once; `taken` are ids that belong to others already. `is_of_group`: whether the files are
    a group's and not Andy's own.
    """
    subscribers: dict[str, Subscriber] = {}
    known = set(taken)
    for name, text in files:
        try:
            subscriber = _parsed(text, known, is_of_group=is_of_group)
        except BadSubscriber as error:
            logger.warning("subscriber %s is skipped: %s", one_line(name), one_line(str(error)))
            continue
        known.add(subscriber.id)
        subscribers[subscriber.id] = subscriber
    return tuple(subscribers.values())


def _parsed(text: str, known: set[str], *, is_of_group: bool) -> Subscriber:
    """Return the subscriber in a text. Raises `BadSubscriber`, also if its id is in `known`."""
    subscriber = parse_subscriber(text, is_of_group=is_of_group)
    if subscriber.id in known:
        raise BadSubscriber(f"subscriber.id: '{subscriber.id}' is taken by another file")
    return subscriber


def _group_templates(descriptor: int | None, stamps: list[FileStamp]) -> dict[str, str]:
    """Return the group's templates by name: of the first `MAX_OF_GROUP`, those that can be used.

    `descriptor` is the group's open folder, None if there is none; `stamps` are the files in it.
    """
    names = [stamp.name for stamp in stamps if stamp.name.endswith(".j2")][:MAX_OF_GROUP]
    texts = {name: _read_text(descriptor, name) for name in names}
    return {name: text for name, text in texts.items() if text is not None and _is_usable(name, text)}


def _is_usable(name: str, text: str) -> bool:
    """Return whether a template can be used; log why not."""
    from agent_runner.ans.templating import BadTemplate, check

    try:
        check(text)
    except BadTemplate as error:
        logger.warning("template %s is skipped: %s", one_line(name), one_line(str(error)))
        return False
    return True


def _disabled(descriptor: int | None, stamps: list[FileStamp]) -> frozenset[str]:
    """Return the ids in the group's file of disabled subscribers: one per line, with comments after '#'.

    `descriptor` is the group's open folder, None if there is none; `stamps` are the files in it.
    """
    if not any(stamp.name == DISABLED for stamp in stamps):
        return frozenset()
    lines = (_read_text(descriptor, DISABLED) or "").splitlines()
    return frozenset(line.split("#")[0].strip() for line in lines) - {""}


def _read_text(descriptor: int | None, name: str) -> str | None:
    """Return the text of a file in the group's open folder; None if it cannot be read, which is logged."""
    assert descriptor is not None, "a file was listed without its folder"
    try:
        return safe_folder.read_plain(name, limit=MAX_FILE_BYTES, inside_fd=descriptor).data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = str(error) if not isinstance(error, OSError) else error.strerror or str(error)
        logger.warning("%s is skipped: %s", one_line(name), one_line(reason))
        return None
