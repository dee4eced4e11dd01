"""`andy events`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from cyclopts import Parameter

from orchestrator.cli.options import GroupOption, HomeOption

ROW = ("kind", "group", "message", "turn", "attempt", "run", "detail", "reason")


def events(
    group: GroupOption = None,
    *,
    follow: Annotated[
        bool, Parameter(name=["-f", "--follow"], negative="", help="Go on until Ctrl-C.")
    ] = False,
    lines: Annotated[int, Parameter(name=["-n", "--lines"], help="Show at most so many of the latest.")] = 50,
    as_json: Annotated[
        bool, Parameter(name="--json", negative="", help="Print a JSON document a line.")
    ] = False,
    home: HomeOption = None,
) -> None:
    """Show what happened lately on a running Andy, and what happens. Without texts.

    Example: `andy events -f family`
    """
    asyncio.run(_print(home, group=group, lines=lines, follows=follow, as_json=as_json))


async def _print(home: Path | None, *, group: str | None, lines: int, follows: bool, as_json: bool) -> None:
    from orchestrator.cli import terminal

    zone = terminal.zone_of(home)
    async for event in terminal.events(home, group=group, recent=lines, follows=follows):
        print(json.dumps(event, ensure_ascii=False) if as_json else _line(event, zone), flush=True)


def _line(event: dict[str, Any], zone: ZoneInfo) -> str:
    from orchestrator.base.clock import local_second

    kind, *rest = (name for name in ROW if name in event)
    told = {**{name: event[name] for name in rest}, **event.get("data", {})}
    return f"{local_second(event['at_ms'], zone)}  {event[kind]:22}" + "".join(
        f" {name}={told[name]}" for name in told
    )
