"""From a message to its receipt.

`outgoing` checks a message, `selection` chooses its queue, `sending` makes the attempts, `receipts`
reads the answer. `lingering` and `blocking_send` are fast paths; `producer` connects the parts.
"""
