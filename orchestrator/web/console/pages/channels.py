"""Channels: how the connection to WhatsApp is, pairing with a phone, and the chats of this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from markupsafe import Markup
from starlette.responses import Response

from orchestrator.channels.whatsapp.status import ChannelStatus
from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.reports import groups as group_reports
from orchestrator.web.api.pairing import inline_picture
from orchestrator.web.console.forms import SentForm
from orchestrator.web.console.page import Page, View

COLOURS: dict[str, Literal["ok", "warn", "bad", "quiet"]] = {
    "connected": "ok",
    "unpaired": "quiet",
    "logged_out": "bad",
    "banned": "bad",
    "outdated": "bad",
    "unusable": "bad",
}
"""A state of the connection → its colour; others are on their way to something else."""
MOMENTS = ("connected_since_ms", "last_receipt_ms", "last_message_ms", "next_try_ms")


async def show(view: View) -> Response:
    return await _show(view)


async def pair(view: View, form: SentForm) -> Response:
    """Ask WhatsApp for a QR code, or for the letters that the phone of a number takes."""
    phone = form.text("phone")
    if form.is_set("by_number") and not phone:
        return await _show(view, error=view.t(".number_missing"))
    try:
        await view.api.pairing.ask(phone)
    except BadRequest as refused:
        return await _show(view, error=str(refused), phone=form.raw("phone"))
    return view.done("/channels")


async def _show(view: View, *, error: str = "", phone: str = "") -> Response:
    found = await view.api.status()
    whatsapp = ChannelStatus.model_validate(found["channels"].get("whatsapp", {}))
    progress = await _progress(view)
    async with view.web.host.reader.reading() as tx:
        chats = await group_reports.chat_rows(tx)
    state = whatsapp.state
    known = view.console.catalogue.has(f"channels.state_{state}")
    # The library takes a login out of its file some time after WhatsApp has ended it.
    is_ended = state == "logged_out" and progress["state"] == "paired"
    return view.render(
        "channels.html",
        status=422 if error else 200,
        error=error,
        phone=phone,
        whatsapp=whatsapp,
        colour=COLOURS.get(state, "warn"),
        state=view.t(f".state_{state}") if known else state.replace("_", " "),
        advice=advice(view, whatsapp.model_dump()),
        account=whatsapp.account or progress["account"],
        moments=[(name, getattr(whatsapp, name)) for name in MOMENTS if getattr(whatsapp, name)],
        progress=progress,
        is_ended=is_ended,
        # Numbers that the library draws: nothing of the code's content is written into the page.
        qr=Markup(inline_picture(progress["qr"])) if progress["qr"] else None,  # noqa: S704
        seen=Counter(one["channel"] for one in chats),
        answered=Counter(one["channel"] for one in chats if one["group"]),
    )


def advice(view: View, status: Mapping[str, Any]) -> str:
    """Return what to do about a connection that is down, in the language of the page; empty when it is up."""
    key = f"channels.advice_{status.get('state')}"
    if status.get("advice") and view.console.catalogue.has(key):
        return view.t(key, reason=status.get("last_disconnect") or "–")
    return str(status.get("advice", ""))


async def _progress(view: View) -> dict[str, Any]:
    """Return how far pairing is; that the login cannot be read is told as a pairing that failed."""
    try:
        return (await view.api.pairing.look()).model_dump()
    except AndyError as error:
        return {
            "state": "failed",
            "qr": "",
            "letters": "",
            "until_ms": None,
            "account": "",
            "text": f"{error}",
        }


PAGE = Page(
    name="channels",
    order=90,
    shows={"/channels": show},
    changes={"/channels/pair": pair},
    live={"whatsapp": ("channel.*",), "pairing": ("channel.*",)},
)
