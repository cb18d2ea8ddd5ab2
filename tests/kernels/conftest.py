"""Tests of Triton kernels run under its interpreter; see `tests.kernels.interpreted`."""

from tests.kernels.interpreted import pytest_pyfunc_call  # noqa: F401 - a hook of pytest
