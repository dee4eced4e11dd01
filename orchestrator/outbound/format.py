"""What of an agent's text a person may see. Pure."""

from __future__ import annotations

import re

_CLOSED = re.compile(r"<internal\b[^>]*>.*?</internal\s*>", re.DOTALL | re.IGNORECASE)
_UNCLOSED = re.compile(r"<internal\b.*\Z", re.DOTALL | re.IGNORECASE)
_STRAY = re.compile(r"</internal\s*>", re.IGNORECASE)


def for_people(text: str) -> str:
    """Take out every `<internal>…</internal>`; one that is never closed hides the rest."""
    return _STRAY.sub("", _UNCLOSED.sub("", _CLOSED.sub("", text))).strip()
