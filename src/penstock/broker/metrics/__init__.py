"""Metrics of a broker in Prometheus' format, and its health, over HTTP."""
