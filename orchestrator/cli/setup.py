"""`andy setup`: from a new home to a first message.

Each step prompts for its values, or takes them from flags.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from orchestrator.cli.options import HomeOption
from orchestrator.domain.errors import AndyError, BadRequest, StoreError
from orchestrator.home import dotenv_file
from orchestrator.home.directory import Home

if TYPE_CHECKING:
    from orchestrator.channels.whatsapp.neonize_database import NeonizeDatabase
    from orchestrator.domain.model_services import ModelService
    from orchestrator.home.settings import Settings
    from orchestrator.store.database import Tx

T = TypeVar("T")
MAX_SEND_SECONDS = 90.0
"""Seconds that the test message may take to be sent."""
OF_DOTENV = "anthropic"
"""The answer that means Anthropic's own service, with the key of `.env`."""
LOCAL, SELF = "local", "self"
HELLO = "👋 I am here. Write to me in this chat; say 'help' to see what I can do."


def setup(
    *,
    credential: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            help="A key or token of the model; '-' reads it from stdin, 'none' skips this step.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        Parameter(
            help="Another model service than Anthropic's, as KIND/MODEL, such as ollama/qwen3; its key is"
            " the credential. Kinds: see 'andy models add --help'."
        ),
    ] = None,
    model_url: Annotated[
        str | None, Parameter(help="The address of that service. [that of its kind]")
    ] = None,
    whatsapp: Annotated[
        bool | None, Parameter(help="Whether to pair WhatsApp. [prompted for; without a terminal: no]")
    ] = None,
    phone: Annotated[
        str | None, Parameter(help="Pair by a code for the phone of this number, not by a QR code.")
    ] = None,
    own_number: Annotated[
        bool | None,
        Parameter(
            negative="--shared-number", help="Whether the WhatsApp account is Andy's alone, not yours."
        ),
    ] = None,
    channel: Annotated[
        str | None, Parameter(help="Another messenger to log in to, by its name: see 'andy channels list'.")
    ] = None,
    answers: Annotated[
        list[str] | None,
        Parameter(
            name="--set",
            negative="",
            help="A value that --channel needs, as NAME=VALUE; secrets are read from stdin, one a line.",
        ),
    ] = None,
    main: Annotated[
        str | None,
        Parameter(
            help="The chat of the main group: 'self', your \"message yourself\" chat; 'local', this machine;"
            " a phone number; or a chat's address."
        ),
    ] = None,
    test: Annotated[bool | None, Parameter(help="Whether to send a test message to main.")] = None,
    home: HomeOption = None,
) -> None:
    """Set Andy up: a model, messengers, the main group, a test message. It prompts for missing values.

    Without a terminal only the steps of the options are done. It can be run again: earlier results stay.

    Example: `andy setup --credential none --whatsapp --main self --test`
    Example: `andy setup --model ollama/qwen3 --main local`
    Example: `andy setup --credential none --channel matrix --set user=@andy:matrix.org --main local`
    """
    from orchestrator.cli import channels

    flags = SetupFlags(
        credential=credential,
        model=model,
        model_url=model_url,
        # To name a phone alone means to pair it.
        whatsapp=True if phone and whatsapp is None else whatsapp,
        phone=phone or "",
        own_number=own_number,
        channel=channel,
        answers=channels.answers_of(answers or []),
        main=main,
        test=test,
    )
    asyncio.run(Setup(home, flags, SetupPrompts(is_possible=sys.stdin.isatty())).run())


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFlags:
    """The values of the flags; for one that is None, the person is prompted."""

    credential: str | None = None
    model: str | None = None
    """Another model service than Anthropic's, as `KIND/MODEL`."""
    model_url: str | None = None
    whatsapp: bool | None = None
    """Whether to pair WhatsApp; with False, the person is not asked either."""
    phone: str = ""
    """The number of the phone that is paired by a code; empty to pair by a QR code."""
    own_number: bool | None = None
    """Whether the WhatsApp account, whose number need not be `phone`, is Andy's alone and not the owner's."""
    channel: str | None = None
    """Another messenger to log in to."""
    answers: Mapping[str, str] = field(default_factory=dict)
    main: str | None = None
    test: bool | None = None


