"""Settings that all tests share."""

from hypothesis import HealthCheck, settings

# A busy machine must not fail a property: no test here depends on how long an example takes.
settings.register_profile("penstock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("penstock")
