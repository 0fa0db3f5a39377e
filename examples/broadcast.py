"""Every member of a group receives every message: cache invalidation in many processes.

python examples/broadcast.py
"""

from __future__ import annotations

import tempfile
import threading

from penstock import Message, Producer, PushConsumer, StoredMessage, embedded

MEMBERS = ("server-1", "server-2", "server-3")


def main() -> None:
    got: dict[str, set[bytes]] = {name: set() for name in MEMBERS}
    all_got_all = threading.Barrier(len(MEMBERS) + 1)

    with embedded() as mq, tempfile.TemporaryDirectory() as directory:
        mq.admin.create_topic("invalidations", queues=2)
        consumers = []
        for name in MEMBERS:
            consumer = PushConsumer(
                group="caches",
                namesrv=mq.namesrv,
                model="broadcasting",
                start_from="first",
                # In clustering mode the broker keeps the group's offsets. Here each member keeps
                # its own in a file, so it needs a name that stays the same after a restart.
                instance=name,
                offsets_dir=directory,
            )

            @consumer.on("invalidations")
            def drop(message: StoredMessage, name: str = name) -> None:
                got[name].add(message.body)
                if len(got[name]) == 3:
                    all_got_all.wait(timeout=30)

            consumer.start()
            consumers.append(consumer)

        with Producer(group="admin", namesrv=mq.namesrv) as producer:
            for page in (b"/home", b"/prices", b"/about"):
                producer.send(Message("invalidations", page))
        all_got_all.wait(timeout=30)
        for consumer in consumers:
            consumer.stop()

    for name in MEMBERS:
        print(f"{name} dropped {', '.join(sorted(page.decode() for page in got[name]))}")


if __name__ == "__main__":
    main()
