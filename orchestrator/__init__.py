"""The host: channels → inbound → store → queue → container ⇄ ipc → outbound → channels."""

__version__ = "0.1.0"
