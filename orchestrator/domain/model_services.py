"""Names the services that have models: presets, abilities, and how a choice of one is written. Pure.

A service speaks Anthropic's Messages API. A choice is `SERVICE/MODEL`, the name of a service alone, or, as in
older settings, a model of the service in `.env`.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

OF_DOTENV = "anthropic"
"""The name of the service whose address and key are in `.env` as `ANTHROPIC_…`."""
CLAUDE_NAMES = ("claude", "opus", "sonnet", "haiku")
"""Words in the names of Claude's models, which need no service before them."""


LEAST_WINDOW = 16_000
"""Tokens that even a first request needs: instructions and tools, a question, and room for an answer."""
MAX_WINDOW = 1_000_000_000
"""Tokens above which a size is no window: some services report 10^30 for one they do not know."""


def too_small_text() -> str:
    """Return the reason why a model's context window is too small, with the fix.

    It is the end of a sentence, before which callers put the size of the window: "8,000 tokens, and …".
    """
    return (
        f"a first request needs {LEAST_WINDOW:,}: start the service with a larger one (llama.cpp: -c 32768)"
    )


class Ability(StrEnum):
    """An ability that a service may have besides answering with a text."""

    STREAM = "stream"
    TOOLS = "tools"
    IMAGES = "images"
    COUNTING = "counting"
    """It counts the tokens of a request without answering it."""


class WorkKind(StrEnum):
    """The kinds of work for which a model can be chosen."""

    ALL = "all"
    TASKS = "tasks"
    """Scheduled tasks that have a conversation of their own."""
    WORKER = "worker"
    SUMMARIES = "summaries"
    FALLBACK = "fallback"
    """The list of models that answer while the chosen service does not."""


@dataclass(frozen=True, slots=True)
class ServicePrice:
    """A price in dollars per million tokens."""

    input: float
    output: float


FREE = ServicePrice(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelService:
    """A service by its name. Its key is in `.env`, under the name `key_env`."""

    name: str
    kind: str
    url: str
    key_env: str | None = None
    model: str | None = None
    """The model that is used when a choice names only the service."""
    window: int | None = None
    """Tokens of its model's context window, if known."""
    price: ServicePrice | None = None
    """The owner's price for it; None if none is set."""
    abilities: frozenset[Ability] = frozenset()
    tested_ms: int | None = None
    """When its abilities were tested; None if they are only assumed from its kind."""
    first_byte_seconds: int | None = None
    """Seconds that it may take to start an answer; None for the default, which depends on where it is."""

    @property
    def place(self) -> str:
        """The host and port of the service's address."""
        return urlsplit(self.url).netloc

    @property
    def is_near(self) -> bool:
        """Whether the service is on this machine or in the owner's network, where models are slower."""
        return is_near(urlsplit(self.url).hostname or "")

    @property
    def known_price(self) -> ServicePrice | None:
        """The price to use; None if it is not known.

        A service in the owner's network that needs no key costs nothing, unless the owner has set a price.
        """
        if self.price is None and self.is_near and self.key_env is None:
            return FREE
        return self.price


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePreset:
    """The facts about a kind of service. A kind without a URL needs one from the owner."""

    url: str | None
    title: str
    key_env: str | None = None
    is_bearer: bool = True
    """Whether its key is sent in `Authorization`; otherwise in `x-api-key`."""
    abilities: frozenset[Ability] = frozenset({Ability.STREAM, Ability.TOOLS})


_COUNTING = frozenset({Ability.STREAM, Ability.TOOLS, Ability.COUNTING})
PRESETS: Mapping[str, ServicePreset] = {
    "anthropic": ServicePreset(
        url="https://api.anthropic.com",
        title="Anthropic, with another key",
        key_env="ANTHROPIC_SECOND_API_KEY",
        is_bearer=False,
        abilities=frozenset(Ability),
    ),
    "llama.cpp": ServicePreset(
        url="http://127.0.0.1:8080", title="llama.cpp's llama-server", abilities=_COUNTING
    ),
    "ollama": ServicePreset(url="http://127.0.0.1:11434", title="Ollama"),
    "vllm": ServicePreset(url="http://127.0.0.1:8000", title="vLLM", abilities=_COUNTING),
    "sglang": ServicePreset(url="http://127.0.0.1:30000", title="SGLang"),
    "lmstudio": ServicePreset(url="http://127.0.0.1:1234", title="LM Studio"),
    "openrouter": ServicePreset(
        url="https://openrouter.ai/api", title="OpenRouter", key_env="OPENROUTER_API_KEY"
    ),
    "deepseek": ServicePreset(
        url="https://api.deepseek.com/anthropic",
        title="DeepSeek",
        key_env="DEEPSEEK_API_KEY",
        is_bearer=False,
    ),
    "moonshot": ServicePreset(
        url="https://api.moonshot.ai/anthropic", title="Moonshot (Kimi)", key_env="MOONSHOT_API_KEY"
    ),
    "zai": ServicePreset(url="https://api.z.ai/api/anthropic", title="Z.ai (GLM)", key_env="ZAI_API_KEY"),
    "gateway": ServicePreset(url=None, title="a gateway of your own"),
}


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A service and a model of it; None leaves the model to the service or the agent."""

    service: str
    model: str | None

    def __str__(self) -> str:
        """Return the choice as it is written in settings: `SERVICE/MODEL` or `SERVICE`."""
        return self.service if self.model is None else f"{self.service}/{self.model}"


def read_choice(text: str | None, services: Collection[ModelService]) -> ModelChoice:
    """Return the model service and the model that a text names.

    The text is `SERVICE/MODEL`, `SERVICE`, or a model of the service in `.env`. `services` are the services
    that the owner has added. If the word before the first `/` names no service, the whole text is
    the name of a model, since gateways have models with a `/` in their names. Without a text, the choice is
    the service in `.env`, without a model.
    """
    if not text:
        return ModelChoice(OF_DOTENV, None)
    services_by_name = {service.name: service for service in services}
    name, slash, model = text.partition("/")
    if name in services_by_name:
        return ModelChoice(name, model or services_by_name[name].model)
    if name == OF_DOTENV:
        return ModelChoice(OF_DOTENV, model if slash and model else None)
    return ModelChoice(OF_DOTENV, text)


def is_near(host: str) -> bool:
    """Return whether a host, as the owner wrote it, is on this machine or in their network.

    It judges the text, not the address it resolves to: an internet name that resolves to a private address is
    refused elsewhere.
    """
    try:
        return not ipaddress.ip_address(host.strip("[]")).is_global
    except ValueError:
        pass
    try:
        # Resolvers take a number, such as 134744072 for 8.8.8.8, and other short forms as an IPv4 address.
        return not ipaddress.ip_address(socket.inet_aton(host)).is_global
    except (OSError, ValueError):
        # Names without a dot, and with these endings, exist only in local networks.
        name = host.lower().rstrip(".")
        return "." not in name or name.endswith((".local", ".lan", ".internal", ".localhost", ".home.arpa"))
