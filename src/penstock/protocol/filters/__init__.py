"""Filters of a subscription: ``tags`` by hash code, ``sql92`` by message properties."""
