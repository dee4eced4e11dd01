"""Names the services that search the web for agents. Pure."""

from __future__ import annotations

from enum import StrEnum

BRAVE_KEY = "BRAVE_API_KEY"
"""The name under which `.env` has the key of Brave's search."""


class SearchService(StrEnum):
    """The services that may search the web for an agent."""

    ANTHROPIC = "anthropic"
    """Anthropic's model service, while it writes an answer. No other model service searches."""
    SEARXNG = "searxng"
    """A SearXNG of the owner's, which the host queries for any model."""
    BRAVE = "brave"
    """Brave's search, which the host queries for any model with the owner's key."""
    OFF = "off"

    @property
    def is_asked_by_host(self) -> bool:
        """Whether the host itself searches: the agent then gets Andy's own search tool."""
        return self in (SearchService.SEARXNG, SearchService.BRAVE)


_YES, _NO = {"true", "1", "yes", "on"}, {"false", "0", "no", "off", ""}


def service_name_of(value: object) -> object:
    """Return the value of a setting as the name of a service, for pydantic to check.

    Older settings have true for `anthropic` and false for `off`.
    """
    if not isinstance(value, bool | str):
        return value
    text = str(value).strip().casefold()[:40]  # cut, since an error would show all of it
    if text in _YES:
        return SearchService.ANTHROPIC
    return SearchService.OFF if text in _NO else text
