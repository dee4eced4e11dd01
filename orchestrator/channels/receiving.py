"""Hand a message in to the host, and try that again while the host cannot take it; make JSON storable.

WhatsApp does so for itself: there a message is read anew for each try, while its bridge lives.
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
"""Tries to hand a message to the host before the message is skipped."""
TAKE_PAUSE_SECONDS = 5.0


async def hand_in(receive: Receive, message: Inbound, *, cursor: str | None) -> bool:
    """Hand a message in, with several tries; return whether the host has it.

    `cursor` is the place in the messenger's stream that is stored with it; None stores none.
    """
    about = {"channel": message.channel, "message": message.id}
    tries = 0
    while tries < TAKE_TRIES:
        try:
            await receive(message, cursor=cursor)
        except BadRequest as refused:
            log.warning("channel.message_refused", **about, reason=str(refused))
            return False
        except StoreError as error:
            # Not the message's fault, so it counts as no try.
            log.warning("channel.message_waits", **about, reason=str(error))
        except Exception:
            tries += 1
            log.exception("channel.message_not_taken", **about, attempt=tries)
        else:
            return True
        await asyncio.sleep(TAKE_PAUSE_SECONDS)
    return False


def storable(document: dict[str, Any]) -> dict[str, Any]:
    """Return an object of JSON in text that a database takes: half a surrogate pair becomes `?`. Pure.

    Raises what `json` raises for an object that it cannot write.
    """
    text = json.dumps(document, ensure_ascii=False)
    whole = text.encode("utf-8", "replace").decode()
    return document if whole == text else dict(json.loads(whole))
