"""`/whatsapp/pair`: the code that a phone scans, as a page, an SVG or JSON, for hosts without a screen.

Each channel whose login is paired with a phone has such an address under its name.
"""

from __future__ import annotations

import html
import io
import textwrap
from base64 import b64encode
from hashlib import sha256
from typing import NotRequired, TypedDict, cast
from urllib.parse import parse_qs

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from orchestrator.channels.registry import PairingService
from orchestrator.domain.errors import BadRequest
from orchestrator.web.bodies import parse_object, read_body

REFRESH_SECONDS = 3
"""Seconds after which a browser loads the page again while the code may change."""
MAX_BODY_BYTES = 1024
HTML = "text/html; charset=utf-8"
STYLE = (
    "body { font: 1.1rem/1.5 sans-serif; max-width: 34rem; margin: 2rem auto; padding: 0 1rem }\n"
    "svg { width: 26rem; max-width: 100% } .letters { font: 700 2.5rem monospace }"
)
POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
PRIVATE = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PairingView(TypedDict):
    """The state of a pairing: idle, starting, showing, paired, expired or failed, with its code and text."""

    state: str
    qr: str
    letters: str
    until_ms: NotRequired[int]
    account: NotRequired[str]
    text: str


def pairing_routes(channel: str, service: PairingService) -> list[Route]:
    """Return the routes that pair the messenger `channel` with a phone, at `/CHANNEL/pair`.

    `GET` shows the code that the phone scans, and `POST` requests a new one.
    """
    address = f"/{channel}/pair"

    async def show(request: Request) -> Response:
        """Answer with the state of the pairing and its code; start a pairing if none is under way."""
        progress = _view(await service.progress())
        if progress["state"] == "idle":
            progress = _view(await service.request_code())
        return _pairing_answer(progress, request.headers.get("accept", ""))

    async def ask(request: Request) -> Response:
        """Start a pairing. With a phone number in the body, the code has letters, else it is a QR code.

        A browser is redirected to the page with the code, or reads there why it was refused. Other clients
        get JSON.
        """
        is_browser = "text/html" in request.headers.get("accept", "")
        try:
            phone = _phone_in(await read_body(request, limit=MAX_BODY_BYTES))
            progress = _view(await service.request_code(phone))
        except BadRequest as refused:
            if not is_browser:
                raise
            progress = {"state": "failed", "qr": "", "letters": "", "text": str(refused)}
            return Response(page(progress), status_code=refused.http_status, media_type=HTML, headers=PRIVATE)
        if is_browser:
            return RedirectResponse(address, status_code=303)
        return JSONResponse(progress, status_code=202, headers=PRIVATE)

    return [Route(address, show), Route(address, ask, methods=["POST"])]


def _view(progress: BaseModel) -> PairingView:
    """Return a messenger's report on the pairing as a dict, in the form in which the API sends it."""
    return cast("PairingView", progress.model_dump())


def _phone_in(body: bytes) -> str:
    """Return the phone number in a body, a JSON object or a form; empty if it has none. Raises `BadBody`."""
    text = body.decode(errors="replace").strip()
    if text.startswith("{"):
        return str(parse_object(body).get("phone") or "").strip()
    return parse_qs(text).get("phone", [""])[0].strip()


def _pairing_answer(progress: PairingView, accept: str) -> Response:
    """Return the answer with the state of a pairing, in a form that the header `Accept` names.

    It is JSON, a page for a browser, or for any other client an SVG with the code.
    """
    if "application/json" in accept:
        return JSONResponse(progress, headers=PRIVATE)
    may_change = progress["state"] in ("starting", "showing")
    # The page has no script, so the browser is told by a header to load it again while the code may change.
    headers = PRIVATE | ({"Refresh": str(REFRESH_SECONDS)} if may_change else {})
    if "text/html" in accept:
        return Response(page(progress), media_type=HTML, headers=headers)
    return Response(picture(progress), media_type="image/svg+xml", headers=headers)


def picture(progress: PairingView) -> str:
    """Return an SVG picture of the QR code, or else of the letters, or else of the state's text. Pure."""
    if progress["qr"]:
        import segno

        buffer = io.BytesIO()
        segno.make(progress["qr"], error="l", micro=False).save(
            buffer, kind="svg", scale=6, border=4, light="white"
        )
        return buffer.getvalue().decode()
    text = progress["letters"] or progress["text"]
    # 48 characters of the size 18 fit into the width of 520, and a line is 28 high. The letters of a code are
    # few, so that they fit in the size 40, too.
    lines = textwrap.wrap(text, 48) or [""]
    size = 40 if progress["letters"] else 18
    rows = "".join(
        f'<text x="20" y="{40 + number * 28}">{html.escape(line)}</text>' for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="520" height="{60 + 28 * len(lines)}"'
        f' font-family="sans-serif" font-size="{size}"><rect width="100%" height="100%" fill="white"/>'
        f"{rows}</svg>"
    )


def inline_picture(qr: str) -> str:
    """Return a text as a QR code: an SVG element whose width the page sets. Pure."""
    import segno

    code = segno.make(qr, error="l", micro=False)
    return str(code.svg_inline(border=4, light="white", omitsize=True))


_PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Andy: pair WhatsApp</title>
<meta name="viewport" content="width=device-width">
<style>{style}</style>
<h1>Pair WhatsApp</h1>
<p role="status">{text}</p>
{code}{form}
</html>
"""
_FORM = """\
<form method="post"><p><label>By the phone's number instead of a QR code:
<input name="phone" type="tel" placeholder="+49 170 1234567"></label>
<button>Show a new code</button></p></form>
"""


def page(progress: PairingView) -> str:
    """Return the HTML page for a browser with the state of a pairing, and the code if there is one. Pure.

    If no pairing is under way, the page has a form that requests a new code.
    """
    code = ""
    if progress["letters"]:
        code = f'<p class="letters">{html.escape(progress["letters"])}</p>'
    elif progress["qr"]:
        code = inline_picture(progress["qr"])
    form = _FORM if progress["state"] in ("expired", "failed", "idle") else ""
    return _PAGE.format(style=STYLE, text=html.escape(progress["text"]), code=code, form=form)
