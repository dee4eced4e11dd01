"""Groups: the chats that were seen, those that have an agent, and what each agent may use."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from operator import itemgetter
from urllib.parse import urlsplit

from pydantic import ValidationError
from starlette.responses import Response

from orchestrator.calendars import service as following
from orchestrator.domain.errors import AndyError, BadRequest
from orchestrator.domain.values import Folder, Group, Role
from orchestrator.groups import access, changes, model_choices, people, roles, secret_addresses, settings
from orchestrator.groups.name_and_trigger import NameTaken, ProfileRefused
from orchestrator.groups.registration import RESERVED, Registration
from orchestrator.groups.secret_addresses import AddressRefused
from orchestrator.groups.settings import ConfigRefused
from orchestrator.groups.skills import available
from orchestrator.reports import costs
from orchestrator.reports import groups as group_reports
from orchestrator.store.access import secret_addresses as address_store
from orchestrator.store.access.requests import AccessState
from orchestrator.store.access.secret_addresses import AddressKind
from orchestrator.store.conversation import chats
from orchestrator.store.database import Tx
from orchestrator.store.groups import changes as group_changes
from orchestrator.store.groups import groups
from orchestrator.store.groups.changes import GroupChange, GroupPart
from orchestrator.store.schedule import followed_calendars
from orchestrator.store.settings import model_services
from orchestrator.web.api.groups import AccessAnswer, FurtherChat
from orchestrator.web.bodies import BAD_FIELD, whole_number
from orchestrator.web.console import settings_form
from orchestrator.web.console.form_tokens import SentForm, typed
from orchestrator.web.console.page import Page, View

WAITING = AccessState.WAITING.value
FOLLOWED_FIELDS = ("address", "name", "user", "password_env", "notice")
"""Fields of the form with which a group follows a calendar."""

CHANGEABLE = (Role.MEMBER, Role.GUEST)
"""The roles whose rules a group may change."""
RULE_NAMES = tuple(
    permission.value for permission in roles.Permission if permission is not roles.Permission.COMMAND
)
"""The rules that are a yes or a no."""


async def show(view: View) -> Response:
    """Show the registered groups and the chats without a group."""
    return await _show(view)


async def register(view: View, form: SentForm) -> Response:
    """Register the chat in the form as a group; a refused form is shown again with the reason."""
    if not (form.text("name") or form.text("folder")):
        view.error = view.t(".wrong_name")
        return await _show(view, values=form)
    try:
        registration = Registration(
            folder=form.text("folder") or await _free_folder(view, form.text("name")),
            jid=form.text("jid") or None,
            name=form.text("name") or None,
            trigger=form.text("trigger") or None,
            requires_trigger=not form.is_set("every"),
        )
        await view.api.groups.register(registration)
    except NameTaken as error:
        view.error = view.t(".name_taken", folder=error.folder)
        return await _show(view, values=form)
    except (AndyError, ValidationError) as error:
        view.error = _refusal_text(view, error)
        return await _show(view, values=form)
    name = registration.name or registration.folder
    return view.done(f"/groups/{registration.folder}", view.t(".registered", name=name))


def _refusal_text(view: View, error: AndyError | ValidationError) -> str:
    """Return why a form is refused, in the page's language where there are words for it."""
    return view.why(error if isinstance(error, AndyError) else BadRequest(BAD_FIELD))


async def _free_folder(view: View, name: str) -> str:
    """Return a name for the folder of a new group, made from the group's name, that no group has."""
    async with view.host.reader.reading() as tx:
        # In lower case: on some file systems `Work` and `work` are the same folder.
        taken = {group.folder.lower() for group in await groups.every(tx)} | RESERVED
    return access.free_folder(name, taken)


async def add_chat(view: View, form: SentForm) -> Response:
    """Add the chat in the form to a group, unless the group has it already.

    With `notify`, it receives the group's notifications from now on. A refused form is shown on the page of
    the group.
    """
    folder = view.path_param("folder")
    try:
        further_chat = FurtherChat(jid=form.text("jid"), is_notify_chat=form.is_set("notify"))
        await view.api.groups.add_chat(folder, further_chat)
    except (BadRequest, ValidationError) as error:
        view.error = _refusal_text(view, error)
        return await _show_group(view)
    return view.done(f"/groups/{folder}#chats", view.t(".chats_kept"))


