"""Check the address of a messenger's server before a secret is sent there. Pure."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from orchestrator.domain.errors import BadRequest

_NAME = re.compile(rb"[\w.:%-]+")
"""The pattern of a host's name, or of an address of IPv4 or IPv6, perhaps with its zone."""


def checked_address(text: str, *, credential_kind: str) -> str:
    """Return the address of a server that a person typed: with its scheme, without a trailing slash.

    Without a scheme, `https://` is added. `credential_kind` is the secret that will be sent there, such as
    "password", for the text of the error.

    Raises:
        BadRequest: `text` is no address, has more than an address (a user name, a password, a query or a
            fragment), or would send the secret unencrypted to another machine.
    """
    text = text.strip()
    no_address = BadRequest(f"'{text}' is no address of a server, such as https://matrix.org.")
    if re.search(r"\s", text):
        raise no_address
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
        # Clients raise errors of their own for a port that is no number, and for a name with an empty part.
        _ = parts.port
        ascii_name = (parts.hostname or "").encode("idna")
    except ValueError as error:
        raise no_address from error
    has_more = "@" in parts.netloc or parts.query or parts.fragment
    if (
        parts.scheme not in ("https", "http")
        or not parts.hostname
        or has_more
        or not _NAME.fullmatch(ascii_name)
    ):
        raise no_address
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise BadRequest(
            f"The {credential_kind} would cross the network in the open: use https://{parts.netloc}."
        )
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine itself."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
