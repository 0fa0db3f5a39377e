"""RocketMQ in bytes: pure functions and values, no sockets, no files, no clock.

The remoting side: ``frames`` cut a stream, ``commands`` say what is in a frame, ``headers`` and
``bodies`` give it types, ``acl`` signs it. The stored side: ``records``, ``properties``,
``batches``, ``message_ids``. Whatever is not as it should be raises ``ProtocolError``.
"""
