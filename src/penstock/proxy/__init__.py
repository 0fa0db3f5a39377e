"""The gRPC endpoint of RocketMQ 5: what the official clients of Java, Python, Go and others speak.

    gRPC call ─▶ server ─▶ endpoint ─┬─ access: metadata to a user
     (the only module with grpc)     ├─ handlers: the rules of the API
                                     └─ clients ─▶ remoting connection ─▶ the broker's own rules

The endpoint is a client of brokers. In ``penstock up`` the broker is in the same process and the
connections are in memory (`local_backend`). A broker sees each client of the endpoint with its own
connection, so groups, transactions and rights work as for clients of its own protocol.
"""
