"""Channels: how the connection to each messenger is, pairing with a phone, and the chats of this machine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from markupsafe import Markup
from starlette.responses import Response

from orchestrator.channels import discovery, switching
from orchestrator.channels.description import ChannelDescription, LoginQuestion
from orchestrator.channels.registry import PairingService
from orchestrator.channels.status import ChannelStatus
from orchestrator.domain.errors import AndyError, BadRequest, SettingError
from orchestrator.domain.values import ChatJid
from orchestrator.home import settings as config
from orchestrator.reports import groups as group_reports
from orchestrator.web.api.pairing import inline_picture
from orchestrator.web.console.form_tokens import SentForm
from orchestrator.web.console.page import Page, View

COLOURS: dict[str, Literal["ok", "warn", "bad", "quiet"]] = {
    "connected": "ok",
    "unpaired": "quiet",
    "logged_out": "bad",
    "banned": "bad",
    "outdated": "bad",
    "unusable": "bad",
}
"""The colour of each state of a connection; all other states will soon become another one."""
MOMENTS = ("connected_since_ms", "last_receipt_ms", "last_message_ms", "next_try_ms")


async def show(view: View) -> Response:
    """Show the connections to messengers, and the messengers that can be added."""
    return await _show(view)


async def pair(view: View, form: SentForm) -> Response:
    """Request a code that pairs a messenger with a phone: a QR code, or letters to type on the phone.

    It is letters if the form has the phone's number, which the form with `by_number` requires. The next page
    shows the code. Raises `BadRequest` for a messenger that is not paired by phone.
    """
    service = view.api.pairings.get(form.text("channel"))
    if service is None:
        raise BadRequest(view.t(".not_paired_by_phone"))
    phone = form.text("phone")
    if form.is_set("by_number") and not phone:
        return await _show(view, error=view.t(".number_missing"))
    try:
        await service.request_code(phone)
    except BadRequest as refused:
        return await _show(view, error=str(refused), phone=form.raw("phone"))
    return view.done("/channels")


async def add(view: View, form: SentForm) -> Response:
    """Log in to a messenger with the answers of the form, and switch it on from the next start.

    A refused login is shown on the page. Raises `BadRequest` if there is no such messenger.
    """
    name = form.text("channel")
    if name not in await asyncio.to_thread(discovery.names):
        raise BadRequest(view.t(".no_channel"))
    channel = await asyncio.to_thread(discovery.find, name)
    answers = {
        question.name: form.text(f"{name}-{question.name}") or question.default
        for question in channel.questions
    }
    try:
        missing = next((question for question in channel.questions if not answers[question.name]), None)
        if missing is not None:
            raise BadRequest(view.t(".answer_missing", question=_question(view, channel, missing)))
        login_text = await switching.switch_on(view.host.home, channel, answers)
    except AndyError as error:
        view.error = view.why(error) if isinstance(error, BadRequest) else str(error)
        return await _show(view, form=form)
    is_on = name in {messenger.name for messenger in view.services.channels.messengers}
    added_text = view.t(".logged_in" if is_on else ".added", channel=channel.title)
    return view.done("/channels", f"{login_text} {added_text}".strip())


def _question(view: View, channel: ChannelDescription, question: LoginQuestion) -> str:
    """Return the text of a login question in the page's language; its own text if the page has none."""
    key = f"channels.question_{channel.name}_{question.name}"
    return view.t(key) if view.console.catalogue.has(key) else question.text


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMessenger:
    """A messenger that is off, with its description, or with the reason why it cannot be used."""

    name: str
    channel: ChannelDescription | None = None
    problem: str = ""
    is_wanted: bool = False
    """Whether it is on from the next start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionCard:
    """A messenger that is on, as the page shows it."""

    channel: ChannelDescription
    status: ChannelStatus
    colour: str
    state: str
    account: str
    advice: str
    moments: list[tuple[str, int]]
    """The `MOMENTS` that the report has, each with its time in epoch milliseconds."""


async def _show(view: View, *, error: str = "", phone: str = "", form: SentForm | None = None) -> Response:
    """Show the page. `error` says why the pairing of the phone number `phone` was refused.

    `form` is a login form that was refused; the reason for that is in `view.error`.
    """
    statuses = (await view.api.status())["channels"]
    progress = {name: await _progress(service) for name, service in view.api.pairings.items()}
    cards = [
        _card(
            view,
            messenger,
            statuses.get(messenger.name, {}),
            account=progress.get(messenger.name, {}).get("account", ""),
        )
        for messenger in view.services.channels.messengers
    ]
    chats = await view.host.reader.read(group_reports.chat_rows)
    installed_messengers = await asyncio.to_thread(discovery.installed)
    # The name of the messenger of each chat, in the order of `chats`.
    messenger_by_chat = [messenger_of(chat, installed_messengers) for chat in chats]
    return view.render(
        "channels.html",
        status=422 if error or form else 200,
        error=error,
        phone=phone,
        cards=cards,
        pairings=[
            # The third value says whether the login has ended although its pairing still looks paired: the
            # library removes an ended login from its file only later.
            (card.channel, pairing, card.status.state == "logged_out" and pairing["state"] == "paired")
            for card in cards
            if (pairing := progress.get(card.channel.name)) is not None
        ],
        others=await asyncio.to_thread(
            _others, view.host.home.root, {messenger.name for messenger in view.services.channels.messengers}
        ),
        question=partial(_question, view),
        # Of a refused login form, the texts of its fields and its messenger.
        given=lambda name: form.raw(name) if form else "",
        asked=form.text("channel") if form else "",
        qr=_qr,
        # For each messenger the number of its chats, and of those that have a group.
        seen=Counter(messenger_by_chat),
        answered=Counter(
            messenger for chat, messenger in zip(chats, messenger_by_chat, strict=True) if chat["group"]
        ),
    )


def messenger_of(chat: Mapping[str, Any], messengers: Collection[ChannelDescription]) -> str:
    """Return the name of the messenger that owns a chat's address; else of the one that reported it. Pure.

    Empty if neither is known.
    """
    owner = next((messenger.name for messenger in messengers if messenger.owns(ChatJid(chat["jid"]))), "")
    return owner or chat["channel"] or ""


def _others(home: Path, on: Collection[str]) -> list[OtherMessenger]:
    """Return the installed messengers that are not on, with the reason if one cannot be used. Blocks.

    `on` are the names of those that are on. A messenger that is on whatever the settings say is left out. A
    messenger `is_wanted` if the settings of the next start name it; none is if they cannot be read.
    """
    try:
        wanted: Collection[str] = config.load(home).channels
    except SettingError:
        wanted = ()
    others = []
    for name in discovery.names():
        if name in on:
            continue
        try:
            messenger = discovery.find(name)
        except SettingError as error:
            others.append(OtherMessenger(name=name, problem=str(error)))
            continue
        if not messenger.is_always_on:
            others.append(OtherMessenger(name=name, channel=messenger, is_wanted=name in wanted))
    return others


def _card(view: View, channel: ChannelDescription, status: dict[str, Any], *, account: str) -> ConnectionCard:
    """Return a messenger that is on, as the page shows it.

    `status` is the report of its connection, `account` the account of its pairing; empty if it has none.
    """
    channel_status = ChannelStatus.model_validate(status)
    has_text = view.console.catalogue.has(f"channels.state_{channel_status.state}")
    return ConnectionCard(
        channel=channel,
        status=channel_status,
        colour=COLOURS.get(channel_status.state, "warn"),
        state=view.t(f".state_{channel_status.state}")
        if has_text
        else channel_status.state.replace("_", " "),
        account=channel_status.account or account,
        advice=advice(view, channel, status),
        moments=[(name, at_ms) for name in MOMENTS if (at_ms := getattr(channel_status, name))],
    )


def advice(view: View, channel: ChannelDescription, status: Mapping[str, Any]) -> str:
    """Return what to do about a messenger that is disconnected, in the page's language; empty if nothing.

    `status` is the report of its connection. A channel has advice in other languages for some of its states;
    for any other, the report's own advice, in English, is returned.
    """
    english = str(status.get("advice", ""))
    translation = channel.advice.get(str(status.get("state")), {}).get(view.language)
    return (
        # Not `format`: another package's description may contain other braces.
        translation.replace("{reason}", status.get("last_disconnect") or "–")
        if english and translation
        else english
    )


def _qr(content: str) -> Markup:
    """Return the QR code that contains a text, as HTML."""
    # Safe as HTML: the library draws the code with numbers, and writes no text of its content.
    return Markup(inline_picture(content))  # noqa: S704


async def _progress(service: PairingService) -> dict[str, Any]:
    """Return the state of a messenger's pairing; one that cannot be read is shown as failed."""
    try:
        return (await service.progress()).model_dump()
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
    changes={"/channels/pair": pair, "/channels/add": add},
    live={"connections": ("channel.*",), "pairing": ("channel.*",)},
)
