"""RocketMQ's bytes: pure functions and values, no sockets, no files, no clock.

The remoting side: ``frames`` cuts a stream, ``commands`` decodes a frame, ``headers`` and
``bodies`` give it types, ``acl`` signs it, ``fastjson`` reads Java's dialect of JSON. The stored
side: ``records`` (their layout is in `model.record_layout`). ``filters`` compiles subscriptions.
Malformed input raises ``ProtocolError``.
"""
