"""Request handlers of the broker, one module for each family of requests.

To serve another request, write two things:

1. its header, a `Header` struct in a module of `protocol.headers` (and a result header or a JSON
   body in `protocol.bodies`, if the answer has one);
2. a function in a module of this package, marked with ``@handles(RequestCode.NAME)``, whose
   parameter is annotated with the header class. `remoting.dispatch` says what it may return.

All codes are in `protocol.codes`. A new module of handlers is added to the list in `add_all`. If
`unsupported.UNSUPPORTED` lists the code, remove it there: refusals are added last and win.
"""

from penstock.broker.handlers import (
    clients,
    consume_stats,
    groups,
    locks,
    offsets,
    query,
    relay,
    request_modes,
    reset,
    runtime_info,
    send_back,
    settings,
    topics,
)
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
    pulling = Pulling(broker)
    dispatcher.add_raw(RequestCode.PULL_MESSAGE, pulling.pull)
    dispatcher.add_raw(RequestCode.LITE_PULL_MESSAGE, pulling.pull)
    replying = Replying(broker)
    dispatcher.add_raw(RequestCode.SEND_REPLY_MESSAGE, replying.reply_v1)
    dispatcher.add_raw(RequestCode.SEND_REPLY_MESSAGE_V2, replying.reply_v2)
    for module in (
        offsets,
        clients,
        locks,
        send_back,
        query,
        topics,
        groups,
        relay,
        reset,
        consume_stats,
        runtime_info,
        settings,
        request_modes,
    ):
        dispatcher.add_module(module, broker)
    dispatcher.add_raw(
        RequestCode.GET_ALL_DELAY_OFFSET,
        lambda peer, command: Command(0, body=encode_body(broker.delay_service.table())),
    )
    add_refusals(dispatcher)
