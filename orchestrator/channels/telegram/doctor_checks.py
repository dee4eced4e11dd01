"""Read which account is logged in, and check library and login for `andy doctor`, without a connection."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.channels.description import ChannelFinding
from orchestrator.channels.telegram.description import CHANNEL, LOGIN
from orchestrator.domain.errors import ChannelDown


def account(home: Path) -> str:
    """Return the `@name` of the bot that is logged in, or an empty text if none is. Blocks.

    Raises:
        ChannelDown: the file with the login is there and cannot be read.
    """
    path = home / LOGIN
    try:
        return f"@{json.loads(path.read_text(encoding='utf-8'))['username']}"
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ChannelDown(
            f"The Telegram login {path} cannot be read: 'andy channels add telegram'."
        ) from error


def check_library(home: Path) -> ChannelFinding:
    """Check that the library is installed, and name its version. `home` is not used."""
    del home
    try:
        import telegram
    except ImportError:
        return ChannelFinding(is_problem=True, text=CHANNEL.missing_library)
    return ChannelFinding(is_problem=False, text=f"python-telegram-bot {telegram.__version__}.")


def check_login(home: Path) -> ChannelFinding:
    """Check that the stored login can be read, and name its bot. Blocks."""
    try:
        account_name = account(home)
    except ChannelDown as error:
        return ChannelFinding(is_problem=True, text=str(error))
    text = f"The bot is {account_name}." if account_name else "No bot is logged in to Telegram."
    return ChannelFinding(is_problem=False, text=text)
