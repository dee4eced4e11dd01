"""Classifies why turns are not answered, and words the reasons for groups and for the owner. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_OUTAGE_MS = 15 * 60_000
"""Milliseconds that a turn waits for an outage to end, counted from the moment it met the outage."""
MAX_IMAGE_WAIT_MS = 24 * 3_600_000
"""Milliseconds that a turn waits for a missing image: a person has to build it, which takes longer."""
IMAGE_PAUSE_MS = 10 * 60_000
"""Milliseconds between two attempts without an image. Once it is built, waiting turns start at once."""
OUTAGE_NOTICE_AFTER_MS = 30_000
"""Milliseconds that a question waits for the end of an outage before its chat is notified."""
LONGEST_OUTAGE_PAUSE_MS = 60_000
"""Most milliseconds between two attempts during an outage."""


STOPPED_BY_HAND = "it was stopped by hand."
STOPPED_TEXT = "⏹️ I was stopped before I answered this. Ask again if you still want to know."
"""The message about a turn that the owner stopped: unlike a failed turn, it is not tried again."""


class ModelError(StrEnum):
    """The reason why the model service did not answer a request."""

    NO_KEY = "no_key"
    KEY_UNREADABLE = "key_unreadable"
    """The file `.env` cannot be read, or its key or address of the service cannot be used."""
    KEY_REFUSED = "key_refused"
    NO_CREDIT = "no_credit"
    UNKNOWN_MODEL = "unknown_model"
    OUTAGE = "outage"
    """The service is overloaded, broken, unreachable or silent, which usually ends without anybody's help."""
    SLOW = "slow"
    """The service has sent no part of its answer for a long time; the request still waits."""
    FOREIGN = "foreign"
    """Something answers, but not with the Messages API: a web page, a redirect or another format."""
    OTHER = "other"
    """The request itself was wrong."""

    @property
    def is_permanent(self) -> bool:
        """Whether every further request fails too, until a key or a setting changes."""
        return self not in (ModelError.OUTAGE, ModelError.SLOW, ModelError.FOREIGN, ModelError.OTHER)


class Outage(StrEnum):
    """A service that is down and is expected to come back; turns wait for it."""

    MODEL = "model"
    ENGINE = "engine"


class FailureOwner(StrEnum):
    """The part that caused a turn to stay unanswered; it decides which failures are counted."""

    TURN = "turn"
    """The turn's own fault: its attempts are counted, and a task that fails repeatedly is paused."""
    HOST = "host"
    """Something on the host: the turn's attempts are counted, but its task is not blamed."""
    ENGINE = "engine"
    """No container engine answers: an outage, in which no attempt counts."""
    IMAGE = "image"
    """The agents' image is missing: an outage that only a person can end, so turns wait much longer."""
    RESTART = "restart"
    """The host was restarted, or the container was removed: such losses are counted apart from attempts."""


# For a group. Its members can do nothing about the cause, so the text mentions no administration.
REFUSED = "⚠️ I cannot answer at the moment: I cannot think without my model. Whoever runs me knows about it."
REFUSED_TASK = "I cannot think without my model at the moment."
STILL_REFUSED = "⚠️ I cannot answer yet: see above for what is to be done."
"""The reply to an owner who was notified of the reason before."""
NO_IMAGE = f"my container image was missing for {MAX_IMAGE_WAIT_MS // 3_600_000} hours."
WORKS_AGAIN = "✅ The model answers again."
WAITING = {
    Outage.MODEL: "⏳ My model is slow, overloaded or out of reach now. I keep waiting and will answer.",
    Outage.ENGINE: "⏳ I cannot start to work at the moment. I keep trying and will answer.",
}
TOO_LONG = {
    Outage.MODEL: f"my model was overloaded or out of reach for {MAX_OUTAGE_MS // 60_000} minutes.",
    Outage.ENGINE: f"Docker did not answer for {MAX_OUTAGE_MS // 60_000} minutes.",
}


def refusal_cause(cause: ModelError, *, setting: str | None, model: str | None, status: int | None) -> str:
    """Return why the model service did not answer, for the owner, as the middle of a sentence.

    `cause` is a permanent one. `setting` is the name under which `.env` has the key, `model` the requested
    model, `status` the HTTP status; each is None if it is not known.
    """
    code = f" (HTTP {status})" if status else ""
    match cause:
        case ModelError.NO_KEY:
            return "there is no key for the model service"
        case ModelError.KEY_UNREADABLE:
            return "the key of the model service cannot be read from .env"
        case ModelError.KEY_REFUSED:
            return f"the model service refuses {setting or 'the key'}{code}"
        case ModelError.NO_CREDIT:
            return f"the account of {setting or 'the key'} has no credit left at the model service{code}"
        case _:  # UNKNOWN_MODEL
            named = f"the model '{model}'" if model else "the model that the agent chose"
            return f"the model service does not know {named}{code}"


