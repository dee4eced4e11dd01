"""Deliver a message to the host, retrying while the host cannot take it; make JSON storable.

WhatsApp has its own version: it reads a message again for each attempt, while its bridge process runs.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import structlog

from orchestrator.domain.errors import BadRequest, StoreError
from orchestrator.domain.protocols import Receive
from orchestrator.domain.values import Inbound

log = structlog.get_logger(__name__)

TAKE_TRIES = 5
"""Attempts to deliver a message to the host before the message is skipped."""
TAKE_PAUSE_SECONDS = 5.0


async def hand_in(receive: Receive, message: Inbound, *, cursor: str | None) -> bool:
    """Deliver a message to the host through `receive`, and return whether the host has stored it.

    While the database cannot be used, this tries again without end. A message that the host refuses, or that
    fails `TAKE_TRIES` times for other reasons, is logged and skipped: then the result is False.

    `cursor` is the position in the messenger's stream of messages that is stored with it; None stores none.
    """
    log_fields = {"channel": message.channel, "message": message.id}
    tries = 0
    while tries < TAKE_TRIES:
        try:
            await receive(message, cursor=cursor)
        except BadRequest as error:
            log.warning("channel.message_refused", **log_fields, reason=str(error))
            return False
        except StoreError as error:
            # Not the message's fault, so it does not count as an attempt.
            log.warning("channel.message_waits", **log_fields, reason=str(error))
        except Exception:
            # An odd message is skipped after some attempts, so that it does not stop those behind it.
            tries += 1
            log.exception("channel.message_not_taken", **log_fields, attempt=tries)
        else:
            return True
        await asyncio.sleep(TAKE_PAUSE_SECONDS)
    return False


def storable(document: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object whose texts a database accepts: half a surrogate pair in them becomes `?`. Pure.

    Raises:
        RecursionError, TypeError, ValueError: the object cannot be written as JSON.
    """
    text = json.dumps(document, ensure_ascii=False)
    encodable = text.encode("utf-8", "replace").decode()
    return document if encodable == text else dict(json.loads(encodable))
