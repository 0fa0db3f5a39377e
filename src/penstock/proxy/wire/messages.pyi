"""Written by ``python -m tools.proxy_stubs``; do not edit."""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, Self, TypeVar

_T = TypeVar("_T")

POOL: Any

class Repeated(Generic[_T]):
    def __iter__(self) -> Iterator[_T]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> _T: ...
    def append(self, value: _T) -> None: ...
    def extend(self, values: Iterable[_T]) -> None: ...

class Message_:
    DESCRIPTOR: Any
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...
    def SerializeToString(self) -> bytes: ...
    def CopyFrom(self, other: Self) -> None: ...
    def HasField(self, field: str) -> bool: ...
    def WhichOneof(self, oneof: str) -> str | None: ...
    def ClearField(self, field: str) -> None: ...
    def ByteSize(self) -> int: ...

class Duration(Message_):
    seconds: int
    nanos: int
    def __init__(self, *, seconds: int = ..., nanos: int = ...) -> None: ...

class Timestamp(Message_):
    seconds: int
    nanos: int
    def __init__(self, *, seconds: int = ..., nanos: int = ...) -> None: ...

class Resource(Message_):
    resource_namespace: str
    name: str
    def __init__(
        self,
        *,
        resource_namespace: str | None = ...,
        name: str | None = ...,
    ) -> None: ...

class FilterExpression(Message_):
    type: int
    expression: str
    def __init__(
        self,
        *,
        type: int | None = ...,
        expression: str | None = ...,
    ) -> None: ...

class ExponentialBackoff(Message_):
    @property
    def initial(self) -> Duration: ...
    @property
    def max(self) -> Duration: ...
    multiplier: float
    def __init__(
        self,
        *,
        initial: Duration | None = ...,
        max: Duration | None = ...,
        multiplier: float | None = ...,
    ) -> None: ...

class CustomizedBackoff(Message_):
    @property
    def next(self) -> Repeated[Duration]: ...
    def __init__(
        self,
        *,
        next: Iterable[Duration] | None = ...,
    ) -> None: ...

class RetryPolicy(Message_):
    max_attempts: int
    @property
    def exponential_backoff(self) -> ExponentialBackoff: ...
    @property
    def customized_backoff(self) -> CustomizedBackoff: ...
    def __init__(
        self,
        *,
        max_attempts: int | None = ...,
        exponential_backoff: ExponentialBackoff | None = ...,
        customized_backoff: CustomizedBackoff | None = ...,
    ) -> None: ...

class SubscriptionEntry(Message_):
    @property
    def topic(self) -> Resource: ...
    @property
    def expression(self) -> FilterExpression: ...
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        expression: FilterExpression | None = ...,
    ) -> None: ...

class Address(Message_):
    host: str
    port: int
    def __init__(
        self,
        *,
        host: str | None = ...,
        port: int | None = ...,
    ) -> None: ...

class Endpoints(Message_):
    scheme: int
    @property
    def addresses(self) -> Repeated[Address]: ...
    def __init__(
        self,
        *,
        scheme: int | None = ...,
        addresses: Iterable[Address] | None = ...,
    ) -> None: ...

class Broker(Message_):
    name: str
    id: int
    @property
    def endpoints(self) -> Endpoints: ...
    def __init__(
        self,
        *,
        name: str | None = ...,
        id: int | None = ...,
        endpoints: Endpoints | None = ...,
    ) -> None: ...

class MessageQueue(Message_):
    @property
    def topic(self) -> Resource: ...
    id: int
    permission: int
    @property
    def broker(self) -> Broker: ...
    @property
    def accept_message_types(self) -> Repeated[int]: ...
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        id: int | None = ...,
        permission: int | None = ...,
        broker: Broker | None = ...,
        accept_message_types: Iterable[int] | None = ...,
    ) -> None: ...

class Assignment(Message_):
    @property
    def message_queue(self) -> MessageQueue: ...
    def __init__(
        self,
        *,
        message_queue: MessageQueue | None = ...,
    ) -> None: ...

class Digest(Message_):
    type: int
    checksum: str
    def __init__(
        self,
        *,
        type: int | None = ...,
        checksum: str | None = ...,
    ) -> None: ...

class DeadLetterQueue(Message_):
    topic: str
    message_id: str
    def __init__(
        self,
        *,
        topic: str | None = ...,
        message_id: str | None = ...,
    ) -> None: ...

