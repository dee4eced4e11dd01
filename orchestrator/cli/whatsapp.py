"""`andy whatsapp`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

from cyclopts import App, Parameter

from orchestrator.cli.options import HomeOption, JsonOption, show

whatsapp_app = App(name="whatsapp")


@whatsapp_app.command
def pair(
    *,
    phone: Annotated[
        str | None, Parameter(help="Show a code for the phone of this number, +49 170 …, in place of a QR.")
    ] = None,
    anew: Annotated[
        bool, Parameter(negative="", help="Put the login that is there aside first; only with Andy down.")
    ] = False,
    home: HomeOption = None,
) -> int:
    """Pair with a phone: shows a QR code until it is scanned or has expired. Works with Andy up or down.

    Example: `andy whatsapp pair --phone "+49 170 1234567"`
    """
    from orchestrator.cli import pairing

    return asyncio.run(pairing.pair(home, phone=phone or "", anew=anew))


@whatsapp_app.command
def status(*, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Tell who is paired, since when it is connected, and what was wrong last. Works with Andy down.

    Example: `andy whatsapp status`
    """
    from orchestrator.cli import pairing, terminal

    lines = partial(pairing.status_lines, zone=terminal.zone_of(home))
    show(asyncio.run(pairing.status(home)), lines, as_json=as_json)
