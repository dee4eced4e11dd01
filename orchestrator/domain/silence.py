"""Recognises the word by which an agent replies that nothing is to be sent. Pure."""

from __future__ import annotations

WORD = "SILENT"
_DRESS = " \t\r\n*_`\"'“”.!()[]"
"""Blanks, marks of formatting and punctuation around the word."""


def is_silence(text: str) -> bool:
    """Return whether a text is only `SILENT`, apart from formatting, as in `**SILENT**.`"""
    return text.strip(_DRESS) == WORD