class SystemProperties(Message_):
    tag: str
    @property
    def keys(self) -> Repeated[str]: ...
    message_id: str
    @property
    def body_digest(self) -> Digest: ...
    body_encoding: int
    message_type: int
    @property
    def born_timestamp(self) -> Timestamp: ...
    born_host: str
    @property
    def store_timestamp(self) -> Timestamp: ...
    store_host: str
    @property
    def delivery_timestamp(self) -> Timestamp: ...
    receipt_handle: str
    queue_id: int
    queue_offset: int
    @property
    def invisible_duration(self) -> Duration: ...
    delivery_attempt: int
    message_group: str
    trace_context: str
    @property
    def orphaned_transaction_recovery_duration(self) -> Duration: ...
    @property
    def dead_letter_queue(self) -> DeadLetterQueue: ...
    lite_topic: str
    priority: int
    def __init__(
        self,
        *,
        tag: str | None = ...,
        keys: Iterable[str] | None = ...,
        message_id: str | None = ...,
        body_digest: Digest | None = ...,
        body_encoding: int | None = ...,
        message_type: int | None = ...,
        born_timestamp: Timestamp | None = ...,
        born_host: str | None = ...,
        store_timestamp: Timestamp | None = ...,
        store_host: str | None = ...,
        delivery_timestamp: Timestamp | None = ...,
        receipt_handle: str | None = ...,
        queue_id: int | None = ...,
        queue_offset: int | None = ...,
        invisible_duration: Duration | None = ...,
        delivery_attempt: int | None = ...,
        message_group: str | None = ...,
        trace_context: str | None = ...,
        orphaned_transaction_recovery_duration: Duration | None = ...,
        dead_letter_queue: DeadLetterQueue | None = ...,
        lite_topic: str | None = ...,
        priority: int | None = ...,
    ) -> None: ...

class Message(Message_):
    @property
    def topic(self) -> Resource: ...
    @property
    def user_properties(self) -> MutableMapping[str, str]: ...
    @property
    def system_properties(self) -> SystemProperties: ...
    body: bytes
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        user_properties: Mapping[str, str] | None = ...,
        system_properties: SystemProperties | None = ...,
        body: bytes | None = ...,
    ) -> None: ...

class Status(Message_):
    code: int
    message: str
    def __init__(
        self,
        *,
        code: int | None = ...,
        message: str | None = ...,
    ) -> None: ...

class UA(Message_):
    language: int
    version: str
    platform: str
    hostname: str
    def __init__(
        self,
        *,
        language: int | None = ...,
        version: str | None = ...,
        platform: str | None = ...,
        hostname: str | None = ...,
    ) -> None: ...

class Publishing(Message_):
    @property
    def topics(self) -> Repeated[Resource]: ...
    max_body_size: int
    validate_message_type: bool
    def __init__(
        self,
        *,
        topics: Iterable[Resource] | None = ...,
        max_body_size: int | None = ...,
        validate_message_type: bool | None = ...,
    ) -> None: ...

class Subscription(Message_):
    @property
    def group(self) -> Resource: ...
    @property
    def subscriptions(self) -> Repeated[SubscriptionEntry]: ...
    fifo: bool
    receive_batch_size: int
    @property
    def long_polling_timeout(self) -> Duration: ...
    lite_subscription_quota: int
    max_lite_topic_size: int
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        subscriptions: Iterable[SubscriptionEntry] | None = ...,
        fifo: bool | None = ...,
        receive_batch_size: int | None = ...,
        long_polling_timeout: Duration | None = ...,
        lite_subscription_quota: int | None = ...,
        max_lite_topic_size: int | None = ...,
    ) -> None: ...

class Metric(Message_):
    on: bool
    @property
    def endpoints(self) -> Endpoints: ...
    def __init__(
        self,
        *,
        on: bool | None = ...,
        endpoints: Endpoints | None = ...,
    ) -> None: ...

class Settings(Message_):
    client_type: int
    @property
    def access_point(self) -> Endpoints: ...
    @property
    def backoff_policy(self) -> RetryPolicy: ...
    @property
    def request_timeout(self) -> Duration: ...
    @property
    def publishing(self) -> Publishing: ...
    @property
    def subscription(self) -> Subscription: ...
    @property
    def user_agent(self) -> UA: ...
    @property
    def metric(self) -> Metric: ...
    @property
    def client_properties(self) -> MutableMapping[str, str]: ...
    def __init__(
        self,
        *,
        client_type: int | None = ...,
        access_point: Endpoints | None = ...,
        backoff_policy: RetryPolicy | None = ...,
        request_timeout: Duration | None = ...,
        publishing: Publishing | None = ...,
        subscription: Subscription | None = ...,
        user_agent: UA | None = ...,
        metric: Metric | None = ...,
        client_properties: Mapping[str, str] | None = ...,
    ) -> None: ...

