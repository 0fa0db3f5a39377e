"""The gRPC API ``apache.rocketmq.v2``: its definitions as tables, and messages made from them.

`definitions` has every message and enum; `descriptors` builds them into a private pool at run time,
so neither generated code nor the version of a code generator matters, and the official Python
client, which registers the same names, can run in the same process. `messages` are the classes;
`messages.pyi`, which ``python -m tools.proxy_stubs`` writes, are their types.
"""
