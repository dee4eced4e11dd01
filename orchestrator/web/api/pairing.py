"""`/whatsapp/pair`: the code that a phone scans, as a page, an SVG or JSON, for hosts without a screen.

Each channel that is paired with a phone has such an address under its name.
"""

from __future__ import annotations

import html
import io
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from orchestrator.channels.registry import PairingService
from orchestrator.domain.errors import BadRequest
from orchestrator.web.bodies import parse_object, read_body

REFRESH_SECONDS = 3
MAX_BODY_BYTES = 1024
HTML = "text/html; charset=utf-8"
PRIVATE = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}

Told = dict[str, Any]
"""`{state, qr, letters, until_ms, account, text}`; `state` is idle, starting, showing, paired, expired or
failed."""


def pairing_routes(channel: str, service: PairingService) -> list[Route]:
    """`GET` shows the code and asks for the first one; `POST` asks for another."""
    address = f"/{channel}/pair"

    async def show(request: Request) -> Response:
        told = (await service.look()).model_dump()
        if told["state"] == "idle":
            told = (await service.ask()).model_dump()
        return _shown(told, request.headers.get("accept", ""))

    async def ask(request: Request) -> Response:
        is_browser = "text/html" in request.headers.get("accept", "")
        try:
            told = (await service.ask(_phone_in(await read_body(request, limit=MAX_BODY_BYTES)))).model_dump()
        except BadRequest as refused:
            if not is_browser:
                raise
            told = {"state": "failed", "qr": "", "letters": "", "text": str(refused)}
            return Response(page(told), status_code=refused.http_status, media_type=HTML, headers=PRIVATE)
        if is_browser:
            return RedirectResponse(address, status_code=303)
        return JSONResponse(told, status_code=202, headers=PRIVATE)

    return [Route(address, show), Route(address, ask, methods=["POST"])]


def _phone_in(body: bytes) -> str:
    """The number in a JSON object or in a form; empty when there is none."""
    text = body.decode(errors="replace").strip()
    phone = parse_object(body).get("phone") if text.startswith("{") else parse_qs(text).get("phone", [""])[0]
    return str(phone or "").strip()


def _shown(told: Told, accept: str) -> Response:
    if "application/json" in accept:
        return JSONResponse(told, headers=PRIVATE)
    is_moving = told["state"] in ("starting", "showing")
    headers = PRIVATE | ({"Refresh": str(REFRESH_SECONDS)} if is_moving else {})
    if "text/html" in accept:
        return Response(page(told), media_type=HTML, headers=headers)
    return Response(picture(told), media_type="image/svg+xml", headers=headers)


def picture(told: Told) -> str:
    """The code as an SVG; where there is none to scan, the letters or what to know instead. Pure."""
    if told["qr"]:
        import segno

        out = io.BytesIO()
        segno.make(told["qr"], error="l", micro=False).save(out, kind="svg", scale=6, border=4, light="white")
        return out.getvalue().decode()
    words = told["letters"] or told["text"]
    lines = [words[start : start + 48] for start in range(0, len(words), 48)] or [""]
    size = 40 if told["letters"] else 18
    rows = "".join(
        f'<text x="20" y="{40 + number * 28}">{html.escape(line)}</text>' for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="520" height="{60 + 28 * len(lines)}"'
        f' font-family="sans-serif" font-size="{size}"><rect width="100%" height="100%" fill="white"/>'
        f"{rows}</svg>"
    )


def inline_picture(qr: str) -> str:
    """The QR code as an element of a page, as wide as the page says. Pure."""
    import segno

    code = segno.make(qr, error="l", micro=False)
    return str(code.svg_inline(border=4, light="white", omitsize=True))


_PAGE = """\
<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Andy: pair WhatsApp</title>
<meta name="viewport" content="width=device-width">
<style>body {{ font: 1.1rem/1.5 sans-serif; max-width: 34rem; margin: 2rem auto; padding: 0 1rem }}
svg {{ width: 26rem; max-width: 100% }} .letters {{ font: 700 2.5rem monospace }}</style>
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


def page(told: Told) -> str:
    """The page for a browser. Pure."""
    code = ""
    if told["letters"]:
        code = f'<p class="letters">{html.escape(told["letters"])}</p>'
    elif told["qr"]:
        code = inline_picture(told["qr"])
    form = _FORM if told["state"] in ("expired", "failed", "idle") else ""
    return _PAGE.format(text=html.escape(told["text"]), code=code, form=form)
