"""Consuming: from assignment and pull to the handler and the commit."""
