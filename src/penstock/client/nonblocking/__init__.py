"""The classes for asyncio: the same names as in `blocking`, with ``async``.

The session still has its own loop in its own thread, so that a handler that blocks the user's loop
cannot keep heartbeats from going out. Coroutine handlers run on the loop that called ``start``,
plain ones on threads.
"""
