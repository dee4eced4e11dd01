"""The keys of reasons that the host stores as English text: a page of another language has words for each."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.containers import frame_effects, reattach, start
from orchestrator.domain import failures
from orchestrator.groups import roles
from orchestrator.inbound import amendments, intake, senders, triggers
from orchestrator.loop import cycle_starter, service
from orchestrator.queue import retries, stop_requests
from orchestrator.store.conversation import messages

# By the constants of the code that stores them, so that no text is written twice.
KEYS: Mapping[str, str] = {
    triggers.NO_TRIGGER: "no_trigger",
    triggers.EMPTY: "empty",
    triggers.HOOK: "hook",
    triggers.ONLY_OWNER: "only_owner",
    senders.NOT_ALLOWED: "not_allowed",
    roles.MAY_NOT_CALL: "may_not_call",
    messages.OWN_MESSAGE: "own_message",
    intake.UNREADABLE: "unreadable",
    intake.AT_ONCE: "at_once",
    amendments.NOT_ITS_SENDER: "not_its_sender",
    amendments.UNKNOWN: "of_unknown",
    amendments.DELETED: "deleted",
    amendments.DELETED_BY_OTHERS: "deleted_by_others",
    amendments.WITHDRAWN: "withdrawn",
    amendments.EDIT_OF_READ: "edit_of_read",
    amendments.ASKED_IN_ANOTHER_TURN: "edit_of_others",
    amendments.FILE_CAME: "file_came",
    failures.STOPPED_BY_HAND: "stopped_by_hand",
    stop_requests.REASON: "stopped_in_chat",
    frame_effects.SESSION_GONE: "session_gone",
    start.NO_GROUP: "no_group",
    reattach.LOST.reason or "": "lost",
    reattach.STOPPED_IDLE.reason or "": "restarted",
    retries.TOO_MANY_RESTARTS: "too_many_restarts",
    cycle_starter.STOP_REASON: "made_way",
    service.SWITCHED_ON: "switched_on",
    failures.NO_IMAGE: "no_image",
    failures.TOO_LONG[failures.Outage.MODEL]: "model_out",
    failures.TOO_LONG[failures.Outage.ENGINE]: "engine_out",
    failures.REFUSED_TASK: "no_model",
}


def key_of(reason: str) -> str | None:
    """Return the key, in the catalogue of texts, of a reason that the host stores as English text. Pure.

    None for a text that is not one of Andy's own.
    """
    key = KEYS.get(reason)
    return None if key is None else f"reasons.{key}"
