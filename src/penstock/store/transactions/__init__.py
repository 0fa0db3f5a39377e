"""Transactions as a store holds them: which halves are open, and what became of the others.

Decisions, checks and everything else that writes is the broker's matter (`broker.transactions`).
"""