async def give_role(view: View, form: SentForm) -> Response:
    """Give the person with an address a role in a group, or with `default` take their role away.

    Raises `BadRequest` if there is no such role or person.
    """
    folder, role_name = view.path_param("folder"), form.text("role")
    if role_name not in (*Role, people.DEFAULT):
        raise BadRequest("A role is owner, member, guest, or default.")
    role = None if role_name == people.DEFAULT else Role(role_name)
    by, now_ms = view.signed_in.session.browser, view.now_ms
    async with view.host.database.transaction() as tx:
        await people.set_role(tx, folder, form.raw("address"), role, by=by, now_ms=now_ms)
        undo = await undo_path(tx, folder, now_ms)
    return view.done(f"/groups/{folder}#people", view.t(".role_given"), undo=undo)


async def save_rules(view: View, form: SentForm) -> Response:
    """Store what members and guests of a group may do, and what they may spend.

    Only differences from the rules of all groups are stored. A refused form leads back to the page of the
    group.
    """
    folder, by, now_ms = view.path_param("folder"), view.signed_in.session.browser, view.now_ms
    rules_by_role: dict[str, dict[str, object]] = {}
    for role in CHANGEABLE:
        usual = roles.RULES[role]
        sent = {name: form.is_set(f"{role}_{name}") for name in RULE_NAMES}
        rules_by_role[role] = {
            name: is_allowed for name, is_allowed in sent.items() if is_allowed != (name in usual.may)
        }
        spend = form.text(f"{role}_spend") or str(usual.spend)
        if spend != str(usual.spend):
            # A text that is no number is passed on as it is, so that the validation says what is wrong.
            percent = whole_number(spend)
            rules_by_role[role]["spend"] = spend if percent is None else percent
    # Without differences, the setting becomes None, which removes it.
    different = {role: rules for role, rules in rules_by_role.items() if rules}
    try:
        async with view.host.database.transaction() as tx:
            # Called for its error: the form shows no rules that cannot be read, and must not replace them.
            settings.to_change(await groups.known(tx, folder))
            await changes.configure(tx, folder, {"roles": different or None}, by=by, now_ms=now_ms)
            undo = await undo_path(tx, folder, now_ms)
    except ConfigRefused as error:
        view.error = str(error)
        return await _show_group(view)
    return view.done(f"/groups/{folder}#people", view.t(".rules_saved"), undo=undo)


async def join_group(view: View, form: SentForm) -> Response:
    """Add a chat that was seen, and has no group, to the group chosen beside it."""
    group = await view.api.groups.add_chat(form.text("folder"), FurtherChat(jid=form.text("jid")))
    return view.done(f"/groups/{group['folder']}#chats", view.t(".chats_kept"))


async def remove_chat(view: View, form: SentForm) -> Response:
    """Remove the chat in the form from a group."""
    folder = view.path_param("folder")
    removed = await view.api.groups.remove_chat(folder, form.text("jid"))
    return view.done(f"/groups/{folder}#chats", str(removed["text"]))


async def show_group(view: View) -> Response:
    """Show the group that the address names, with its settings."""
    return await _show_group(view)


async def save_settings(view: View, form: SentForm) -> Response:
    """Save the form of a group's name, trigger and settings.

    If one field cannot be used, nothing is saved, and the form is shown again with the reason at each such
    field. Raises `ChangedSince` if somebody else has changed the group since the form was shown.
    """
    folder = view.path_param("folder")
    async with view.host.reader.reading() as tx:
        group = await groups.known(tx, folder)
        services = await model_services.every(tx)
    has_gateway = view.services.models.has_gateway()
    sent = settings_form.read(
        form, group, services, has_gateway=has_gateway, explain=partial(_explained, view)
    )
    if sent.errors:
        return await _show_group(view, form=form, errors=sent.errors)
    by, now_ms = view.signed_in.session.browser, view.now_ms
    try:
        async with view.host.database.transaction() as tx:
            # Compared in the transaction that writes: nobody can change the group in between.
            group = await groups.known(tx, folder)
            form.check_unchanged(settings_form.state(group, partial(_label, view)))
            before = settings.of(group).to_fields()
            # `sent` has the settings `ELSEWHERE` as they were read above, and they may have changed since.
            changed = {
                name: sent.fields.get(name)
                for name in {**before, **sent.fields}
                if name not in settings_form.ELSEWHERE and before.get(name) != sent.fields.get(name)
            }
            # Both changes are stored as one step, which one undo reverses.
            async with group_changes.in_one_step(tx, group.folder):
                after = await changes.set_profile(tx, folder, sent.profile, by=by, now_ms=now_ms)
                if changed:
                    await changes.configure(tx, folder, changed, by=by, now_ms=now_ms)
            undo = await undo_path(tx, folder, now_ms)
    except NameTaken as error:
        return await _show_group(view, form=form, errors={"name": view.t(".name_taken", folder=error.folder)})
    done_text = _changes_text(view, group, after, is_configured=bool(changed))
    return view.done(f"/groups/{group.folder}", done_text or view.t(".same"), undo=undo)


