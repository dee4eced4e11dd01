"""The errors of the host, one tree. That an agent failed is a value; an error is what the host cannot do.

AndyError                    a person reads the text: it names the fix
├── SettingError             a setting is unknown or has a bad value
├── HomeError                the home cannot be used (unwritable, locked by another orchestrator)
├── StoreError               the database cannot be used
│   ├── StoreTooNew          it was written by a newer Andy
│   └── StoreCorrupt         what is in it is damaged
├── BackupError              a backup cannot be made, or is none that can be restored
├── MailboxError             a group's request directory is not what the host made
├── ContextBusy              another writer holds what a group's conversation was about
├── BadRequest               what was asked cannot be done as it stands
│   ├── UnknownGroup
│   ├── TextEmpty
│   ├── TextTooLong
│   ├── BadTime
│   ├── BadSchedule
│   ├── UnknownTurn
│   ├── UnknownTask
│   ├── NoDashboard
│   ├── TaskRefused
│   ├── UnknownReminder
│   ├── ReminderRefused
│   └── ImportRefused        the files of a dashboard cannot be taken, and why, row by row
├── ContainerError           a runtime cannot do what was asked
│   ├── EngineGone           no engine answers
│   ├── NoAddresses          the engine has none left for another network
│   ├── ImageMissing         the agent image is not there
│   └── ImageNotBuilt        the agent image cannot be built here
│       └── NoBaseImage      there is nothing to build it on
├── ChannelError             a channel did not take a message
│   ├── ChannelDown          try again later
│   ├── OutcomeUnknown       nobody knows whether it did
│   └── ChannelRefused       never will
└── NotRunning               no orchestrator answers on this home
    ├── AndyFileDamaged      a file that is needed to ask it is damaged
    └── Starting             one is starting
"""

from __future__ import annotations

from orchestrator.base.backoff import doubled_pause


class AndyError(Exception):
    """Something that the owner has to fix; the text says how."""

    def __init__(self, text: str | None = None) -> None:
        """`text` is shown to a person; None takes the first line of the class's docstring."""
        super().__init__(text or (type(self).__doc__ or "").strip().splitlines()[0])


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the errors inside an exception group, and those inside of groups in it, at any depth."""
    errors: list[BaseException] = []
    for error in group.exceptions:
        errors += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return errors


class SettingError(AndyError):
    """A setting has a bad value."""


class HomeError(AndyError):
    """The home directory cannot be used."""


class StoreError(AndyError):
    """The database cannot be used. Loops wait until it can: a full disk may have room again later."""

    is_temporary = True
    """Whether the error may end without any change of the program, so that no loop ends the host for it."""


class StoreTooNew(StoreError):
    """The database was written by a newer Andy: upgrade Andy, or restore a backup of this version."""


class StoreCorrupt(StoreError):
    """The database is damaged: restore a backup. Nothing waits for it, since it does not repair itself."""

    is_temporary = False


class BackupError(AndyError):
    """The backup cannot be made or restored."""


class MailboxError(AndyError):
    """A group's request directory cannot be used."""


class ContextBusy(AndyError):
    """Another process is writing the context of a group's conversation."""

    code = "context_busy"
    http_status = 503

    def __init__(self, folder: str) -> None:
        """`folder` is the group's folder."""
        self.folder = folder
        super().__init__(f"The context of '{folder}' is being written by another: try again in a moment.")


class BadRequest(AndyError):
    """The request cannot be carried out as it is.

    Over HTTP it is answered with 422: the body has the described shape, but its meaning is refused. A body of
    another shape is answered with 400, see `orchestrator/web/bodies.py`.
    """

    code = "bad_request"
    http_status = 422


class UnknownGroup(BadRequest):
    """There is no such group."""

    code = "unknown_group"
    http_status = 404

    def __init__(self, folder: str, registered: list[str] | None = None) -> None:
        """`registered` are the folders of the groups that exist, which the text lists; None lists none."""
        self.folder = folder
        registered_text = f" Registered: {', '.join(registered)}." if registered else ""
        super().__init__(f"There is no group '{folder}'.{registered_text} See 'andy groups list'.")


class TextEmpty(BadRequest):
    """The text is empty: write something to send."""

    code = "text_empty"


class TextTooLong(BadRequest):
    """The text is too long."""

    code = "text_too_long"
    http_status = 413

    def __init__(self, chars: int, limit: int) -> None:
        """The text has `chars` characters, and at most `limit` are allowed."""
        super().__init__(
            f"The text has {chars:,} characters; at most {limit:,} are taken. Send it as a file."
        )


class BadTime(BadRequest):
    """The time cannot be used."""

    code = "bad_time"


class BadSchedule(BadRequest):
    """The schedule cannot be used."""

    code = "bad_schedule"


class UnknownTurn(BadRequest):
    """There is no such turn."""

    code = "unknown_turn"
    http_status = 404

    def __init__(self, turn_id: int) -> None:
        """`turn_id` is the number that was requested."""
        super().__init__(f"There is no turn {turn_id}: see 'andy turns'.")


class UnknownTask(BadRequest):
    """There is no such task."""

    code = "unknown_task"
    http_status = 404

    def __init__(self, task_id: str) -> None:
        """`task_id` is the id that was requested."""
        self.task_id = task_id
        super().__init__(f"There is no task '{task_id}' here.")


class UnknownReminder(BadRequest):
    """There is no such reminder."""

    code = "unknown_reminder"
    http_status = 404

    def __init__(self, number: int | str) -> None:
        """`number` was requested as a person typed it, so it may be long, or no number."""
        self.number = number
        super().__init__(f"There is no reminder {str(number)[:80]}: see 'andy reminders list'.")


