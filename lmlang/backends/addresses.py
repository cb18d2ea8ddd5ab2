"""Addresses of servers: checked, and whether they are of this machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from lmlang.errors import ProgramError, ProgramTypeError, an, quote


def address(url: object) -> str:
    """An address without its last slash; ProgramError where it is none, or holds a secret."""
    if not isinstance(url, str):
        raise ProgramTypeError(
            f"the address of a server is a text such as 'http://localhost:30000', not "
            f"{an(type(url).__name__)}."
        )
    try:
        parts = urlsplit(url)
        secret = parts.username is not None or parts.password is not None
        plain = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        secret, plain = False, None
    if secret:
        raise ProgramError("the address of the server holds a password: give it as api_key=….")
    if not plain or parts.query or parts.fragment or not url.isascii() or not url.isprintable():
        raise ProgramError(
            f"{quote(url)} is no address of a server: give one such as 'http://localhost:30000'."
        )
    return url.rstrip("/")


def is_local(url: str) -> bool:
    """Whether an address is of this machine, where no proxy of the environment leads to."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
