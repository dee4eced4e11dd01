"""Find the role of a sender by their stored addresses, and assign roles to people."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from orchestrator.base.tables import short
from orchestrator.base.terminal_escaping import all_visible
from orchestrator.domain.errors import BadRequest
from orchestrator.domain.values import HOOK_PREFIX, Group, Inbound, Message, Role, is_hook, person_of
from orchestrator.groups import changes, person_names, roles, settings
from orchestrator.groups.roles import EVERYBODY
from orchestrator.store.access import secret_addresses
from orchestrator.store.access.secret_addresses import AddressKind
from orchestrator.store.conversation import chats
from orchestrator.store.database import Tx
from orchestrator.store.groups import groups
from orchestrator.store.people import people

DEFAULT = "default"
"""The word that removes a role."""
MAX_LISTED = 20
"""People whom a refusal lists."""
MAX_SHOWN_CHARS = 100


class UnknownPerson(BadRequest):
    """Nobody of a group has this address."""

    code = "unknown_person"


class AmbiguousPerson(BadRequest):
    """Several people of a group have this name."""

    code = "ambiguous_person"
    http_status = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPerson:
    """A person of a group with their role and all addresses that the messenger reports as theirs."""

    address: str
    name: str
    role: Role
    has_own_role: bool
    """Whether they have a role of their own, not everybody's."""
    aliases: tuple[str, ...]
    since_ms: int | None
    """When they were first seen there (epoch milliseconds); None if they were not seen yet."""

    @property
    def addresses(self) -> frozenset[str]:
        """All known addresses of this person."""
        return frozenset({self.address, *self.aliases})


async def role_in(tx: Tx, group: Group, address: str, *, alias: str | None = None, is_from_me: bool) -> Role:
    """Return the role of a person in a group, by their address as the messenger reports it.

    `alias` is another address that the messenger reports for them, or None; all addresses that are known as
    theirs count. `is_from_me` says that the owner of the messenger's account wrote the message.
    """
    config = settings.of(group)
    if is_from_me or not config.people:
        return roles.role_of(group, config, (address,), is_from_me=is_from_me)
    addresses = await people.addresses_of(tx, address)
    if alias is not None:
        addresses |= await people.addresses_of(tx, alias)
    return roles.role_of(group, config, addresses, is_from_me=False)


async def roles_in(tx: Tx, group: Group, sent: Iterable[Message]) -> list[Role]:
    """Return the roles that the senders of messages have in a group, in the order of the messages."""
    role_by_sender: dict[tuple[str, bool], Role] = {}
    result = []
    for message in sent:
        key = (message.sender, message.is_from_me)
        if key not in role_by_sender:
            role_by_sender[key] = await role_in(tx, group, message.sender, is_from_me=message.is_from_me)
        result.append(role_by_sender[key])
    return result


async def asked_alone(tx: Tx, requests: Collection[Message], message: Inbound) -> bool:
    """Return whether the sender of `message` sent all of the `requests`, under any of their addresses.

    False if there are no requests.
    """
    addresses = await people.addresses_of(tx, message.sender)
    if message.sender_alias is not None:
        addresses |= await people.addresses_of(tx, message.sender_alias)
    return bool(requests) and all(request.sender in addresses for request in requests)


async def note_sender(tx: Tx, group: Group, message: Inbound, *, now_ms: int) -> None:
    """Record who wrote in a group, and another address that the messenger reports as theirs."""
    await people.note(tx, group.folder, message.sender, message.sender_name, now_ms=now_ms)
    if message.sender_alias is not None and message.sender_alias != message.sender:
        await people.note_alias(tx, message.sender_alias, message.sender)


async def addresses_of(tx: Tx, address: str) -> frozenset[str]:
    """Return all known addresses of the person who has this one, itself included."""
    return await people.addresses_of(tx, address)


async def first_known_seq(tx: Tx, group: Group, address: str) -> int | None:
    """Return the number of the first message that a person may read in a group: the first since they joined.

    None for somebody who was never seen there.
    """
    return await people.first_known_seq(tx, group.folder, await people.addresses_of(tx, address))


