"""`andy hooks`: addresses by which programs post texts to one group."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypedDict

from cyclopts import App, Parameter

from orchestrator.base import installation
from orchestrator.cli.options import HomeOption, JsonOption, read, show

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from orchestrator.groups.secret_addresses import NewAddress
    from orchestrator.store.access.secret_addresses import SecretAddress
    from orchestrator.store.database import Tx

hooks_app = App(name="hooks")


class HookView(TypedDict):
    """A hook, an address to which programs post, as `--json` prints it, without its secret."""

    id: int
    group: str
    name: str
    """The sender of the texts that come by the hook."""
    asks: bool
    """Whether each text calls the group's agent."""
    since_ms: int
    """The time when the hook was made, in epoch milliseconds."""
    used_ms: int | None
    """The time of the last use, in epoch milliseconds; None if it was never used."""
    uses: int


class NewHookView(HookView):
    """A hook that was made just now, with its address, which contains the secret."""

    address: str


@hooks_app.command
def add(
    group: Annotated[str, Parameter(help="A group, by its folder name: see 'andy groups list'.")],
    /,
    *,
    name: Annotated[
        str, Parameter(help="The sender of the texts, such as door: they come from 'door (hook)'.")
    ],
    asks: Annotated[
        bool,
        Parameter(negative="", help="Let each text call the group's agent; without it, no text does."),
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Make an address to which a program posts texts, which become messages of the group.

    Whoever has the address can do that, and nothing else: 10 texts a minute and 200 a day, of at most 4,000
    characters. It is shown only now. Works with Andy down.

    Example: `andy hooks add family --name door`

    Example: `andy hooks add work --name CI --asks`
    """
    from orchestrator.cli import terminal

    # First, for its error: an address that was made and cannot be shown would be of no use to anybody.
    origin = terminal.web_origin(home)
    new_address = asyncio.run(terminal.change(home, partial(_add, group, name, asks)))
    row: NewHookView = {**_hook_row(new_address.address), "address": f"{origin}{new_address.path}"}
    show(row, _new_hook_lines, as_json=as_json)


@hooks_app.command(name="list")
def list_hooks(
    group: Annotated[str | None, Parameter(help="A group, by its folder name. [all groups]")] = None,
    /,
    *,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """List the hooks, without their secrets: how often each was used, and when last. Works with Andy down.

    Example: `andy hooks list family`
    """
    from orchestrator.cli import terminal

    read(home, partial(_hook_rows, group), partial(_hook_lines, zone=terminal.zone_of(home)), as_json=as_json)


@hooks_app.command
def revoke(
    hook: Annotated[int, Parameter(help="The hook, by its id in 'andy hooks list'.")],
    /,
    *,
    home: HomeOption = None,
) -> None:
    """Revoke the address of a hook at once: it takes no more texts. Works with Andy down.

    Example: `andy hooks revoke 3`
    """
    from orchestrator.cli import terminal

    revoked = asyncio.run(terminal.change(home, partial(_revoke, hook)))
    print(f"Hook {revoked.id} of '{revoked.folder}' is revoked: its address takes nothing any more.")


async def _add(group: str, name: str, asks: bool, tx: Tx, now_ms: int) -> NewAddress:  # noqa: FBT001
    """Make and return the address of a hook, to which a program posts texts for a group.

    `name` is the sender of these texts. `asks` says that each text calls the group's agent.
    """
    from orchestrator.groups import secret_addresses
    from orchestrator.store.access.secret_addresses import AddressKind

    return await secret_addresses.add(tx, AddressKind.HOOK, group, name=name, is_request=asks, now_ms=now_ms)


async def _revoke(address_id: int, tx: Tx, now_ms: int) -> SecretAddress:
    """Make the address of a hook useless, and return the address."""
    from orchestrator.groups import secret_addresses
    from orchestrator.store.access.secret_addresses import AddressKind

    return await secret_addresses.revoke(tx, AddressKind.HOOK, address_id, now_ms=now_ms)


async def _hook_rows(group: str | None, tx: Tx) -> list[HookView]:
    """Return the hooks of a group as rows for `--json`; those of all groups if it is None."""
    from orchestrator.store.access import secret_addresses
    from orchestrator.store.access.secret_addresses import AddressKind
    from orchestrator.store.groups import groups

    folder = None if group is None else (await groups.known(tx, group)).folder
    return [_hook_row(address) for address in await secret_addresses.every(tx, AddressKind.HOOK, folder)]


def _hook_row(hook: SecretAddress) -> HookView:
    """Return a hook, an address to which programs post, as a row for `--json`, without its secret."""
    return {
        "id": hook.id,
        "group": hook.folder,
        "name": hook.name,
        "asks": hook.is_request,
        "since_ms": hook.created_ms,
        "used_ms": hook.used_ms,
        "uses": hook.uses,
    }


def _new_hook_lines(row: NewHookView) -> list[str]:
    """Return the lines that explain a new hook to a person, with its address."""
    revoke = installation.command("hooks", "revoke", str(row["id"]))
    effect = "calls the agent" if row["asks"] else "is a message that does not call the agent"
    return [
        row["address"],
        f"A text posted to it {effect} in '{row['group']}', from '{row['name']} (hook)'. Try it:",
        f"  curl -d text=hello {row['address']}",
        f"It is shown only now. To make it useless: {revoke}",
        "docs/hooks.md says what it takes, and how other machines reach it.",
    ]


def _hook_lines(rows: list[HookView], *, zone: ZoneInfo) -> list[str]:
    """Return hooks, addresses to which programs post, as the lines of a table, with times in `zone`.

    The column `asks` says whether each posted text calls the group's agent.
    """
    from orchestrator.base.clock import local_minute
    from orchestrator.base.tables import table

    if not rows:
        return ["There is no hook: see 'andy hooks add --help'."]
    return table(
        ("id", "group", "name", "asks", "since", "used", "last used"),
        [
            (
                str(row["id"]),
                row["group"],
                row["name"],
                "yes" if row["asks"] else "no",
                local_minute(row["since_ms"], zone),
                str(row["uses"]),
                "never" if row["used_ms"] is None else local_minute(row["used_ms"], zone),
            )
            for row in rows
        ],
    )