def _changes_text(view: View, before: Group, after: Group, *, is_configured: bool) -> str:
    """Return sentences that say how a group's name and trigger changed, and its settings if `is_configured`.

    Empty if nothing changed.
    """
    sentences = []
    if after.name != before.name:
        sentences.append(view.t(".saved_name", name=after.name))
    if after.trigger != before.trigger:
        name, trigger = view.host.settings.assistant_name, after.trigger
        key = ".saved_trigger" if trigger else ".saved_no_trigger"
        sentences.append(view.t(key, trigger=trigger or "", name=name))
    if after.requires_trigger != before.requires_trigger:
        sentences.append(view.t(".saved_called" if after.requires_trigger else ".saved_every"))
    return " ".join([*sentences, *([view.t(".saved")] if is_configured else [])])


async def undo_path(tx: Tx, folder: str, at_ms: int) -> str:
    """Return the address of the form that undoes the change of a group that was made at `at_ms`.

    Empty if the newest change has another time: then this request has changed nothing.
    """
    newest = next(iter(await group_changes.views(tx, Folder(folder))), None)
    # A change has the time of its request: with another time, the newest one is of an earlier request.
    is_of_now = newest is not None and newest["at_ms"] == at_ms
    return f"/groups/{folder}/changes/{newest['number']}/undo" if newest and is_of_now else ""


async def put_back(view: View, _: SentForm) -> Response:
    """Undo a change of a group, by the folder and number in the address, and those made with it in one step.

    If that is refused, the change is shown with the reason.
    """
    folder, number, now_ms = view.path_param("folder"), int(view.path_param("number")), view.now_ms
    home, by = view.host.home.root, view.signed_in.session.browser
    try:
        async with view.host.database.transaction() as tx:
            parts = await changes.put_back(
                tx, home, folder, number, check_settings=_model_check(view), by=by, now_ms=now_ms
            )
            path_to_undo_this = await undo_path(tx, folder, now_ms)
    except (ConfigRefused, changes.GroupChangeRefused, ProfileRefused) as error:
        view.error = view.why(error)
        return await show_change(view)
    path = f"/mind?group={folder}" if GroupPart.MEMORY in parts else f"/groups/{folder}"
    return view.done(path, view.t(".undone"), undo=path_to_undo_this)


def _model_check(view: View) -> changes.CheckSettings:
    """Return a function that checks whether the models in restored settings can still be used."""
    return partial(model_choices.check_settings, has_gateway=view.services.models.has_gateway())


def _explained(view: View, field: str, reason: str) -> str:
    """Return why a field's value is refused, in the page's language; without such a text, return `reason`."""
    key = f"groups.wrong_{field}"
    return view.t(key, reason=reason) if view.console.catalogue.has(key) else reason


def _option(view: View, field: str, word: str) -> str:
    """Return the text of a setting's option in the page's language; without one, the option `word` itself."""
    return _label(view, f"option_{field}_{word}", word)


def _label(view: View, key: str, default: str = "") -> str:
    """Return the text of this page with this key; without one, `default` or else the key.

    A setting that was just added may have no text yet.
    """
    return view.t(f"groups.{key}") if view.console.catalogue.has(f"groups.{key}") else default or key


async def change_settings(view: View, form: SentForm) -> Response:
    """Replace a group's settings by the text in a form, once the person has confirmed the differences."""
    return await _change_part(view, form, GroupPart.SETTINGS)


async def change_profile(view: View, form: SentForm) -> Response:
    """Replace a group's name and trigger by an earlier state, which the form has as text."""
    return await _change_part(view, form, GroupPart.PROFILE)


