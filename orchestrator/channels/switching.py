"""Switch messengers on and off in the settings, as the command line and the console do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from orchestrator.channels.description import ChannelDescription
from orchestrator.domain.errors import SettingError
from orchestrator.home import dotenv_file
from orchestrator.home import settings as config
from orchestrator.home.directory import Home

CHANNELS_SETTING = "ANDY_CHANNELS"


async def switch_on(home: Home, channel: ChannelDescription, answers: Mapping[str, str]) -> str:
    """Log in to a messenger with the answers to its questions, then enable it in `.env`.

    Return a sentence about the result of the login; it is empty if the messenger needs no login.

    Raises:
        BadRequest, ChannelError: the messenger refuses the login; nothing is changed then.
        SettingError: its library is not installed, or the setting cannot be written.
    """
    login_text = ""
    if channel.log_in is not None:
        await asyncio.to_thread(home.make)
        try:
            login_text = await channel.log_in(home.root, answers)
        except ImportError as error:
            raise SettingError(channel.missing_library) from error
    names = await asyncio.to_thread(_enabled_names, home)
    await asyncio.to_thread(write_setting, home, [*names, channel.name])
    return login_text


def _enabled_names(home: Home) -> tuple[str, ...]:
    """Return the names of the messengers that the settings enable. Blocks."""
    return tuple(config.load(home.root).channels)


def write_setting(home: Home, names: Sequence[str]) -> None:
    """Write the names of the enabled messengers to `.env`; this takes effect at the next start. Blocks.

    Raises:
        SettingError: `.env` cannot be written, or is written but overridden by another source of settings.
    """
    value = ",".join(dict.fromkeys(names))
    # A name without a value has no effect in `.env`, so `none` is written, which `load` reads as empty.
    dotenv_file.put(home.root / ".env", {CHANNELS_SETTING: value or "none"})
    if config.load(home.root).andy_channels != value:
        overriding_source = "the environment" if os.environ.get(CHANNELS_SETTING) is not None else "andy.toml"
        raise SettingError(
            f"{CHANNELS_SETTING} of {overriding_source} counts before that of .env: set it there to"
            f" '{value or 'none'}'."
        )