class OffsetOption(Message_):
    policy: int
    offset: int
    tail_n: int
    timestamp: int
    def __init__(
        self,
        *,
        policy: int | None = ...,
        offset: int | None = ...,
        tail_n: int | None = ...,
        timestamp: int | None = ...,
    ) -> None: ...

class QueryRouteRequest(Message_):
    @property
    def topic(self) -> Resource: ...
    @property
    def endpoints(self) -> Endpoints: ...
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        endpoints: Endpoints | None = ...,
    ) -> None: ...

class QueryRouteResponse(Message_):
    @property
    def status(self) -> Status: ...
    @property
    def message_queues(self) -> Repeated[MessageQueue]: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
        message_queues: Iterable[MessageQueue] | None = ...,
    ) -> None: ...

class SendMessageRequest(Message_):
    @property
    def messages(self) -> Repeated[Message]: ...
    def __init__(
        self,
        *,
        messages: Iterable[Message] | None = ...,
    ) -> None: ...

class SendResultEntry(Message_):
    @property
    def status(self) -> Status: ...
    message_id: str
    transaction_id: str
    offset: int
    recall_handle: str
    def __init__(
        self,
        *,
        status: Status | None = ...,
        message_id: str | None = ...,
        transaction_id: str | None = ...,
        offset: int | None = ...,
        recall_handle: str | None = ...,
    ) -> None: ...

class SendMessageResponse(Message_):
    @property
    def status(self) -> Status: ...
    @property
    def entries(self) -> Repeated[SendResultEntry]: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
        entries: Iterable[SendResultEntry] | None = ...,
    ) -> None: ...

class QueryAssignmentRequest(Message_):
    @property
    def topic(self) -> Resource: ...
    @property
    def group(self) -> Resource: ...
    @property
    def endpoints(self) -> Endpoints: ...
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        group: Resource | None = ...,
        endpoints: Endpoints | None = ...,
    ) -> None: ...

class QueryAssignmentResponse(Message_):
    @property
    def status(self) -> Status: ...
    @property
    def assignments(self) -> Repeated[Assignment]: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
        assignments: Iterable[Assignment] | None = ...,
    ) -> None: ...

class ReceiveMessageRequest(Message_):
    @property
    def group(self) -> Resource: ...
    @property
    def message_queue(self) -> MessageQueue: ...
    @property
    def filter_expression(self) -> FilterExpression: ...
    batch_size: int
    @property
    def invisible_duration(self) -> Duration: ...
    auto_renew: bool
    @property
    def long_polling_timeout(self) -> Duration: ...
    attempt_id: str
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        message_queue: MessageQueue | None = ...,
        filter_expression: FilterExpression | None = ...,
        batch_size: int | None = ...,
        invisible_duration: Duration | None = ...,
        auto_renew: bool | None = ...,
        long_polling_timeout: Duration | None = ...,
        attempt_id: str | None = ...,
    ) -> None: ...

class ReceiveMessageResponse(Message_):
    @property
    def status(self) -> Status: ...
    @property
    def message(self) -> Message: ...
    @property
    def delivery_timestamp(self) -> Timestamp: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
        message: Message | None = ...,
        delivery_timestamp: Timestamp | None = ...,
    ) -> None: ...

class AckMessageEntry(Message_):
    message_id: str
    receipt_handle: str
    lite_topic: str
    def __init__(
        self,
        *,
        message_id: str | None = ...,
        receipt_handle: str | None = ...,
        lite_topic: str | None = ...,
    ) -> None: ...

class AckMessageRequest(Message_):
    @property
    def group(self) -> Resource: ...
    @property
    def topic(self) -> Resource: ...
    @property
    def entries(self) -> Repeated[AckMessageEntry]: ...
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        topic: Resource | None = ...,
        entries: Iterable[AckMessageEntry] | None = ...,
    ) -> None: ...

class AckMessageResultEntry(Message_):
    message_id: str
    receipt_handle: str
    @property
    def status(self) -> Status: ...
    def __init__(
        self,
        *,
        message_id: str | None = ...,
        receipt_handle: str | None = ...,
        status: Status | None = ...,
    ) -> None: ...