async def of_group(tx: Tx, folder: str) -> list[GroupPerson]:
    """Return the people of a group with their roles, and last an entry for everybody else.

    These are the people who were seen in the group, and those to whom its settings give a role. A person with
    several addresses is returned once, under the first of them, with the name of the one they used last.

    Raises:
        UnknownGroup: there is no such group.
    """
    group = await groups.known(tx, folder)
    config = settings.of(group)
    seen = {person.address: person for person in await people.of_group(tx, group.folder)}
    persons: list[GroupPerson] = []
    shown: set[str] = set()
    for address in [*seen, *(listed for listed in config.people if listed != EVERYBODY)]:
        if address in shown:
            continue
        addresses = await people.addresses_of(tx, address)
        shown |= addresses
        records = [seen[known] for known in addresses if known in seen]
        persons.append(
            GroupPerson(
                address=address,
                name=records[0].name
                if len(records) == 1
                else await people.newest_name(tx, group.folder, addresses),
                role=roles.role_of(group, config, addresses, is_from_me=False),
                has_own_role=not addresses.isdisjoint(config.people),
                aliases=tuple(sorted(addresses - {address})),
                since_ms=min((record.since_ms for record in records), default=None),
            )
        )
    everybody = GroupPerson(
        address=EVERYBODY,
        name="",
        role=roles.role_of(group, config, (), is_from_me=False),
        has_own_role=EVERYBODY in config.people,
        aliases=(),
        since_ms=None,
    )
    return [*persons, everybody]


async def known_people(tx: Tx, folder: str) -> list[GroupPerson]:
    """Return the people of a group with their roles, as `of_group`, but without the entry for everybody else.

    Hooks, which are addresses of programs, are left out, too. Raises `UnknownGroup`.
    """
    listed = await of_group(tx, folder)
    return [person for person in listed if person.address != EVERYBODY and not is_hook(person.address)]


def named(listed: Iterable[GroupPerson], wanted: str, *, shows_others: bool = True) -> GroupPerson:
    """Return the only person among `listed` with the address, id (`person_of`) or name `wanted`. Pure.

    An address or id has precedence over a name, and a whole name over the first word of one. `shows_others`
    says whether the text of an error may list the other people.

    Raises:
        UnknownPerson: nobody has it.
        AmbiguousPerson: several people have the name; the text lists them with their addresses.
    """
    listed, wanted = list(listed), wanted.strip()
    whole = person_names.folded(wanted.removeprefix("@"))
    by_address = [
        person for person in listed if wanted in {*person.addresses, *map(person_of, person.addresses)}
    ]
    by_name = [person for person in listed if whole and person_names.folded(person.name) == whole]
    by_first_name = [
        person for person in listed if whole and person_names.folded(person.name).split(" ")[0] == whole
    ]
    # Addresses first: people choose their names, and one of them could be another's address.
    matches = by_address or by_name or by_first_name
    if len(matches) > 1:
        raise AmbiguousPerson(
            f"Several people are called '{short(wanted, MAX_SHOWN_CHARS)}': name one by the address."
            f" There are: {_choices(matches)}"
        )
    if matches:
        return matches[0]
    choices = f" There are: {_choices(listed)}" if shows_others and listed else ""
    raise UnknownPerson(f"Nobody here is known as '{short(wanted, MAX_SHOWN_CHARS)}'.{choices}")


def _choices(listed: Iterable[GroupPerson]) -> str:
    """Return the addresses and names of people, at most `MAX_LISTED`, as the end of a sentence."""
    return (
        ", ".join(
            all_visible(f"{person.address} ({short(person.name, MAX_SHOWN_CHARS)})")
            for person in list(listed)[:MAX_LISTED]
        )
        + "."
    )


def mentioned(listed: Iterable[GroupPerson], text: str) -> list[GroupPerson]:
    """Return those of the `listed` people whom a text names, by address or name. Pure.

    Raises:
        AmbiguousPerson: the text has a name that several of them have.
    """
    listed = list(listed)
    words = text.split()
    persons = [person for person in listed if any(address in words for address in person.addresses)]
    for name in person_names.found_in(text, (person.name for person in listed)):
        if not any(person_names.folded(person.name) == name for person in persons):
            persons.append(named(listed, name))
    return persons


