"""The word by which an agent says that nothing is to be said. Pure."""

from __future__ import annotations

WORD = "SILENT"
_DRESS = " \t\r\n*_`\"'“”.!()[]"


def is_silence(text: str) -> bool:
    """Whether the word is all there is, however it is dressed: `SILENT`, `**SILENT**.`"""
    return text.strip(_DRESS) == WORD
