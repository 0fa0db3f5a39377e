"""One session for each client id: connections, routes, heartbeats, and the loop it runs on.

`client_session` is the session, `session_registry` shares it between clients, `loop_thread` is its
usual host.
"""
