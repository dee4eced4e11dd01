"""Load the library that speaks WhatsApp. Only the bridge's process loads it, since it takes 60 MB and 2 s."""

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
    """Import the library that speaks WhatsApp, and return its client class.

    Logging of the process is configured as well. Raises `LibraryMissing`, whose text is the fix in one line.
    """
    # Configured here first, because the library configures the root logger itself if nobody has. Its warnings
    # about a missing ffmpeg are hidden, because nothing here needs ffmpeg.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    logging.getLogger("neonize.utils.ffmpeg").setLevel(logging.ERROR)
    try:
        # Hiding these saves 7 MiB: httpx loads click for its command-line program, and the other two guess
        # the encodings of web pages; nothing here uses either.
        with warnings.catch_warnings(), without("click", "charset_normalizer", "chardet"):
            warnings.simplefilter("ignore")
            from neonize.aioze.client import NewAClient
    except Exception as error:
        # The import loads a shared object, may download it, and looks for libmagic, so it may raise anything.
        raise LibraryMissing(fix_for(error)) from error
    return NewAClient  # type: ignore[no-any-return]


def fix_for(error: Exception) -> str:
    """Return one line that says why the library does not load and how to fix that. Pure."""
    text = " ".join(str(error).split())
    if "libmagic" in text:
        return (
            "WhatsApp needs libmagic: install it (Debian: apt-get install libmagic1, macOS: brew install"
            " libmagic) and start again."
        )
    if isinstance(error, ModuleNotFoundError):
        # The missing package is neonize, or one that it needs: pip installs that with it.
        return f"WhatsApp needs the Python package '{error.name}': pip install neonize."
    return (
        f"The WhatsApp library does not load on this machine ({type(error).__name__}: {text[:200]}):"
        " pip install --force-reinstall neonize, on Linux, macOS or Windows with a 64-bit Python."
    )
