"""A broker with its gRPC endpoint that prints how many clients, streams and tasks it has.

    python -m tools.soak.stream_server DIRECTORY PORT

It runs until it gets a signal; `tools.soak.streams` starts it.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from tests.proxy.lab import topic_config
from tools.soak.outcome import say

from penstock.broker import Broker, BrokerConfig
from penstock.proxy.grpc_servers import local_server
from penstock.remoting.loop import run as run_loop
from penstock.runtime.clock import SystemClock

REPORT_SECONDS = 0.5


async def serve(directory: Path, port: int) -> None:
    """Serve and report until SIGTERM."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with Broker(BrokerConfig(listen_port=0), directory) as broker:
        broker.state.topics.put(topic_config(queues=1))
        async with local_server(broker, SystemClock(), host="127.0.0.1", port=port) as server:
            say(f"ready grpc=127.0.0.1:{server.port}")
            while not ended.is_set():
                streams, clients = (
                    server.endpoint.open_streams(),
                    len(server.endpoint.parts.clients),
                )
                say(f"streams={streams} clients={clients} tasks={len(asyncio.all_tasks())}")
                await asyncio.sleep(REPORT_SECONDS)


if __name__ == "__main__":
    run_loop(serve(Path(sys.argv[1]), int(sys.argv[2])))