def refusal_fix(cause: ModelError, *, setting: str | None, model: str | None) -> str:
    """Return what the owner can do so that the model service answers again, as a sentence.

    `cause` is a permanent one. `setting` is the name under which `.env` has the key, and `model` the
    requested model; each is None if it is not known.
    """
    match cause:
        case ModelError.NO_KEY:
            name = setting or "ANTHROPIC_API_KEY"
            return f"Put {name}=… into .env, or set ANDY_AGENT=auto."
        case ModelError.KEY_UNREADABLE:
            return "'andy doctor' shows the reason and the fix."
        case ModelError.KEY_REFUSED:
            return f"Put a valid {setting or 'key'} into .env."
        case ModelError.NO_CREDIT:
            return "Add credit to the account, or put the key of another into .env."
        case _ if model:  # UNKNOWN_MODEL, as in the last case
            return "Correct ANDY_MODEL, AGENTS_WORKER_MODEL or the model of the group."
        case _:
            return "Set ANDY_MODEL to a model that the service has, or correct ANTHROPIC_BASE_URL."


MOVED = "⏳ My usual model does not answer: another one goes on with this."
MOVE_NOTICE_AFTER_MS = 10_000
"""Milliseconds of waiting after which a chat gets the text `MOVED` when its turn moves."""


def stand_in_text(
    service: str,
    cause: ModelError,
    *,
    setting: str | None,
    model: str | None,
    status: int | None,
    has_stand_in: bool = True,
) -> str:
    """Return the text to the owner that a service fails: why, whether others answer instead, and the fix.

    `has_stand_in` says that another service of the owner's list answers meanwhile. `setting` is the name
    under which `.env` has the key, `model` the requested model, `status` the HTTP status; each is None if it
    is not known.
    """
    trouble = service_trouble(cause, setting=setting, model=model, status=status)
    others = (
        "The next on the list answers meanwhile." if has_stand_in else "No other on the list answers now."
    )
    return (
        f"⚠️ The model service '{service}' {trouble.cause}. {others} {trouble.fix} I ask it again by myself."
    )


def broke_off_text(service: str) -> str:
    """Return the text to the owner that a model service broke off while it answered a turn.

    It is for a service that answers the host's own short request, and so is used again for the next turn.
    """
    return (
        f"⚠️ The model service '{service}' broke off or was silent in the middle of a turn, and the next on"
        " the list answered it. It answers a short question of mine, so the next turn asks it again. If that"
        " happens often, look into its log, or choose another: 'andy models use SERVICE/MODEL'."
    )


@dataclass(frozen=True, slots=True)
class ServiceTrouble:
    """A service's trouble: the cause as the end of a sentence that names it, and the fix as a sentence."""

    cause: str
    fix: str


def service_trouble(
    cause: ModelError, *, setting: str | None, model: str | None, status: int | None
) -> ServiceTrouble:
    """Return what is wrong with one model service of several, and what the owner can do about it.

    `setting` is the name under which `.env` has its key, `model` the requested model, `status` the HTTP
    status; each is None if it is not known.
    """
    code = f" (HTTP {status})" if status else ""
    match cause:
        case ModelError.OUTAGE:
            return ServiceTrouble(f"does not answer{code}", "That may pass by itself; look whether it runs.")
        case ModelError.FOREIGN:
            fix = "Correct its URL, or put a gateway before it: 'andy models test NAME' shows what it says."
            return ServiceTrouble(f"answers what is not of the Messages API{code}", fix)
        case _:
            why = refusal_cause(cause, setting=setting, model=model, status=status)
            return ServiceTrouble(f"cannot be used: {why}", refusal_fix(cause, setting=setting, model=model))


def refusal_text(cause: ModelError, *, setting: str | None, model: str | None, status: int | None) -> str:
    """Return the text to the owner that questions are not answered: why, and what to do.

    `setting` is the name under which `.env` has the key of the model service, `model` the requested model,
    `status` the HTTP status; each is None if it is not known.
    """
    why = refusal_cause(cause, setting=setting, model=model, status=status)
    fix = refusal_fix(cause, setting=setting, model=model)
    return f"⚠️ I cannot answer: {why}. {fix} I notice it within a minute and go on by myself."
