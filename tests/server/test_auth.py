"""Who may ask for what: the one function as a table, and every route of the app behind it."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.routing import Route

from lmlang.errors import ProgramError
from lmlang.server.auth import ADMIN_PATHS, OPEN_PATHS, Access, tenant_of, verdict
from lmlang.server.config import ServerConfig, keys_of_environment, keys_of_file
from lmlang.testing import ScriptedBackend
from tests.server.harness import Running, running

USER, OTHER, ADMIN = "user-key-1", "user-key-2", "admin-key"
KEYED = Access.of(ServerConfig(keys=(USER, OTHER), admin_keys=(ADMIN,)))
OPEN = Access.of(ServerConfig())
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "get", "")


def headers(key: str | None, *more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    own = [] if key is None else [(b"authorization", f"Bearer {key}".encode())]
    return [(b"host", b"127.0.0.1:30000"), *own, *more]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with (
        ScriptedBackend() as backend,
        running(backend, keys=(USER, OTHER), admin_keys=(ADMIN,)) as server,
    ):
        yield server


def paths(server: Running) -> list[str]:
    found = []
    for context in server.app.router.routes:
        found += [route.path for route in _routes(context)]
    return sorted(set(found))


def _routes(route: object) -> list[Route]:
    """The routes in a route, which may be a whole router."""
    if isinstance(route, Route):
        return [route]
    inner = getattr(route, "routes", None) or getattr(
        getattr(route, "original_router", None), "routes", ()
    )
    return [found for one in inner for found in _routes(one)]


def spellings(path: str) -> list[str]:
    """Other ways to write a path, none of which may open more than the path itself."""
    return [
        *(f"{path}/", f"/{path}", f"{path}//", path.upper(), path.title(), f"/.{path}"),
        *(f"/health/..{path}", f"/health{path}", f"{path};x", f"{path}%00", f"{path} "),
    ]


def test_the_app_has_the_routes_that_the_matrix_is_about(server: Running) -> None:
    assert {"/health", "/ready", "/metrics", "/flush_cache", "/lm/generate"} <= set(paths(server))


@pytest.mark.parametrize("method", METHODS)
def test_without_a_key_every_route_is_shut_but_those_that_are_open(
    server: Running, method: str
) -> None:
    for path in paths(server):
        for spelt in (path, *spellings(path)):
            for key in (None, "", "wrong", USER[:-1], USER + "x", USER.upper()):
                found = verdict(method, spelt, headers(key), KEYED)
                is_open = method in ("GET", "HEAD") and spelt in OPEN_PATHS
                assert (found.refusal is None) == is_open, (method, spelt, key)
                assert found.tenant == ""
                assert not found.admin


@pytest.mark.parametrize("method", METHODS)
def test_no_users_key_opens_an_administrators_route_however_it_is_spelt(
    server: Running, method: str
) -> None:
    for path in ADMIN_PATHS:
        for spelt in (path, f"{path}/", f"/{path}", path.upper(), f"{path}//", f"/.{path}"):
            assert verdict(method, spelt, headers(USER), KEYED).refusal == 403, spelt
            assert verdict(method, spelt, headers(ADMIN), KEYED).admin
    for path in set(paths(server)) - ADMIN_PATHS - OPEN_PATHS:
        found = verdict(method, path, headers(USER), KEYED)
        assert (found.refusal, found.tenant, found.admin) == (None, tenant_of(USER), False)


def test_each_key_is_a_tenant_of_its_own() -> None:
    tenants = {verdict("POST", "/lm/generate", headers(key), KEYED).tenant for key in (USER, OTHER)}
    assert tenants == {tenant_of(USER), tenant_of(OTHER)}
    assert len(tenants) == 2
    assert not any(key in tenant for key in (USER, OTHER) for tenant in tenants)


def test_a_key_that_comes_twice_or_otherwise_than_as_bearer_is_none() -> None:
    for given in (
        [(b"authorization", USER.encode())],
        [(b"authorization", f"Basic {USER}".encode())],
        [(b"authorization", f"Bearer {USER}".encode())] * 2,
        [(b"x-api-key", USER.encode())],
        [(b"cookie", f"authorization=Bearer {USER}".encode())],
    ):
        assert verdict("GET", "/lm/info", given, KEYED).refusal == 401
    assert verdict("GET", "/lm/info", [(b"authorization", b"bearer " + USER.encode())], KEYED)


def test_all_keys_are_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    whole = hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append(len(one) == len(other) == 32)
        return whole(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counted)
    for key in (USER, OTHER, ADMIN, "wrong"):
        compared.clear()
        verdict("GET", "/lm/info", headers(key), KEYED)
        assert compared == [True] * 3


def test_without_keys_only_names_of_this_machine_and_no_web_page_come_in() -> None:
    for host in ("127.0.0.1:30000", "localhost:30000", "[::1]:30000", "127.0.0.1"):
        assert verdict("POST", "/lm/generate", [(b"host", host.encode())], OPEN).admin
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::2]"):
        assert verdict("POST", "/lm/generate", [(b"host", host.encode())], OPEN).refusal == 421
    for origin in ("https://evil.example", "null", "http://localhost:8000"):
        page = (b"origin", origin.encode())
        assert verdict("POST", "/lm/generate", headers(None, page), OPEN).refusal == 403
        assert verdict("OPTIONS", "/lm/generate", headers(None, page), OPEN).refusal == 403
    for site, refusal in (("cross-site", 403), ("same-site", 403), ("none", None)):
        picture = (b"sec-fetch-site", site.encode())
        assert verdict("GET", "/flush_cache", headers(None, picture), OPEN).refusal == refusal


def test_over_http_the_routes_answer_as_the_table_says(server: Running) -> None:
    with server.client() as nobody, server.client(USER) as user, server.client(ADMIN) as admin:
        for path in paths(server):
            for client, name in ((nobody, "nobody"), (user, "user"), (admin, "admin")):
                answer = client.get(re.sub("{.*}", "x", path))
                if path in OPEN_PATHS:
                    assert answer.status_code == 200
                elif name == "nobody":
                    assert answer.status_code == 401
                    assert answer.headers["www-authenticate"] == "Bearer"
                elif name == "user" and path in ADMIN_PATHS:
                    assert answer.status_code == 403
                else:
                    expected = (404,) if "{" in path else (200, 405)
                    assert answer.status_code in expected, (path, name)
        for path in ("//lm/info", "/lm/info/", "/LM/info", "/lm//info", "/lm/../lm/info", "/x"):
            assert nobody.get(path).status_code == 401
            assert user.get(server.url + path).status_code in (404, 405) or path == "/lm/../lm/info"


def test_preflights_reach_no_handler() -> None:
    page = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    with ScriptedBackend() as backend:
        cors = ("https://app.example",)
        with running(backend, keys=(USER,), cors=cors) as server, server.client() as client:
            asked = client.options("/lm/generate", headers=page)
            assert asked.headers["access-control-allow-origin"] == "https://app.example"
            other = client.options("/lm/generate", headers={**page, "Origin": "https://b.c"})
            assert "access-control-allow-origin" not in other.headers
            refused = client.get("/lm/info", headers={"Origin": "https://app.example"})
            assert refused.status_code == 401
        assert not backend.requests
        with running(backend, keys=(USER,)) as server, server.client() as client:
            assert client.options("/lm/generate", headers=page).status_code == 403
            assert client.options("/lm/generate").status_code == 405


def test_an_address_that_others_reach_needs_a_key_or_a_word() -> None:
    for host in ("0.0.0.0", "::", "192.168.0.5", "example.org"):
        with pytest.raises(ProgramError, match="--api-key-file"):
            ServerConfig(host=host)
        ServerConfig(host=host, keys=(USER,))
        ServerConfig(host=host, insecure=True)
    for host in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        ServerConfig(host=host)


def test_keys_come_from_files_and_variables(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\none-key\n\n  two-key \none-key\n")
    path.chmod(0o644)
    with pytest.raises(ProgramError, match="chmod 600"):
        keys_of_file(path)
    path.chmod(0o600)
    assert keys_of_file(path) == ("one-key", "two-key")
    path.write_text("# none\n")
    with pytest.raises(ProgramError, match="holds no key"):
        keys_of_file(path)
    with pytest.raises(ProgramError, match="cannot be read"):
        keys_of_file(path.with_name("other"))
    assert keys_of_environment("K", {"K": "a, b,,a"}) == ("a", "b")
    assert keys_of_environment("K", {}) == ()
    for key in ("", "two words", "näh", "tab\tkey"):
        with pytest.raises(ProgramError, match="a key is empty") as refused:
            ServerConfig(keys=(key,))
        assert not key or key not in str(refused.value)
    with pytest.raises(ProgramError, match="of a user is a key of an administrator"):
        ServerConfig(keys=("k",), admin_keys=("k",))
    assert "k-secret" not in repr(ServerConfig(keys=("k-secret",)))
    assert "k-secret" not in repr(Access.of(ServerConfig(keys=("k-secret",))))
