"""Load the library that speaks WhatsApp. Only the bridge's process does; it costs 60 MB and 2 s."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

from orchestrator.base.import_blocker import without
from orchestrator.domain.errors import ChannelError

if TYPE_CHECKING:
    from neonize.aioze.client import NewAClient


class LibraryMissing(ChannelError):
    """The library that speaks WhatsApp cannot be loaded."""


def load() -> type[NewAClient]:
    """Import the client class. Raises `LibraryMissing`, which names the fix in one line."""
    # It sets up the root logger itself when nobody has; tools it misses are ones we do without.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    logging.getLogger("neonize.utils.ffmpeg").setLevel(logging.ERROR)
    try:
        # 7 MiB for the command that httpx also is, and to guess encodings of pages that nobody reads here.
        with warnings.catch_warnings(), without("click", "charset_normalizer", "chardet"):
            warnings.simplefilter("ignore")
            from neonize.aioze.client import NewAClient
    except Exception as error:
        # Its import loads a shared object, may download it, and looks for libmagic: anything may come out.
        raise LibraryMissing(fix_for(error)) from error
    return NewAClient  # type: ignore[no-any-return]


def fix_for(error: Exception) -> str:
    """Return what is wrong and how to fix it, in one line. Pure."""
    text = " ".join(str(error).split())
    if "libmagic" in text:
        return (
            "WhatsApp needs libmagic: install it (Debian: apt-get install libmagic1, macOS: brew install"
            " libmagic) and start again."
        )
    if isinstance(error, ModuleNotFoundError):
        return f"WhatsApp needs the Python package '{error.name}': pip install neonize."
    return (
        f"The WhatsApp library does not load on this machine ({type(error).__name__}: {text[:200]}):"
        " pip install --force-reinstall neonize, on Linux, macOS or Windows with a 64-bit Python."
    )
