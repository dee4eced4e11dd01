"""Recognises the word by which an agent says that nothing is to be sent. Pure."""

from __future__ import annotations

WORD = "SILENT"
_DRESS = " \t\r\n*_`\"'“”.!()[]"


def is_silence(text: str) -> bool:
    """Return whether the word is all of the text, apart from marks around it: `SILENT`, `**SILENT**.`"""
    return text.strip(_DRESS) == WORD
