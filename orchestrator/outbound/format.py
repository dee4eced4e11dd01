"""What of an agent's text a person may see. Pure."""

from __future__ import annotations

import re

from orchestrator.domain import schedule_tag

_TAG = re.compile(r"<(/?)internal(?![\w-])", re.IGNORECASE)


def for_people(text: str) -> str:
    """Take out every `<internal>…</internal>`, nested ones too; one that is never closed hides the rest.

    What an agent says to its loop goes too.
    """
    shown = schedule_tag.strip(_shown(text))
    # Taking one out may have joined what stood around it into another: nobody writes so in good faith.
    forged = _TAG.search(shown)
    return (shown[: forged.start()] if forged else shown).strip()


def _shown(text: str) -> str:
    """What stands outside of tags, read once from the start."""
    shown: list[str] = []
    depth = read_to = 0
    for tag in _TAG.finditer(text):
        if tag.start() < read_to:
            continue
        if depth == 0:
            shown.append(text[read_to : tag.start()])
        end = text.find(">", tag.end())
        if end < 0:
            return "".join(shown)
        read_to = end + 1
        if tag[1]:
            depth = max(0, depth - 1)
        elif text[end - 1] != "/":
            depth += 1
    if depth == 0:
        shown.append(text[read_to:])
    return "".join(shown)
