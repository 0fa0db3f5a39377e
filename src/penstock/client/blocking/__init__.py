"""The classes for ordinary, blocking Python.

Calls are forwarded to the session's loop in its own thread; handlers run on a pool of threads,
coroutine handlers on one further loop.
"""
