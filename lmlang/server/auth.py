"""Who may ask for what: one pure function of method, path, headers and keys. Default: nobody."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from lmlang.server.config import ServerConfig, is_loopback

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values."""

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Everyone may look at these."""
ADMIN_PATHS = frozenset(
    {
        *("/abort_request", "/flush_cache", "/metrics", "/openapi.json"),
        *("/server_info", "/get_server_info", "/get_server_args"),
    }
)
"""These say of all tenants together, or change something for all: they need an administrator."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may come in.

    Args:
        users: Digest of each user's key, and the tenant whose it is.
        admins: Digests of the keys of administrators.
        origins: Web pages that may ask.
        local: Whether only names of this machine may stand in a request's ``Host``; so a web page
            cannot reach a server without keys by a name of its own.
    """

    users: tuple[tuple[bytes, str], ...] = field(default=(), repr=False)
    admins: tuple[bytes, ...] = field(default=(), repr=False)
    origins: frozenset[str] = frozenset()
    local: bool = False

    @classmethod
    def of(cls, config: ServerConfig) -> Access:
        """That of a configuration."""
        return cls(
            tuple((_digest(key.encode()), tenant_of(key)) for key in config.keys),
            tuple(_digest(key.encode()) for key in config.admin_keys),
            frozenset(config.cors),
            config.is_open and not config.insecure,
        )

    @property
    def is_open(self) -> bool:
        """Whether no key is asked for."""
        return not self.users and not self.admins


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a request may come in, and as whose.

    Args:
        refusal: Status to refuse it with; None: it may.
        message: Why it is refused.
        tenant: Whose caches it uses; "" where there are no keys.
        admin: Whether it comes from an administrator.
    """

    refusal: int | None = None
    message: str = ""
    tenant: str = ""
    admin: bool = False


def verdict(method: str, path: str, headers: Headers, access: Access) -> Verdict:
    """Whether a request may come in. Pure; it looks at all keys, whichever fits.

    Args:
        method: As sent.
        path: As sent, without the query; nothing of it is corrected.
        headers: Names in lower case.
        access: Who may come in.
    """
    refused = _wrong_site(headers, access)
    if refused is not None:
        return refused
    if method == "OPTIONS" or (method in ("GET", "HEAD") and path in OPEN_PATHS):
        return Verdict()
    if access.is_open:
        return Verdict(admin=True)
    presented = _bearer(headers)
    if presented is None:
        return Verdict(
            HTTPStatus.UNAUTHORIZED,
            "this server asks for a key: send the header Authorization: Bearer KEY.",
        )
    digest = _digest(presented)
    tenant = None
    for known, owner in access.users:
        tenant = owner if hmac.compare_digest(known, digest) else tenant
    admin = False
    for known in access.admins:
        admin = hmac.compare_digest(known, digest) or admin
    if admin:
        return Verdict(tenant="admin", admin=True)
    if tenant is None:
        return Verdict(HTTPStatus.UNAUTHORIZED, "this key opens nothing here: check it.")
    if _is_admin_path(path):
        return Verdict(HTTPStatus.FORBIDDEN, "this route is open to keys of administrators alone.")
    return Verdict(tenant=tenant)


def tenant_of(key: str) -> str:
    """The name of a key's tenant: says nothing of the key, and is the same in every process."""
    return hashlib.sha256(b"lmlang tenant " + key.encode()).hexdigest()[:16]


def _is_admin_path(path: str) -> bool:
    """Whether a path is, or looks like, an administrator's."""
    plain = "/" + "/".join(part for part in path.lower().split("/") if part not in ("", "."))
    return plain in ADMIN_PATHS or any(plain.startswith(known + "/") for known in ADMIN_PATHS)


def _wrong_site(headers: Headers, access: Access) -> Verdict | None:
    """The refusal of what a web page sends from where none may; None for anything else."""
    host = _one(headers, b"host")
    if access.local and host is not None and not _is_local(host):
        return Verdict(
            HTTPStatus.MISDIRECTED_REQUEST,
            "without keys this server answers to names of its own machine alone: ask for "
            "127.0.0.1 or localhost, or start it with a key.",
        )
    origin = _one(headers, b"origin")
    if origin is not None and origin not in access.origins:
        return Verdict(
            HTTPStatus.FORBIDDEN, "web pages of this origin may not ask: allow it by --cors."
        )
    if origin is None and _one(headers, b"sec-fetch-site") in ("cross-site", "same-site"):
        return Verdict(HTTPStatus.FORBIDDEN, "links and pictures of web pages may not ask.")
    return None


def _is_local(host: str) -> bool:
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host
    return is_loopback(name if name.startswith("[") else name.partition(":")[0])


def _bearer(headers: Headers) -> bytes | None:
    """The key of the one Authorization header."""
    given = list(_all(headers, b"authorization"))
    if len(given) != 1:
        return None
    scheme, _, key = given[0].partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" and key.strip() else None


def _one(headers: Headers, name: bytes) -> str | None:
    """The value of a header; several are joined, so that none of them is overlooked."""
    given = list(_all(headers, name))
    return b", ".join(given).decode("latin-1") if given else None


def _all(headers: Headers, name: bytes) -> Iterable[bytes]:
    return (value for key, value in headers if key == name)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
