"""Recognises the word by which an agent replies that nothing is to be sent. Pure."""

from __future__ import annotations

WORD = "SILENT"
_DRESS = " \t\r\n*_`\"'“”.!()[]"


def is_silence(text: str) -> bool:
    """Return whether the text is only this word, apart from formatting: `SILENT`, `**SILENT**.`"""
    return text.strip(_DRESS) == WORD
