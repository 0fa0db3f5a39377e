"""The common part of the blocking and the asyncio classes: settings, sessions, handlers.

Both create a core on the session's loop and forward calls to it; they differ only in how they wait.
"""