class SetupPrompts:
    """Prompts the person at the terminal; without one, each method returns the value in its docstring."""

    def __init__(self, *, is_possible: bool) -> None:
        """`is_possible` says that there is a terminal at which a person can be asked."""
        self.is_possible = is_possible

    def yes(self, question: str, *, default: bool) -> bool:
        """Prompt until the answer is yes or no, and return whether it is yes.

        An empty answer means `default`. Without a terminal it is no, whatever `default` is.
        """
        while self.is_possible:
            answer = input(f"{question} [{'Y/n' if default else 'y/N'}] ").strip().lower()
            if not answer:
                return default
            if answer[0] in "yn":
                return answer[0] == "y"
        return False

    def text(self, question: str, *, default: str) -> str:
        """Prompt for a text; an empty answer, or no terminal, gives the default."""
        return (input(f"{question} [{default}] ").strip() or default) if self.is_possible else default

    def secret(self, question: str) -> str:
        """Prompt for a secret, which is not shown; without a terminal it is empty."""
        from getpass import getpass

        return getpass(f"{question} ").strip() if self.is_possible else ""


class Setup:
    """Carries out the steps in order. Flags are checked before anything is written."""

    def __init__(self, home_option: Path | None, flags: SetupFlags, prompts: SetupPrompts) -> None:
        """`home_option` is the option `--home`; what `flags` leave open, `prompts` ask a person."""
        from orchestrator.cli.terminal import home_of

        self._home: Home = home_of(home_option)
        self._flags = flags
        self._prompts = prompts

    async def run(self) -> None:
        """Carry out all steps in order, and print the result of each.

        Raises:
            AndyError: a flag cannot be used, and nothing was changed; or a step failed, and the results of
                earlier steps stay.
        """
        account = await asyncio.to_thread(self._whatsapp_database().account)
        self._check_flags(own_number=account.address.user if account else "")
        await asyncio.to_thread(self._home.make)
        steps = (
            ("A model", self._credential),
            ("WhatsApp", self._whatsapp),
            ("Other messengers", self._messengers),
            ("Main", self._main),
            ("Test", self._test),
        )
        for number, (name, step) in enumerate(steps, start=1):
            print(f"{number}/{len(steps)} {name}", flush=True)
            print(f"    {await step()}", flush=True)

    def _check_flags(self, *, own_number: str) -> None:
        """Raise `AndyError` if the settings or a flag cannot be used, before anything is written.

        `own_number` is the number of the paired WhatsApp account; empty if there is none. A credential of the
        flag, or of stdin, is read and stored in `_entered_key`.
        """
        from orchestrator.channels import discovery
        from orchestrator.channels.whatsapp.pairing import number_of
        from orchestrator.proxies.model.credentials import read_credential

        # Each of these calls raises the error of a flag that cannot be used; most results are not needed.
        settings = self._settings()
        self._entered_key = self._key_of_flag()
        if self._flags.model is not None:
            self._other_service(self._flags.model, self._flags.model_url)
        elif self._entered_key:
            read_credential(self._entered_key)
        if self._flags.phone:
            number_of(self._flags.phone)
        if self._flags.channel is not None:
            discovery.find(self._flags.channel)
        if self._flags.main is not None:
            will_pair = self._flags.whatsapp or (self._flags.whatsapp is None and self._prompts.is_possible)
            # "0" stands for the number of an account that a later step pairs: here only the form is checked.
            number_to_be = "0" if will_pair else ""
            is_own_number = self._flags.own_number
            if is_own_number is None:
                # A person at a terminal is asked in a later step, and may change what `.env` says.
                is_own_number = settings.assistant_has_own_number and not self._prompts.is_possible
            chat_of(self._flags.main, own_number=own_number or number_to_be, is_own_number=is_own_number)

    def _key_of_flag(self) -> str:
        """Return the key of the flag `--credential`; for `-` a line of stdin, for `none` or no flag empty."""
        from orchestrator.cli import terminal

        match self._flags.credential:
            case "-":
                line: str = terminal.typed(sys.stdin.readline)
                return line.strip()
            case None | "none":
                return ""
            case credential:
                return credential

    # The steps: each returns a line about its result

    async def _credential(self) -> str:
        """Set the key of Anthropic's service, or another service; return a line about the result.

        If neither the flag for a model nor a key was given, a model or key that was set earlier stays.
        `_entered_key` has the key of the flag, which `_check_flags` has read; else the person is prompted for
        one. Without a key, and for the flag `none`, nothing is set.
        """
        from orchestrator.proxies.model.credentials import CredentialSource

        credential = await asyncio.to_thread(CredentialSource(self._home.root, os.environ).current)
        if self._flags.model is None and not self._entered_key:
            if chosen := await asyncio.to_thread(self._chosen_model):
                return f"{chosen} is chosen already: 'andy models use SERVICE/MODEL' changes it."
            if credential is not None:
                return f"{credential.setting} is set already."
        if service := await self._wanted_service():
            return await self._choose_service(service)
        if not self._entered_key and self._flags.credential is None:
            self._entered_key = _prompt(
                self._prompts.secret,
                "An API key or a subscription's token (it is not shown; empty for none):",
            )
        if not self._entered_key:
            return "None: the offline agent answers. Put one into .env when you have one."
        return await asyncio.to_thread(self._write_credential)

    def _chosen_model(self) -> str | None:
        """Return the model that is chosen for all work, as `SERVICE/MODEL`, if it can be used. Blocks.

        None if none is chosen, it is one of Anthropic's, its service still needs a key, or the database
        cannot be read, as in a new home.
        """
        from orchestrator.cli import terminal
        from orchestrator.domain.model_services import WorkKind
        from orchestrator.proxies.model.credentials import CredentialSource
        from orchestrator.store.settings import model_services

        async def choice_and_service(tx: Tx) -> tuple[str, ModelService | None]:
            """Return the model chosen for all work, empty if none is, and its service, if it names one."""
            choices = await model_services.choices(tx)
            chosen = next((choice.model for choice in choices if choice.work is WorkKind.ALL), "")
            return chosen, await model_services.by_name(tx, chosen.partition("/")[0])

        try:
            chosen, service = terminal.read(self._home.root, choice_and_service)
        except StoreError:
            return None
        # Without a service of the owner's, the model is Claude's, whose key is asked for.
        if service is None:
            return None
        has_key = service.key_env is None or CredentialSource(self._home.root, os.environ).is_usable(
            service.key_env
        )
        return chosen if has_key else None

    def _other_service(self, kind_and_model: str, url: str | None) -> ModelService:
        """Return the model service for `KIND/MODEL`, such as `ollama/qwen3`; it is not stored.

        `url` is its address; None means the usual one of its kind. Raises `BadRequest` if it cannot be used.
        """
        from orchestrator.domain.model_services import PRESETS, ModelService
        from orchestrator.reports import models

        kind, _, model = kind_and_model.partition("/")
        preset = PRESETS.get(kind)
        if preset is None or not model:
            raise BadRequest(
                f"'{kind_and_model}' is no KIND/MODEL, such as ollama/qwen3: kinds are {', '.join(PRESETS)}."
            )
        address = url or preset.url
        if address is None:
            raise BadRequest(f"Say where {preset.title} is: --model-url https://…")
        # The service of `.env` has the name `anthropic` already, and a name has no dot.
        names = {"llama.cpp": "local", OF_DOTENV: f"{OF_DOTENV}-2"}
        name = names.get(kind, kind)
        service = ModelService(
            name=name,
            kind=kind,
            url=address.rstrip("/"),
            key_env=preset.key_env,
            model=model,
            abilities=preset.abilities,
        )
        models.check(service)
        return service

    async def _wanted_service(self) -> ModelService | None:
        """Return the model service that a flag names or a person chooses; None for Anthropic's with its key.

        Without a terminal, or with only the flag for a key, it is Anthropic's. A person is prompted again
        until the service can be used. Raises `BadRequest` if the one that the flag names cannot be used.
        """
        from orchestrator.domain.model_services import PRESETS

        if self._flags.model is not None:
            return self._other_service(self._flags.model, self._flags.model_url)
        if not self._prompts.is_possible or self._flags.credential is not None:
            return None
        # At this prompt `anthropic` means the service in `.env`, and not the preset with another key.
        kinds = [kind for kind in PRESETS if kind != OF_DOTENV]
        ask_kind = partial(self._prompts.text, default=OF_DOTENV)
        while True:
            prompt = f"Whose model ({OF_DOTENV}, or {', '.join(kinds)})?"
            if (kind := _prompt(ask_kind, prompt)) not in kinds:
                if kind == OF_DOTENV:
                    return None
                print(f"    '{kind}' is none of them.", flush=True)
                continue
            preset = PRESETS[kind]
            url = _prompt(partial(self._prompts.text, default=preset.url or ""), "Where is it?")
            model = _prompt(partial(self._prompts.text, default=""), "Which model of it?")
            try:
                return self._other_service(f"{kind}/{model}", url or None)
            except BadRequest as error:
                print(f"    {error}", flush=True)

    async def _choose_service(self, service: ModelService) -> str:
        """Store a model service, choose it for all groups, and write its key into `.env` if it needs one.

        The key is that of the flag, or the person is prompted for it. Return a line about the result.
        """
        from orchestrator.cli import terminal
        from orchestrator.domain.model_services import WorkKind
        from orchestrator.groups import model_choices
        from orchestrator.reports import models
        from orchestrator.store.settings.model_services import ChosenModel

        chosen = f"{service.name}/{service.model}"

        async def store_and_choose(tx: Tx, now_ms: int) -> None:
            """Store the service and choose its model for all kinds of work."""
            await models.add(tx, service, now_ms=now_ms)
            models_for_all = [ChosenModel(WorkKind.ALL, chosen)]
            # A gateway is a service of `.env` whose models may have any names; the model that is chosen here
            # is of another service.
            await model_choices.choose(tx, WorkKind.ALL, models_for_all, has_gateway=False, now_ms=now_ms)

        answer = f"{chosen} at {service.url} is chosen. 'andy models test {service.name}' says what it can."
        if service.key_env is not None:
            key = self._entered_key or _prompt(self._prompts.secret, f"Its key, {service.key_env}:")
            if key:
                values = {service.key_env: key}
                await asyncio.to_thread(dotenv_file.put, self._home.root / ".env", values)
            else:
                answer = f"{chosen} is chosen. Put its key into .env: {service.key_env}=…"
        await terminal.change(self._home.root, store_and_choose, makes_home=True)
        return answer

    def _write_credential(self) -> str:
        """Write the entered key into `.env`, and turn other keys there into comments. Blocks.

        Return a line about the result.
        """
        from orchestrator.proxies.model.credentials import SETTINGS, read_credential

        credential = read_credential(self._entered_key)
        commented_out = dotenv_file.put(
            self._home.root / ".env", {credential.setting: credential.secret}, silences=SETTINGS
        )
        commented_note = f" {', '.join(commented_out)} is a comment there now." if commented_out else ""
        stronger = next((name for name in SETTINGS if os.environ.get(name)), "")
        warning = f" But {stronger} of the environment counts before it." if stronger else ""
        return (
            f"{credential.setting} is in {self._home.root / '.env'}, for you alone.{commented_note}{warning}"
        )

    async def _whatsapp(self) -> str:
        """Pair WhatsApp, if it is not paired and a flag or the person wants it; return a line about it.

        Before pairing, the answer to whether the number is Andy's alone is written into `.env`. The flag
        `--own-number` is written there, too, if the account is paired already or `--no-whatsapp` leaves that
        for later, but not if the person declines.
        """
        from orchestrator.cli import whatsapp

        account = await asyncio.to_thread(self._whatsapp_database().account)
        if account is None and self._flags.whatsapp is not False:
            is_wanted = self._flags.whatsapp is True or _prompt(
                partial(self._prompts.yes, default=True), "Pair WhatsApp now?"
            )
            if not is_wanted:
                return "Not paired: later with 'andy whatsapp pair'."
            await self._set_number_owner()
            await whatsapp.pair_phone(self._home.root, phone=self._flags.phone, moves_login_aside=False)
            account = await asyncio.to_thread(self._whatsapp_database().account)
        elif self._flags.own_number is not None:
            await self._set_number_owner()
        return f"Paired with {account.number}." if account else "Not paired: later with 'andy whatsapp pair'."

    async def _messengers(self) -> str:
        """Log in to the messenger of the flag, and to others that the person chooses.

        Only messengers whose login needs nothing but answers are offered, and of these only those that nobody
        is logged in to. Return a line about the result.
        """
        from orchestrator.channels import discovery
        from orchestrator.cli import channels

        results = []
        for channel in discovery.installed():
            if channel.log_in is None:
                continue
            account = await asyncio.to_thread(channel.account, self._home.root)
            if account and channel.name != self._flags.channel:
                results.append(f"{channel.title}: {account}.")
            elif channel.name == self._flags.channel or _prompt(
                partial(self._prompts.yes, default=False), f"Log in to {channel.title}, too?"
            ):
                answers = self._flags.answers if channel.name == self._flags.channel else {}
                results.append(await channels.switch_on(self._home, channel.name, answers))
        return " ".join(results) or "None: later with 'andy channels add NAME'."

    async def _set_number_owner(self) -> None:
        """Write into `.env` whether the WhatsApp number is Andy's alone, by the flag or the person's answer.

        Without the flag, and without a terminal to ask at, nothing is written.
        """
        is_own = self._flags.own_number
        if is_own is None and self._prompts.is_possible:
            is_own = _prompt(
                partial(self._prompts.yes, default=False), "Is the number Andy's alone (and not yours)?"
            )
        if is_own is None or is_own == self._settings().assistant_has_own_number:
            return
        values = {"ASSISTANT_HAS_OWN_NUMBER": str(is_own).lower()}
        await asyncio.to_thread(dotenv_file.put, self._home.root / ".env", values)
        print("    ASSISTANT_HAS_OWN_NUMBER is set: a running Andy takes it with its next start.")

    def _settings(self) -> Settings:
        """Return the settings of the home as they are now. Blocks. Raises `SettingError`."""
        from orchestrator.home import settings

        return settings.load(self._home.root)

    async def _main(self) -> str:
        """Create the home and the main group where missing, and move the group to the chosen chat, if any.

        The chat is that of the flag, or else the person's answer. Return a line about where the group is.
        """
        from orchestrator.cli import terminal
        from orchestrator.groups import registration
        from orchestrator.store.groups import groups

        await terminal.change(
            self._home.root, lambda tx, now_ms: registration.ensure_main(tx, now_ms=now_ms), makes_home=True
        )
        main = next(group for group in terminal.read(self._home.root, groups.every) if group.is_main)
        account = await asyncio.to_thread(self._whatsapp_database().account)
        own_number = account.address.user if account else ""
        is_own_number = self._settings().assistant_has_own_number
        chosen = self._flags.main
        # A person is asked only while main is still the chat of this machine, and another is possible.
        if chosen is None and own_number and main.jid == registration.MAIN_JID:
            chosen = await self._ask_main(own_number, is_own_number=is_own_number)
        if chosen is None:
            return f"It is {main.jid}."
        jid = chat_of(chosen, own_number=own_number, is_own_number=is_own_number)
        moved = await terminal.change(
            self._home.root, lambda tx, now_ms: registration.move_main(tx, jid, now_ms=now_ms)
        )
        return f"It is {moved.jid} now."

    async def _ask_main(self, own_number: str, *, is_own_number: bool) -> str | None:
        """Prompt for the chat of the main group, and return the answer; None without a terminal.

        `own_number` is the number of the paired WhatsApp account, and `is_own_number` says that it is Andy's
        alone.
        """
        if not self._prompts.is_possible:
            return None
        default_chat = LOCAL if is_own_number else SELF
        explanation = (
            "your own phone number" if is_own_number else f"self = the chat of +{own_number} with itself"
        )
        return _prompt(
            partial(self._prompts.text, default=default_chat),
            f"Where do you want to talk to Andy alone ({explanation}; local = this machine)?",
        )

    async def _test(self) -> str:
        """Send a test message to main, if that is wanted; return a line about the result."""
        from orchestrator.cli import terminal
        from orchestrator.groups import registration

        is_wanted = self._flags.test
        if is_wanted is None:
            is_wanted = _prompt(partial(self._prompts.yes, default=True), "Send a test message to main?")
        if not is_wanted:
            return "None sent."
        key = await terminal.change(
            self._home.root, lambda tx, now_ms: registration.greet_main(tx, HELLO, now_ms=now_ms)
        )
        if not await asyncio.to_thread(terminal.is_running, self._home):
            return "It leaves when Andy starts: 'andy up'."
        return await self._wait_until_sent(key)

    async def _wait_until_sent(self, key: str) -> str:
        """Wait up to `MAX_SEND_SECONDS` until the message with this key in the outbox is sent.

        Return a line about the result. Raises `AndyError` if the message cannot be sent.
        """
        from orchestrator.cli import terminal
        from orchestrator.store.conversation import outbox

        query = partial(outbox.by_key, key=key)
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_SEND_SECONDS):
                while True:
                    message = terminal.read(self._home.root, query)
                    if message is not None and message.state == "sent":
                        return f"Sent to {message.chat_jid}. All is set up."
                    if message is not None and message.state in ("unknown", "dead"):
                        raise AndyError(f"The test message could not be sent: {message.error}")
                    await asyncio.sleep(0.5)
        return "It has not left yet: 'andy channels status' and 'andy outbox list' say why."

    def _whatsapp_database(self) -> NeonizeDatabase:
        """Return the reader of the WhatsApp login's database."""
        from orchestrator.channels.whatsapp.neonize_database import NeonizeDatabase

        return NeonizeDatabase(self._home.root / "store" / "whatsapp.db")


