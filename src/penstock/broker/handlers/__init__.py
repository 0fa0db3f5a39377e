"""Request handlers of the broker, one module for each family of requests.

To serve another request, write two things:

1. its header, a `Header` struct in a module of `protocol.headers` (and a result header or a JSON
   body in `protocol.bodies`, if the answer has one);
2. a function in a module of this package, marked with ``@handles(RequestCode.NAME)``, whose
   parameter is annotated with the header class. `remoting.dispatch` says what it may return.

All codes are in `protocol.codes`. Every module of this package is searched for handlers. A code has
one handler: if `unsupported.UNSUPPORTED` lists it, remove it there.
"""

import importlib
import pkgutil

from penstock.broker.handlers.pull import Pulling
from penstock.broker.handlers.reply import Replying
from penstock.broker.handlers.send import Sending
from penstock.broker.handlers.unsupported import add_refusals
from penstock.broker.state import BrokerState
from penstock.protocol.bodies.codec import encode_body
from penstock.protocol.codes import RequestCode
from penstock.protocol.commands import Command
from penstock.remoting.dispatch import Dispatcher


def add_all(dispatcher: Dispatcher, broker: BrokerState) -> None:
    """Serve every request this broker knows."""
    sending = Sending(broker)
    dispatcher.add_raw(RequestCode.SEND_MESSAGE, sending.send_v1)
    dispatcher.add_raw(RequestCode.SEND_MESSAGE_V2, sending.send_v2)
    dispatcher.add_raw(RequestCode.SEND_BATCH_MESSAGE, sending.send_v2)
    dispatcher.add_fast_path(RequestCode.SEND_MESSAGE_V2, sending.fast.serve)
    dispatcher.add_fast_path(RequestCode.SEND_BATCH_MESSAGE, sending.fast.serve)
    dispatcher.add_fast_path(RequestCode.END_TRANSACTION, sending.fast.end_transaction)
    pulling = Pulling(broker)
    dispatcher.add_raw(RequestCode.PULL_MESSAGE, pulling.pull)
    dispatcher.add_raw(RequestCode.LITE_PULL_MESSAGE, pulling.pull)
    replying = Replying(broker)
    dispatcher.add_raw(RequestCode.SEND_REPLY_MESSAGE, replying.reply_v1)
    dispatcher.add_raw(RequestCode.SEND_REPLY_MESSAGE_V2, replying.reply_v2)
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        dispatcher.add_module(importlib.import_module(module.name), broker)
    dispatcher.add_raw(
        RequestCode.GET_ALL_DELAY_OFFSET,
        lambda peer, command: Command(0, body=encode_body(broker.delay_service.table())),
    )
    add_refusals(dispatcher)
