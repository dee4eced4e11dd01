"""Read which account is logged in, and check library and login for `andy doctor`, without a connection."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.channels.description import ChannelFinding
from orchestrator.channels.matrix.description import CHANNEL, LOGIN
from orchestrator.domain.errors import ChannelDown


def account(home: Path) -> str:
    """Return the Matrix account that is logged in, or an empty text if nobody is. Blocks.

    Raises:
        ChannelDown: the file with the login is there and cannot be read.
    """
    path = home / LOGIN
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["user_id"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ChannelDown(f"The Matrix login {path} cannot be read: 'andy channels add matrix'.") from error


def check_library(home: Path) -> ChannelFinding:
    """Check that the library is installed and can read encrypted rooms. `home` is not used.

    Without a problem, the returned text is a placeholder: the doctor shows the text of `check_login` instead.
    """
    del home
    try:
        import nio
    except ImportError:
        return ChannelFinding(is_problem=True, text=CHANNEL.missing_library)
    if not nio.crypto.ENCRYPTION_ENABLED:
        text = "Encrypted rooms cannot be read: pip install 'matrix-nio[e2e]'. Others work."
        return ChannelFinding(is_problem=True, text=text)
    return ChannelFinding(is_problem=False, text="Nobody is logged in to Matrix.")


def check_login(home: Path) -> ChannelFinding:
    """Check that the stored login can be read, and name its account. Blocks."""
    try:
        account_name = account(home)
    except ChannelDown as error:
        return ChannelFinding(is_problem=True, text=str(error))
    text = f"Logged in as {account_name}." if account_name else "Nobody is logged in to Matrix."
    return ChannelFinding(is_problem=False, text=text)