async def _change_part(view: View, form: SentForm, part: GroupPart) -> Response:
    """Replace a part of a group by the text in a form.

    A refusal is shown on the page of the group, beside the refused text if that is the settings.
    """

    async def refuse(error: str) -> Response:
        """Show the group again with an error, and with the typed settings."""
        view.error = error
        return await _show_group(view, text=form.raw("text") if part is GroupPart.SETTINGS else None)

    return await change_group_text(
        view, form, part, path=f"/groups/{view.path_param('folder')}", refuse=refuse
    )


async def change_group_text(
    view: View, form: SentForm, part: GroupPart, *, path: str, refuse: Callable[[str], Awaitable[Response]]
) -> Response:
    """Replace a part of a group by the text in a form.

    Without `sure` in the form, the differences are shown, with a form that sends the same text with `sure`.
    With `sure`, the text is stored; then, or if there are no differences, the browser is redirected to
    `path`. `undoes` in the form is the number of a stored change that the text undoes. `refuse(reason)`
    returns the answer to a text that cannot be used.

    Raises:
        ChangedSince: somebody else has changed the part since the form was shown.
    """
    folder, text = view.path_param("folder"), form.raw("text")
    home = view.host.home.root

    def check(present: str) -> None:
        """Raise `ChangedSince` if the part is no longer the text that the form was made from."""
        form.check_unchanged({part.value: present})

    try:
        if not form.is_set("sure"):
            async with view.host.reader.reading() as tx:
                before = await changes.current(tx, home, folder, part)
            check(before)
            after = changes.checked(part, text)
            if after == before:
                return view.done(path, view.t("groups.same"))
            return await _show_diff(view, part, before, after)
        undoes, now_ms = form.text("undoes"), view.now_ms
        async with view.host.database.transaction() as tx:
            # `check` is called with the text of this moment, before anything is written.
            await changes.apply(
                tx,
                home,
                folder,
                part,
                text,
                check=check,
                check_settings=_model_check(view),
                by=view.signed_in.session.browser,
                now_ms=now_ms,
                undoes=whole_number(undoes),
            )
            undo = await undo_path(tx, folder, now_ms)
    except (ConfigRefused, changes.GroupChangeRefused, ProfileRefused) as error:
        return await refuse(str(error))
    return view.done(path, view.t(f"groups.kept_{part.value}"), undo=undo)


async def show_change(view: View) -> Response:
    """Show what a change of a group did, and what would be different now if it were undone."""
    async with view.host.reader.reading() as tx:
        group = await groups.known(tx, view.path_param("folder"))
        change = await group_changes.get(tx, group.folder, int(view.path_param("number")))
        present = await changes.current(tx, view.host.home.root, group.folder, change.part)
    return await _show_diff(view, change.part, present, change.before, change=change)


async def _show_diff(
    view: View, part: GroupPart, present: str, after: str, *, change: GroupChange | None = None
) -> Response:
    """Show the lines in which the `present` text of a part of a group differs from the proposed text `after`.

    `change` is a stored change that the proposal undoes; its own lines are shown, too. None for a new change.
    """
    return view.render(
        "groups_change.html",
        folder=view.path_param("folder"),
        part=part.value,
        now=present,
        after=after,
        lines=await asyncio.to_thread(changes.diff, present, after),
        change=change,
        did=await asyncio.to_thread(changes.diff, change.before, change.after) if change else [],
    )


async def add_address(view: View, form: SentForm, *, kind: AddressKind) -> Response:
    """Create a secret address of a group for a program; only the next page shows it, once.

    With `asks` in the form, the texts that a hook brings are requests to the agent (`is_request`), not only
    messages that it may read. A refused form is shown on the page of the group.
    """
    folder = view.path_param("folder")
    try:
        async with view.host.database.transaction() as tx:
            created = await secret_addresses.add(
                tx,
                kind,
                folder,
                name=form.text("name"),
                is_request=form.is_set("asks"),
                now_ms=view.now_ms,
            )
    except AddressRefused as error:
        view.error = view.t(f".address_wrong_{error.field}")
        return await _show_group(view, address_form=form)
    url = view.request.url
    # Behind a reverse proxy, programs can use its origin only, and not that of this request.
    origin = view.host.settings.andy_web_origin or f"{url.scheme}://{url.netloc}"
    address = f"{origin}{created.path}"
    return view.done(f"/groups/{folder}#{kind}s", view.t(f".{kind}_added", address=address))