async def set_role(tx: Tx, folder: str, address: str, role: Role | None, *, by: str, now_ms: int) -> Group:
    """Give a person a role in a group, by one of their addresses, and return the changed group.

    It is stored for this address alone, and holds for all of their known ones. With None for `role` they lose
    their own role, and have that of everybody else. `by` is who changes it.

    Raises:
        UnknownGroup: there is no such group.
        UnknownPerson: nobody of the group has this address; the text lists the known ones.
        ConfigRefused: there are too many people with roles, or the group's settings cannot be read.
    """
    group = await groups.known(tx, folder)
    config = settings.to_change(group)
    address = address.strip()
    addresses = await check_person(tx, folder, address)
    others = {listed: own_role for listed, own_role in config.people.items() if listed not in addresses}
    new_roles = {**others, **({address: role} if role is not None else {})}
    fields = {listed: own_role.value for listed, own_role in new_roles.items()}
    return await changes.configure(tx, group.folder, {"people": fields or None}, by=by, now_ms=now_ms)


async def check_person(tx: Tx, folder: str, address: str) -> frozenset[str]:
    """Check that a group has a person with this address, and return all of their addresses.

    `EVERYBODY`, the word for everybody else, is accepted and returned as it is.

    Raises:
        UnknownGroup: there is no such group.
        UnknownPerson: nobody of the group has this address; the text lists the group's people.
    """
    group = await groups.known(tx, folder)
    if address == EVERYBODY:
        return frozenset({EVERYBODY})
    addresses = await people.addresses_of(tx, address)
    if not addresses & (await _known_addresses(tx, group) | settings.of(group).people.keys()):
        raise UnknownPerson(await _unknown_address_text(tx, group, address))
    return addresses


async def set_rule(
    tx: Tx, folder: str, role: Role, rule: str, *, value: bool | int | None, by: str, now_ms: int
) -> Group:
    """Change a rule of a role in a group, and return the group with its new settings.

    A rule is a permission, or the percent of each budget that people of the role may use together. The value
    None removes the group's own rule, so that the one of all groups applies.

    Raises:
        UnknownGroup: there is no such group.
        ConfigRefused: it is no rule of such a role, or has no such value, or the group's settings cannot be
            read.
    """
    group = await groups.known(tx, folder)
    fields = settings.to_change(group).to_fields().get("roles", {})
    other_rules = {name: setting for name, setting in fields.get(role, {}).items() if name != rule}
    rules_of_role = other_rules if value is None else {**other_rules, rule: value}
    by_role = {name: rules for name, rules in {**fields, role.value: rules_of_role}.items() if rules}
    return await changes.configure(tx, group.folder, {"roles": by_role or None}, by=by, now_ms=now_ms)


async def _known_addresses(tx: Tx, group: Group) -> set[str]:
    """Return the addresses of everybody seen in a group, of its hooks, and of its chats' members."""
    seen = {person.address for person in await people.of_group(tx, group.folder)}
    hooks = await secret_addresses.every(tx, AddressKind.HOOK, group.folder)
    seen |= {f"{HOOK_PREFIX}{hook.id}" for hook in hooks}
    return seen | {member.jid for chat in group.chats for member in await chats.members_of(tx, chat)}


async def _unknown_address_text(tx: Tx, group: Group, address: str) -> str:
    """Return the text of the error that no person of a group has the address `address`.

    It lists the first `MAX_LISTED` people of the group with their addresses.
    """
    listed = [person for person in await of_group(tx, group.folder) if person.address != EVERYBODY]
    shown = ", ".join(all_visible(f"{person.address} ({person.name})") for person in listed[:MAX_LISTED])
    return (
        f"Nobody of '{group.folder}' has the address '{address[:200]}': a role goes to an address, never to a"
        f" name. There are: {shown or 'nobody yet'}; '{EVERYBODY}' is everybody else."
    )
