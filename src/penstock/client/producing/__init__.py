"""Sending: from a message to its receipt."""