async def revoke_address(view: View, _: SentForm, *, kind: AddressKind) -> Response:
    """Revoke the secret address with the number in the path, so that its program can no longer use it."""
    await view.host.database.write(
        lambda tx: secret_addresses.revoke(tx, kind, int(view.path_param("number")), now_ms=view.now_ms)
    )
    return view.done(f"/groups/{view.path_param('folder')}#{kind}s", view.t(f".{kind}_revoked"))


async def follow_calendar(view: View, form: SentForm) -> Response:
    """Make a group follow the calendar in the form, which is read soon after.

    A refused form is shown on the page of the group.
    """
    folder = view.path_param("folder")
    # Minutes before an event at which a message is sent; 0 means no message. A text that is no number becomes
    # -1, which `checked` refuses.
    written_minutes = whole_number(form.text("notice"))
    minutes = -1 if written_minutes is None else written_minutes
    try:
        async with view.host.database.transaction() as tx:
            calendar = await following.checked(
                tx,
                folder,
                name=form.text("name"),
                address=form.text("address"),
                user=form.text("user") or None,
                password_env=form.text("password_env") or None,
                notice_minutes=minutes or None,
            )
            await following.follow(tx, calendar, now_ms=view.now_ms)
    except following.CalendarRefused as error:
        view.error = view.t(f".follow_wrong_{error.field}")
        return await _show_group(view, calendar=typed(form, *FOLLOWED_FIELDS))
    return view.done(f"/groups/{folder}#calendars", view.t(".followed"))


async def unfollow_calendar(view: View, form: SentForm) -> Response:
    """Make a group no longer follow the calendar that the form names."""
    folder = view.path_param("folder")
    async with view.host.database.transaction() as tx:
        await following.unfollow(tx, folder, form.text("name"), now_ms=view.now_ms)
    return view.done(f"/groups/{folder}#calendars", view.t(".unfollowed"))


async def decide_access(view: View, form: SentForm) -> Response:
    """Register, ignore or block a chat that has called Andy and has no group.

    Raises `BadRequest` for any other decision, or if there is no such request.
    """
    number, decision = access.number_of(form.text("request")), form.text("decision")
    if decision not in access.DECISIONS:
        raise BadRequest(view.t(".wrong_decision"))
    answer = AccessAnswer(decision=decision)
    decided = await view.api.groups.decide_access(number, answer, by=view.signed_in.session.browser)
    group = decided["group"]
    if group is None:
        return view.done("/groups#seen", view.t(f".access_{decision}"))
    return view.done(f"/groups/{group['folder']}", view.t(".registered", name=group["name"]))


async def remove(view: View, _: SentForm) -> Response:
    """Remove the registration of the group that the address names."""
    removed = await view.api.groups.unregister(view.path_param("folder"))
    return view.done("/groups", str(removed["text"]))


async def _show(view: View, *, values: SentForm | None = None) -> Response:
    """Show the page of all groups, with the form that registers one.

    The form has the values of one that was refused (`values`), or else the `jid` and `name` of the query.
    """
    async with view.host.reader.reading() as tx:
        rows = await group_reports.group_rows(tx)
        chats_without_group = [chat for chat in await group_reports.chat_rows(tx) if chat["group"] is None]
    waiting_requests = [
        chat["request"]
        for chat in chats_without_group
        if chat["request"] and chat["request"]["state"] == WAITING
    ]
    typed_values = typed(values, "folder", "jid", "name", "trigger")
    typed_values["jid"] = typed_values["jid"] or view.query("jid")
    typed_values["name"] = typed_values["name"] or view.query("name")
    return view.render(
        "groups.html",
        rows=rows,
        calling=sorted(waiting_requests, key=itemgetter("number")),
        # The chats without a group whose request does not wait for a decision.
        seen=[chat for chat in chats_without_group if chat["request"] not in waiting_requests],
        given=typed_values,
        every=values is not None and values.is_set("every"),
    )


