"""The gRPC endpoint of RocketMQ 5: what the official clients of Java, Python, Go and others speak.

    http2 ─▶ server ─▶ endpoint ─┬─ access: metadata to a user
    (bytes)  (calls)             ├─ handlers: the rules of the API
                                 └─ clients ─▶ remoting connection ─▶ the broker's own rules

The endpoint is a client of brokers, in a process of its own in ``penstock up`` and ``penstock
proxy`` (`remote_backend`). In an embedded cluster the broker is in the same process, and the
connections are in memory (`local_backend`). A broker sees each client of the endpoint with its own
connection, so groups, transactions and rights work as for clients of its own protocol.
"""
