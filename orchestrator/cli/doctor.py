"""`andy doctor`."""

from __future__ import annotations

import asyncio
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.options import FAILED, HomeOption, JsonOption, show


def doctor(
    *,
    online: Annotated[
        bool,
        Parameter(negative="", help="Ask the model service whether it takes the credential: one small call."),
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> int:
    """Look for what is wrong, and say how to mend it. Works with Andy up or down; 1 when something is.

    Example: `andy doctor --online`
    """
    from orchestrator.cli import checkup

    found = asyncio.run(checkup.examine(home, is_online=online))
    show(checkup.as_rows(found), checkup.lines, as_json=as_json)
    return FAILED if any(one.is_bad for one in found) else 0