async def _show_group(
    view: View,
    *,
    form: SentForm | None = None,
    errors: Mapping[str, str] | None = None,
    text: str | None = None,
    calendar: Mapping[str, str] | None = None,
    address_form: SentForm | None = None,
) -> Response:
    """Show a group with its settings. If a form of the page was refused, it is shown again as it was typed.

    `form` is the refused form of the settings, with the reasons in `errors` by field; `text` is refused
    settings as one text; `calendar` has the refused fields of a followed calendar; `address_form` is the
    refused form of a secret address. At most one of the four is given.
    """
    folder = view.path_param("folder")
    async with view.host.reader.reading() as tx:
        group = await groups.known(tx, folder)
        its_chats = await chats.of_group(tx, group)
        chats_without_group = [chat for chat in await group_reports.chat_rows(tx) if chat["group"] is None]
        changed = await group_reports.change_rows(tx, folder)
        budgets = await costs.budgets(tx, now_ms=view.now_ms, zone=view.console.zone, folder=group.folder)
        services = await model_services.every(tx)
        feeds = await address_store.every(tx, AddressKind.CALENDAR, group.folder)
        hooks = await address_store.every(tx, AddressKind.HOOK, group.folder)
        followed = await followed_calendars.every(tx, group.folder)
        seen_people = await people.of_group(tx, group.folder)
    config = settings.of(group).to_fields()
    text_now = settings.text_of(group.container_config)
    values = settings_form.typed_values(form) if form else settings_form.stored_values(config)
    fields = settings_form.fields()
    host = view.host.settings
    return view.render(
        "groups_one.html",
        status=422 if errors or view.error else 200,
        group=group,
        profile={
            "name": form.raw("name") if form else group.name,
            "trigger": form.raw("trigger") if form else group.trigger or "",
            "every": form.is_set("every") if form else not group.requires_trigger,
        },
        fields=fields,
        option=partial(_option, view),
        others=[fields[name] for name in settings_form.others()],
        values=values,
        errors=defaultdict(str, errors or {}),
        # "More settings" is open if one of them is set, or was refused.
        is_more_open=any(values[name] for name in settings_form.others() if name != "skills")
        or not values["skills_all"]
        or any(name in (errors or {}) for name in settings_form.others()),
        state=settings_form.state(group, partial(_label, view)),
        models=[f"{service.name}/{service.model}" for service in services if service.model],
        skills=sorted({*await asyncio.to_thread(available, view.host.home.root), *values["skills"]}),
        defaults={
            "model": host.andy_model or "",
            "web_search": host.andy_web_search.value,
            "timezone": view.console.zone.key,
            "agent": host.andy_agent,
        },
        text=text_now,
        typed_text=text_now if text is None else text,
        budgets=budgets,
        feeds=feeds,
        followed=followed,
        hooks=hooks,
        address_name=address_form.raw("name") if address_form else "",
        is_asking=address_form is not None and address_form.is_set("asks"),
        server_of=lambda address: urlsplit(address).hostname or address,
        calendar=calendar or {**dict.fromkeys(FOLLOWED_FIELDS, ""), "notice": "30"},
        changed=changed,
        chats=its_chats,
        free=chats_without_group,
        people=seen_people,
        role_rights={role.value: roles.rights_of(role, settings.of(group)) for role in CHANGEABLE},
        rule_names=RULE_NAMES,
    )


PAGE = Page(
    name="groups",
    order=50,
    shows={
        "/groups": show,
        "/groups/{folder}": show_group,
        "/groups/{folder}/changes/{number:number}": show_change,
    },
    changes={
        "/groups": register,
        "/groups/join": join_group,
        "/groups/requests": decide_access,
        "/groups/{folder}/form": save_settings,
        "/groups/{folder}/chats": add_chat,
        "/groups/{folder}/chats/remove": remove_chat,
        **{
            f"/groups/{{folder}}/{kind}s{end}": partial(change, kind=kind)
            for kind in AddressKind
            for end, change in (("", add_address), ("/{number:number}/revoke", revoke_address))
        },
        "/groups/{folder}/people": give_role,
        "/groups/{folder}/rules": save_rules,
        "/groups/{folder}/follow": follow_calendar,
        "/groups/{folder}/unfollow": unfollow_calendar,
        "/groups/{folder}/remove": remove,
        "/groups/{folder}/settings": change_settings,
        "/groups/{folder}/profile": change_profile,
        "/groups/{folder}/changes/{number:number}/undo": put_back,
    },
    live={"calendars": ("calendar.*",), "calling": ("access.*", "group.*")},
)
