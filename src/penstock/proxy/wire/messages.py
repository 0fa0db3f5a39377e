"""The message classes of the API, made at run time; their types are in ``messages.pyi``."""

from google.protobuf import message_factory

from penstock.proxy.wire.definitions import PACKAGE
from penstock.proxy.wire.descriptors import MESSAGES, make_pool

POOL = make_pool()

globals().update(
    {
        name: message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in MESSAGES
    }
)
for _name in ("Duration", "Timestamp"):
    globals()[_name] = message_factory.GetMessageClass(
        POOL.FindMessageTypeByName(f"google.protobuf.{_name}")
    )
