"""Subscription expressions: tags and SQL92."""
