"""Names the causes for which turns are not answered, and words them for groups and the owner. Pure."""

from __future__ import annotations

from enum import StrEnum

MAX_OUTAGE_MS = 15 * 60_000
"""So long a turn waits for an outage to end, counted from when it met it."""
TELL_OUTAGE_AFTER_MS = 30_000
LONGEST_OUTAGE_PAUSE_MS = 60_000


class ModelError(StrEnum):
    """Why the model service did not answer a request."""

    NO_KEY = "no_key"
    KEY_REFUSED = "key_refused"
    NO_CREDIT = "no_credit"
    UNKNOWN_MODEL = "unknown_model"
    OUTAGE = "outage"
    """It is overloaded, broken, out of reach, or silent: that passes by itself."""
    OTHER = "other"
    """The request itself was wrong."""

    @property
    def is_permanent(self) -> bool:
        """Whether it comes again at every request, until a key or a setting changes."""
        return self not in (ModelError.OUTAGE, ModelError.OTHER)


class Outage(StrEnum):
    """What a turn waits for that is down and comes back by itself."""

    MODEL = "model"
    ENGINE = "engine"


class FailureOwner(StrEnum):
    """Who is to blame that a turn was not answered, which decides what is counted."""

    TURN = "turn"
    """Its own: its attempts are counted, and a task that fails so time and again is paused."""
    HOST = "host"
    """Something on the host: its attempts are counted, its task is not blamed."""
    ENGINE = "engine"
    """No container engine answers: an outage, in which no attempt counts."""
    RESTART = "restart"
    """The host was restarted, or the container was removed: such losses are counted apart from attempts."""


# For a group. Whoever asks there can do nothing about it, so there is no word of administration in it.
REFUSED = "⚠️ I cannot answer at the moment: I cannot think without my model. Whoever runs me knows about it."
REFUSED_TASK = "I cannot think without my model at the moment."
STILL_REFUSED = "⚠️ I cannot answer yet: see above for what is to be done."
"""For the owner, who was told why."""
WORKS_AGAIN = "✅ The model answers again."
WAITING = {
    Outage.MODEL: "⏳ My model is overloaded or out of reach at the moment. I keep trying and will answer.",
    Outage.ENGINE: "⏳ I cannot start to work at the moment. I keep trying and will answer.",
}
TOO_LONG = {
    Outage.MODEL: f"my model was overloaded or out of reach for {MAX_OUTAGE_MS // 60_000} minutes.",
    Outage.ENGINE: f"Docker did not answer for {MAX_OUTAGE_MS // 60_000} minutes.",
}


def refusal_cause(cause: ModelError, *, setting: str | None, model: str | None, status: int | None) -> str:
    """Say to the owner what is wrong, as the middle of a sentence."""
    code = f" (HTTP {status})" if status else ""
    match cause:
        case ModelError.NO_KEY:
            return "there is no key for the model service"
        case ModelError.KEY_REFUSED:
            return f"the model service refuses {setting or 'the key'}{code}"
        case ModelError.NO_CREDIT:
            return f"the account of {setting or 'the key'} has no credit left at the model service{code}"
        case _:
            named = f"the model '{model}'" if model else "the model that the agent chose"
            return f"the model service does not know {named}{code}"


def refusal_mend(cause: ModelError, *, setting: str | None, model: str | None) -> str:
    """Say what the owner can do about it, as a sentence."""
    match cause:
        case ModelError.NO_KEY:
            return "Put ANTHROPIC_API_KEY=… into .env, or set ANDY_AGENT=auto."
        case ModelError.KEY_REFUSED:
            return f"Put a valid {setting or 'key'} into .env."
        case ModelError.NO_CREDIT:
            return "Add credit to the account, or put the key of another into .env."
        case _ if model:
            return "Correct ANDY_MODEL, AGENTS_WORKER_MODEL or the model of the group."
        case _:
            return "Set ANDY_MODEL to a model that the service has, or correct ANTHROPIC_BASE_URL."


def refusal_notice(cause: ModelError, *, setting: str | None, model: str | None, status: int | None) -> str:
    """Tell the owner, once, that questions are not answered, why, and what to do."""
    why = refusal_cause(cause, setting=setting, model=model, status=status)
    mend = refusal_mend(cause, setting=setting, model=model)
    return f"⚠️ I cannot answer: {why}. {mend} I notice it within a minute and go on by myself."