def _prompt(prompt: Callable[[str], T], question: str) -> T:
    """Prompt a person for the answer to a question, indented below the step's name; return the answer."""
    from orchestrator.cli import terminal

    return terminal.typed(partial(prompt, f"    {question}"))


def chat_of(text: str, *, own_number: str, is_own_number: bool) -> str:
    """Return the address of the chat that a person named: `local`, `self`, a phone number or an address.

    `own_number` is the number of the paired WhatsApp account, empty if there is none. `is_own_number` says
    that the account is Andy's alone; otherwise it is also the person's, whose chat with themselves `self` is.

    Raises:
        BadRequest: the text names no chat, or `self` cannot be used for this account.
    """
    from orchestrator.channels import discovery
    from orchestrator.channels.whatsapp import addresses
    from orchestrator.channels.whatsapp.pairing import number_of
    from orchestrator.domain.values import ChatJid
    from orchestrator.groups.registration import MAIN_JID

    match text:
        case "local":
            return MAIN_JID
        case "self" if is_own_number:
            raise BadRequest(
                "The account is Andy's alone: name your own number, such as --main +491701234567."
            )
        case "self" if not own_number:
            raise BadRequest("Nobody has paired: add --whatsapp, or use --main local.")
        case "self":
            return f"{own_number}@{addresses.PHONE}"
    if any(channel.owns(ChatJid(text)) for channel in discovery.installed()):
        return text
    # No channel owns it: for example, it is an address of WhatsApp with a device.
    if "@" in text:
        raise BadRequest(f"'{text}' is no address of a chat, such as 1203…@g.us or local:main.")
    return f"{number_of(text)}@{addresses.PHONE}"