class ReminderRefused(BadRequest):
    """The reminder cannot be set or changed."""

    code = "reminder_refused"
    http_status = 409


class NoDashboard(BadRequest):
    """The group has no dashboard yet."""

    code = "no_dashboard"
    http_status = 404

    def __init__(self, folder: str) -> None:
        """`folder` is the group's folder."""
        self.folder = folder
        super().__init__(
            f"'{folder}' has no dashboard yet: it is made with the first task, as by 'add a task …'."
        )


class TaskRefused(BadRequest):
    """The task cannot be changed like this."""

    code = "task_refused"
    http_status = 409


class ImportRefused(BadRequest):
    """The files of a dashboard cannot be imported; nothing was changed."""

    code = "import_refused"

    def __init__(self, problems: list[str]) -> None:
        """`problems` has a sentence for each row that does not fit; the text shows the first 50."""
        self.problems = problems
        shown = "\n".join(f"- {problem}" for problem in problems[:50])
        more = f"\n- … and {len(problems) - 50} more" if len(problems) > 50 else ""
        super().__init__(f"Nothing was imported:\n{shown}{more}")


class ContainerError(AndyError):
    """The container runtime cannot do this."""


class EngineGone(ContainerError):
    """No Docker engine answers: start it, or use '--runtime process'."""


class NoAddresses(ContainerError):
    """The engine has no addresses left for another network."""


class ImageMissing(ContainerError):
    """The agent image is missing: build it with 'andy image build'."""


class ImageNotBuilt(ContainerError):
    """The agent image cannot be built here."""


class NoBaseImage(ImageNotBuilt):
    """There is nothing to build the agent image on."""


class ChannelError(AndyError):
    """The channel did not take the message."""


LONGEST_PAUSE_SECONDS = 3_600.0
"""Seconds of the longest pause that a messenger is granted, however long a one it asks for."""
LEAST_PAUSE_SECONDS = 0.2
"""Seconds of the shortest pause, even if a messenger asks for a shorter one."""
LONGEST_OWN_PAUSE_SECONDS = 300.0
"""Seconds up to which a pause is lengthened beyond what a messenger asks for, if it asks again and again."""
FARTHEST_RETRY_MS = 2 * 3_600_000
"""Milliseconds ahead at which a further attempt may be set, twice the longest pause: one that is set further
ahead was set before the clock was set back, and is due now.
"""
LONGEST_PAUSES_MS = 3 * 24 * 3_600_000
"""Milliseconds after which a message is given up if its messenger still answers with pauses."""


def bounded_pause(seconds: object, *, default: float) -> float:
    """Return the seconds of a pause that a messenger asks for, limited to 0 to `LONGEST_PAUSE_SECONDS`.

    `seconds` is the value that the messenger sent, of any type. If it is no number, return `default`.
    """
    if not isinstance(seconds, int | float) or seconds != seconds:  # only NaN differs from itself
        return default
    return float(min(max(seconds, 0), LONGEST_PAUSE_SECONDS))


def lengthened_pause(seconds: float, *, pauses: int) -> float:
    """Return how many seconds to wait when a messenger asks for a pause of `seconds`.

    `pauses` is the number of pauses that it has asked for in a row, from 1 on, this one included. The wait is
    at least 0.2 s, then 0.4 s, 0.8 s … 5 minutes: else a messenger that asks for a moment each time would get
    the same request every moment.
    """
    return max(seconds, doubled_pause(LEAST_PAUSE_SECONDS, LONGEST_OWN_PAUSE_SECONDS, failures=pauses))


def is_retry_due(at_ms: int, *, now_ms: int) -> bool:
    """Return whether an attempt that is set at `at_ms` is due at `now_ms` (both epoch ms).

    One that is further ahead than `FARTHEST_RETRY_MS` is due, too: it was set before the clock was set back.
    """
    return not 0 < at_ms - now_ms <= FARTHEST_RETRY_MS


class ChannelDown(ChannelError):
    """The channel cannot be reached now."""

    def __init__(
        self, text: str | None = None, *, pause_seconds: float = 0.0, moved_to: str | None = None
    ) -> None:
        """Set the reason.

        `pause_seconds` is the pause that the messenger asks for, 0 if it asks for none. It is bounded, since
        a channel may pass on whatever its messenger names. `moved_to` is the chat's new address; None if the
        messenger reports none.
        """
        super().__init__(text)
        self.pause_seconds = bounded_pause(pause_seconds, default=0.0)
        self.moved_to = moved_to


class SendRateFull(ChannelDown):
    """Andy's own limit of messages a minute has no room now: the same pause follows until it has."""


class OutcomeUnknown(ChannelError):
    """The message may have arrived: the channel's answer was lost."""


class ChannelRefused(ChannelError):
    """The channel will never take this message."""

    def __init__(self, text: str | None = None, *, is_chat_fine: bool = False) -> None:
        """Set the reason; for a `text` of None it is the first line of the class's docstring.

        `is_chat_fine` says that the chat takes other messages, such as the news that this one was not sent.
        """
        super().__init__(text)
        self.is_chat_fine = is_chat_fine


class NotRunning(AndyError):
    """Andy is not running on this home: start it with 'andy up'."""


class AndyFileDamaged(NotRunning):
    """A file with which commands find the running Andy is damaged; the text says how to write it again."""


class Starting(NotRunning):
    """Andy is starting on this home: ask again in a moment."""
