"""What the runners of concurrent and of orderly consumers have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from penstock.client.consuming.consumer_state import ConsumerState
from penstock.client.consuming.executors import Executor
from penstock.client.consuming.listeners import Job, Listener
from penstock.client.consuming.message_batches import MessageBatch
from penstock.client.consuming.process_queue import ProcessQueue
from penstock.client.consuming.send_back import FailedMessages


class HandlerRunner(ABC):
    """Submits pulled messages to executors and acts on the results; on the session's loop."""

    def __init__(
        self,
        state: ConsumerState,
        failed: FailedMessages,
        *,
        listener: Callable[[str], Listener],
        executor: Callable[[Listener], Executor],
    ) -> None:
        self._state = state
        self._failed = failed
        self._listener = listener
        self._executor = executor

    @abstractmethod
    def start(self) -> None:
        """Begin the work that is done at intervals."""

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """How many messages of a pull go together at most."""

    @abstractmethod
    def submit(
        self, queue: ProcessQueue, batches: Sequence[MessageBatch], *, announced: bool
    ) -> None:
        """Consume a pull; ``announced`` when the queue was idle before."""

    @abstractmethod
    def finished(self, jobs: Sequence[Job]) -> None:
        """Act on the results of handler calls."""
