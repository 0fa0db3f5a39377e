"""OpenTelemetry for producers and consumers: ``pip install 'penstock[otel]'``.

from penstock.otel import Telemetry

producer = Producer("shop", middleware=[Telemetry()])
consumer = PushConsumer("billing", middleware=[Telemetry()])
"""

from __future__ import annotations

from penstock.errors import MissingPackage

try:
    import opentelemetry.trace  # noqa: F401 - only to see whether it is there
except ImportError as error:
    raise MissingPackage(
        "penstock.otel needs the package opentelemetry-api, which is not installed",
        hint="pip install 'penstock[otel]'",
    ) from error

from penstock.otel.telemetry import Telemetry

__all__ = ["Telemetry"]