class AckMessageResponse(Message_):
    @property
    def status(self) -> Status: ...
    @property
    def entries(self) -> Repeated[AckMessageResultEntry]: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
        entries: Iterable[AckMessageResultEntry] | None = ...,
    ) -> None: ...

class ForwardMessageToDeadLetterQueueRequest(Message_):
    @property
    def group(self) -> Resource: ...
    @property
    def topic(self) -> Resource: ...
    receipt_handle: str
    message_id: str
    delivery_attempt: int
    max_delivery_attempts: int
    lite_topic: str
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        topic: Resource | None = ...,
        receipt_handle: str | None = ...,
        message_id: str | None = ...,
        delivery_attempt: int | None = ...,
        max_delivery_attempts: int | None = ...,
        lite_topic: str | None = ...,
    ) -> None: ...

class ForwardMessageToDeadLetterQueueResponse(Message_):
    @property
    def status(self) -> Status: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...

class HeartbeatRequest(Message_):
    @property
    def group(self) -> Resource: ...
    client_type: int
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        client_type: int | None = ...,
    ) -> None: ...

class HeartbeatResponse(Message_):
    @property
    def status(self) -> Status: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...

class EndTransactionRequest(Message_):
    @property
    def topic(self) -> Resource: ...
    message_id: str
    transaction_id: str
    resolution: int
    source: int
    trace_context: str
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        message_id: str | None = ...,
        transaction_id: str | None = ...,
        resolution: int | None = ...,
        source: int | None = ...,
        trace_context: str | None = ...,
    ) -> None: ...

class EndTransactionResponse(Message_):
    @property
    def status(self) -> Status: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...

class PrintThreadStackTraceCommand(Message_):
    nonce: str
    def __init__(
        self,
        *,
        nonce: str | None = ...,
    ) -> None: ...

class ReconnectEndpointsCommand(Message_):
    nonce: str
    def __init__(
        self,
        *,
        nonce: str | None = ...,
    ) -> None: ...

class VerifyMessageResult(Message_):
    nonce: str
    def __init__(
        self,
        *,
        nonce: str | None = ...,
    ) -> None: ...

class ThreadStackTrace(Message_):
    nonce: str
    thread_stack_trace: str
    def __init__(
        self,
        *,
        nonce: str | None = ...,
        thread_stack_trace: str | None = ...,
    ) -> None: ...

class VerifyMessageCommand(Message_):
    nonce: str
    @property
    def message(self) -> Message: ...
    def __init__(
        self,
        *,
        nonce: str | None = ...,
        message: Message | None = ...,
    ) -> None: ...

class RecoverOrphanedTransactionCommand(Message_):
    @property
    def message(self) -> Message: ...
    transaction_id: str
    def __init__(
        self,
        *,
        message: Message | None = ...,
        transaction_id: str | None = ...,
    ) -> None: ...

class NotifyUnsubscribeLiteCommand(Message_):
    lite_topic: str
    def __init__(
        self,
        *,
        lite_topic: str | None = ...,
    ) -> None: ...

class TelemetryCommand(Message_):
    @property
    def status(self) -> Status: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def thread_stack_trace(self) -> ThreadStackTrace: ...
    @property
    def verify_message_result(self) -> VerifyMessageResult: ...
    @property
    def recover_orphaned_transaction_command(self) -> RecoverOrphanedTransactionCommand: ...
    @property
    def print_thread_stack_trace_command(self) -> PrintThreadStackTraceCommand: ...
    @property
    def verify_message_command(self) -> VerifyMessageCommand: ...
    @property
    def reconnect_endpoints_command(self) -> ReconnectEndpointsCommand: ...
    @property
    def notify_unsubscribe_lite_command(self) -> NotifyUnsubscribeLiteCommand: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
        settings: Settings | None = ...,
        thread_stack_trace: ThreadStackTrace | None = ...,
        verify_message_result: VerifyMessageResult | None = ...,
        recover_orphaned_transaction_command: RecoverOrphanedTransactionCommand | None = ...,
        print_thread_stack_trace_command: PrintThreadStackTraceCommand | None = ...,
        verify_message_command: VerifyMessageCommand | None = ...,
        reconnect_endpoints_command: ReconnectEndpointsCommand | None = ...,
        notify_unsubscribe_lite_command: NotifyUnsubscribeLiteCommand | None = ...,
    ) -> None: ...

class NotifyClientTerminationRequest(Message_):
    @property
    def group(self) -> Resource: ...
    def __init__(
        self,
        *,
        group: Resource | None = ...,
    ) -> None: ...

class NotifyClientTerminationResponse(Message_):
    @property
    def status(self) -> Status: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...

