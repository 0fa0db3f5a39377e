"""Settings that all tests share."""

import signal

import pytest
from hypothesis import HealthCheck, settings

# A busy machine must not fail a property: no test here depends on how long an example takes.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")

# Who starts the tests in the background may have them ignore Ctrl-C; the commands that tests start
# would inherit that, and some of them are tested for how they take it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put groups first: each keeps one process busy for minutes, the rest fills the others."""
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)
