"""Now: whether everything works, who is at work, and what waits."""

from __future__ import annotations

from starlette.responses import Response

from orchestrator.web.console.page import Page, View

WORK = ("turn.*", "run.*", "container.*", "message.*", "host.*", "command.*")


async def show(view: View) -> Response:
    return view.render("now.html", status_found=await view.api.status())


PAGE = Page(name="now", order=10, shows={"/now": show}, live={"work": WORK})
