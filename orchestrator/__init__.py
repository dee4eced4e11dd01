"""The host: channels → inbound → store → queue → container ⇄ ipc → outbound → channels."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("andy-assistant")
except PackageNotFoundError:  # a plain checkout, not installed
    __version__ = "0.0.0"