class ChangeInvisibleDurationRequest(Message_):
    @property
    def group(self) -> Resource: ...
    @property
    def topic(self) -> Resource: ...
    receipt_handle: str
    @property
    def invisible_duration(self) -> Duration: ...
    message_id: str
    lite_topic: str
    suspend: bool
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        topic: Resource | None = ...,
        receipt_handle: str | None = ...,
        invisible_duration: Duration | None = ...,
        message_id: str | None = ...,
        lite_topic: str | None = ...,
        suspend: bool | None = ...,
    ) -> None: ...

class ChangeInvisibleDurationResponse(Message_):
    @property
    def status(self) -> Status: ...
    receipt_handle: str
    def __init__(
        self,
        *,
        status: Status | None = ...,
        receipt_handle: str | None = ...,
    ) -> None: ...

class PullMessageRequest(Message_):
    @property
    def group(self) -> Resource: ...
    @property
    def message_queue(self) -> MessageQueue: ...
    offset: int
    batch_size: int
    @property
    def filter_expression(self) -> FilterExpression: ...
    @property
    def long_polling_timeout(self) -> Duration: ...
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        message_queue: MessageQueue | None = ...,
        offset: int | None = ...,
        batch_size: int | None = ...,
        filter_expression: FilterExpression | None = ...,
        long_polling_timeout: Duration | None = ...,
    ) -> None: ...

class PullMessageResponse(Message_):
    @property
    def status(self) -> Status: ...
    @property
    def message(self) -> Message: ...
    next_offset: int
    def __init__(
        self,
        *,
        status: Status | None = ...,
        message: Message | None = ...,
        next_offset: int | None = ...,
    ) -> None: ...

class UpdateOffsetRequest(Message_):
    @property
    def group(self) -> Resource: ...
    @property
    def message_queue(self) -> MessageQueue: ...
    offset: int
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        message_queue: MessageQueue | None = ...,
        offset: int | None = ...,
    ) -> None: ...

class UpdateOffsetResponse(Message_):
    @property
    def status(self) -> Status: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...

class GetOffsetRequest(Message_):
    @property
    def group(self) -> Resource: ...
    @property
    def message_queue(self) -> MessageQueue: ...
    def __init__(
        self,
        *,
        group: Resource | None = ...,
        message_queue: MessageQueue | None = ...,
    ) -> None: ...

class GetOffsetResponse(Message_):
    @property
    def status(self) -> Status: ...
    offset: int
    def __init__(
        self,
        *,
        status: Status | None = ...,
        offset: int | None = ...,
    ) -> None: ...

class QueryOffsetRequest(Message_):
    @property
    def message_queue(self) -> MessageQueue: ...
    query_offset_policy: int
    @property
    def timestamp(self) -> Timestamp: ...
    def __init__(
        self,
        *,
        message_queue: MessageQueue | None = ...,
        query_offset_policy: int | None = ...,
        timestamp: Timestamp | None = ...,
    ) -> None: ...

class QueryOffsetResponse(Message_):
    @property
    def status(self) -> Status: ...
    offset: int
    def __init__(
        self,
        *,
        status: Status | None = ...,
        offset: int | None = ...,
    ) -> None: ...

class RecallMessageRequest(Message_):
    @property
    def topic(self) -> Resource: ...
    recall_handle: str
    def __init__(
        self,
        *,
        topic: Resource | None = ...,
        recall_handle: str | None = ...,
    ) -> None: ...

class RecallMessageResponse(Message_):
    @property
    def status(self) -> Status: ...
    message_id: str
    def __init__(
        self,
        *,
        status: Status | None = ...,
        message_id: str | None = ...,
    ) -> None: ...

class SyncLiteSubscriptionRequest(Message_):
    action: int
    @property
    def topic(self) -> Resource: ...
    @property
    def group(self) -> Resource: ...
    @property
    def lite_topic_set(self) -> Repeated[str]: ...
    version: int
    @property
    def offset_option(self) -> OffsetOption: ...
    def __init__(
        self,
        *,
        action: int | None = ...,
        topic: Resource | None = ...,
        group: Resource | None = ...,
        lite_topic_set: Iterable[str] | None = ...,
        version: int | None = ...,
        offset_option: OffsetOption | None = ...,
    ) -> None: ...

class SyncLiteSubscriptionResponse(Message_):
    @property
    def status(self) -> Status: ...
    def __init__(
        self,
        *,
        status: Status | None = ...,
    ) -> None: ...
