"""SGLang's programs, with the tests that they have in this process, over a server."""

import inspect

import pytest

import lmlang as lm
from lmlang.testing import RandomBackend, ScriptedBackend
from tests.backends.served import served
from tests.frontend import test_sglang_programs as here

pytest.importorskip("fastapi")
MAKERS = [
    pytest.param(lambda: RandomBackend(3), id="random"),
    pytest.param(lambda: ScriptedBackend(completes="on a thread"), id="scripted"),
]


@pytest.fixture(params=MAKERS)
def backend(request):
    from lmlang.server.app import make_app

    with (
        request.param() as behind,
        served(make_app(behind)) as url,
        lm.RuntimeEndpoint(url) as remote,
    ):
        lm.set_default_backend(remote)
        yield remote
        lm.set_default_backend(None)


TESTS = {
    name: test
    for name, test in vars(here).items()
    if name.startswith("test_") and "backend" in inspect.signature(test).parameters
}
assert TESTS
globals().update(TESTS)
