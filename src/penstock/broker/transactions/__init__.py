"""Transactions: half messages, their decisions, and the questions about open ones."""
