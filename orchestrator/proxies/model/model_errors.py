"""What the answer of the model service means for whoever waits for it. Pure."""

from __future__ import annotations

import json

from orchestrator.domain.failures import ModelError

_NO_CREDIT = ("credit balance", "billing")
_OVERLOADED_STREAM = b"event: error"


def classify(status: int, body: bytes = b"") -> ModelError | None:
    """Judge an answer by its status and the beginning of its body; None when the model answers.

    A key that is refused, an account without credit and a model that is not there are refused again however
    often they are asked. A limit that is reached and trouble of the service pass by themselves. Anything else
    is the request's own fault.
    """
    if 200 <= status < 300:
        # An overloaded service may say so only after its good status.
        return ModelError.OUTAGE if body.startswith(_OVERLOADED_STREAM) else None
    match status:
        case 401 | 403:
            return ModelError.KEY_REFUSED
        case 402:
            return ModelError.NO_CREDIT
        case 400 if any(word in _message(body).lower() for word in _NO_CREDIT):
            return ModelError.NO_CREDIT
        case 404:
            return ModelError.UNKNOWN_MODEL
        case 408 | 429:
            return ModelError.OUTAGE
        case _ if status >= 500:
            return ModelError.OUTAGE
        case _:
            return ModelError.OTHER


def _message(body: bytes) -> str:
    """The words and the kind of an error in the form of the Messages API."""
    try:
        error = json.loads(body).get("error")
        return f"{error.get('type', '')} {error.get('message', '')}"
    except (ValueError, AttributeError, RecursionError):
        return ""
