"""Messages and enums of the API, one line each.

A field is ``number name:type``; no type means string, a trailing ``?`` explicit presence, ``*``
repeated. ``oneof name{...}`` encloses the fields of one. R, D, T and St stand for Resource,
Duration, Timestamp and Status. The values of an enum without a zero get one whose name ends in
``_UNSPECIFIED``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.proxy.wire.codes import Code

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE: Final = f"{PACKAGE}.MessagingService"

ENUMS: Final[Mapping[str, str]] = {
    "TransactionResolution": "COMMIT 1 ROLLBACK 2",
    "TransactionSource": "SOURCE_UNSPECIFIED 0 SOURCE_CLIENT 1 SOURCE_SERVER_CHECK 2",
    "Permission": "NONE 1 READ 2 WRITE 3 READ_WRITE 4",
    "FilterType": "TAG 1 SQL 2",
    "AddressScheme": "IPv4 1 IPv6 2 DOMAIN_NAME 3",
    "MessageType": "NORMAL 1 FIFO 2 DELAY 3 TRANSACTION 4 LITE 5 PRIORITY 6",
    "DigestType": "CRC32 1 MD5 2 SHA1 3",
    "ClientType": "PRODUCER 1 PUSH_CONSUMER 2 SIMPLE_CONSUMER 3 PULL_CONSUMER 4 "
    "LITE_PUSH_CONSUMER 5 LITE_SIMPLE_CONSUMER 6",
    "Encoding": "IDENTITY 1 GZIP 2",
    "Language": "JAVA 1 CPP 2 DOT_NET 3 GOLANG 4 RUST 5 PYTHON 6 PHP 7 NODE_JS 8 RUBY 9 "
    "OBJECTIVE_C 10 DART 11 KOTLIN 12",
    "QueryOffsetPolicy": "BEGINNING 0 END 1 TIMESTAMP 2",
    "LiteSubscriptionAction": "PARTIAL_ADD 0 PARTIAL_REMOVE 1 COMPLETE_ADD 2 COMPLETE_REMOVE 3",
    "Code": " ".join(f"{code.name} {code.value}" for code in Code),
}

NESTED_ENUMS: Final[Mapping[str, Mapping[str, str]]] = {
    "OffsetOption": {"Policy": "LAST 0 MIN 1 MAX 2"}
}

DEFINITIONS: Final[Mapping[str, str]] = {
    "Resource": "1 resource_namespace 2 name",
    "FilterExpression": "1 type:FilterType 2 expression",
    "ExponentialBackoff": "1 initial:D 2 max:D 3 multiplier:float",
    "CustomizedBackoff": "1 next:D*",
    "RetryPolicy": "1 max_attempts:i32 oneof strategy{ 2 exponential_backoff:ExponentialBackoff "
    "3 customized_backoff:CustomizedBackoff }",
    "SubscriptionEntry": "1 topic:R 2 expression:FilterExpression",
    "Address": "1 host 2 port:i32",
    "Endpoints": "1 scheme:AddressScheme 2 addresses:Address*",
    "Broker": "1 name 2 id:i32 3 endpoints:Endpoints",
    "MessageQueue": "1 topic:R 2 id:i32 3 permission:Permission 4 broker:Broker "
    "5 accept_message_types:MessageType*",
    "Assignment": "1 message_queue:MessageQueue",
    "Digest": "1 type:DigestType 2 checksum",
    "DeadLetterQueue": "1 topic 2 message_id",
    "SystemProperties": "1 tag? 2 keys:string* 3 message_id 4 body_digest:Digest "
    "5 body_encoding:Encoding 6 message_type:MessageType 7 born_timestamp:T 8 born_host "
    "9 store_timestamp:T? 10 store_host 11 delivery_timestamp:T? 12 receipt_handle? "
    "13 queue_id:i32 14 queue_offset:i64? 15 invisible_duration:D? 16 delivery_attempt:i32? "
    "17 message_group? 18 trace_context? 19 orphaned_transaction_recovery_duration:D? "
    "20 dead_letter_queue:DeadLetterQueue? 21 lite_topic? 22 priority:i32?",
    "Message": "1 topic:R 2 user_properties:map 3 system_properties:SystemProperties 4 body:bytes",
    "Status": "1 code:Code 2 message",
    "UA": "1 language:Language 2 version 3 platform 4 hostname",
    "Publishing": "1 topics:R* 2 max_body_size:i32 3 validate_message_type:bool",
    "Subscription": "1 group:R? 2 subscriptions:SubscriptionEntry* 3 fifo:bool? "
    "4 receive_batch_size:i32? 5 long_polling_timeout:D? 6 lite_subscription_quota:i32? "
    "7 max_lite_topic_size:i32?",
    "Metric": "1 on:bool 2 endpoints:Endpoints?",
    "Settings": "1 client_type:ClientType? 2 access_point:Endpoints? 3 backoff_policy:RetryPolicy? "
    "4 request_timeout:D? oneof pub_sub{ 5 publishing:Publishing 6 subscription:Subscription } "
    "7 user_agent:UA 8 metric:Metric 9 client_properties:map",
    "OffsetOption": "oneof offset_type{ 1 policy:OffsetOption.Policy 2 offset:i64 3 tail_n:i64 "
    "4 timestamp:i64 }",
}

SERVICE_MESSAGES: Final[Mapping[str, str]] = {
    "QueryRouteRequest": "1 topic:R 2 endpoints:Endpoints",
    "QueryRouteResponse": "1 status:St 2 message_queues:MessageQueue*",
    "SendMessageRequest": "1 messages:Message*",
    "SendResultEntry": "1 status:St 2 message_id 3 transaction_id 4 offset:i64 5 recall_handle",
    "SendMessageResponse": "1 status:St 2 entries:SendResultEntry*",
    "QueryAssignmentRequest": "1 topic:R 2 group:R 3 endpoints:Endpoints",
    "QueryAssignmentResponse": "1 status:St 2 assignments:Assignment*",
    "ReceiveMessageRequest": "1 group:R 2 message_queue:MessageQueue "
    "3 filter_expression:FilterExpression 4 batch_size:i32 5 invisible_duration:D? "
    "6 auto_renew:bool 7 long_polling_timeout:D? 8 attempt_id?",
    "ReceiveMessageResponse": "oneof content{ 1 status:St 2 message:Message "
    "3 delivery_timestamp:T }",
    "AckMessageEntry": "1 message_id 2 receipt_handle 3 lite_topic?",
    "AckMessageRequest": "1 group:R 2 topic:R 3 entries:AckMessageEntry*",
    "AckMessageResultEntry": "1 message_id 2 receipt_handle 3 status:St",
    "AckMessageResponse": "1 status:St 2 entries:AckMessageResultEntry*",
    "ForwardMessageToDeadLetterQueueRequest": "1 group:R 2 topic:R 3 receipt_handle 4 message_id "
    "5 delivery_attempt:i32 6 max_delivery_attempts:i32 7 lite_topic?",
    "ForwardMessageToDeadLetterQueueResponse": "1 status:St",
    "HeartbeatRequest": "1 group:R? 2 client_type:ClientType",
    "HeartbeatResponse": "1 status:St",
    "EndTransactionRequest": "1 topic:R 2 message_id 3 transaction_id "
    "4 resolution:TransactionResolution 5 source:TransactionSource 6 trace_context",
    "EndTransactionResponse": "1 status:St",
    "PrintThreadStackTraceCommand": "1 nonce",
    "ReconnectEndpointsCommand": "1 nonce",
    "VerifyMessageResult": "1 nonce",
    "ThreadStackTrace": "1 nonce 2 thread_stack_trace?",
    "VerifyMessageCommand": "1 nonce 2 message:Message",
    "RecoverOrphanedTransactionCommand": "1 message:Message 2 transaction_id",
    "NotifyUnsubscribeLiteCommand": "1 lite_topic",
    "TelemetryCommand": "1 status:St? oneof command{ 2 settings:Settings "
    "3 thread_stack_trace:ThreadStackTrace 4 verify_message_result:VerifyMessageResult "
    "5 recover_orphaned_transaction_command:RecoverOrphanedTransactionCommand "
    "6 print_thread_stack_trace_command:PrintThreadStackTraceCommand "
    "7 verify_message_command:VerifyMessageCommand "
    "8 reconnect_endpoints_command:ReconnectEndpointsCommand "
    "9 notify_unsubscribe_lite_command:NotifyUnsubscribeLiteCommand }",
    "NotifyClientTerminationRequest": "1 group:R?",
    "NotifyClientTerminationResponse": "1 status:St",
    "ChangeInvisibleDurationRequest": "1 group:R 2 topic:R 3 receipt_handle "
    "4 invisible_duration:D 5 message_id 6 lite_topic? 7 suspend:bool?",
    "ChangeInvisibleDurationResponse": "1 status:St 2 receipt_handle",
    "PullMessageRequest": "1 group:R 2 message_queue:MessageQueue 3 offset:i64 4 batch_size:i32 "
    "5 filter_expression:FilterExpression 6 long_polling_timeout:D",
    "PullMessageResponse": "oneof content{ 1 status:St 2 message:Message 3 next_offset:i64 }",
    "UpdateOffsetRequest": "1 group:R 2 message_queue:MessageQueue 3 offset:i64",
    "UpdateOffsetResponse": "1 status:St",
    "GetOffsetRequest": "1 group:R 2 message_queue:MessageQueue",
    "GetOffsetResponse": "1 status:St 2 offset:i64",
    "QueryOffsetRequest": "1 message_queue:MessageQueue 2 query_offset_policy:QueryOffsetPolicy "
    "3 timestamp:T?",
    "QueryOffsetResponse": "1 status:St 2 offset:i64",
    "RecallMessageRequest": "1 topic:R 2 recall_handle",
    "RecallMessageResponse": "1 status:St 2 message_id",
    "SyncLiteSubscriptionRequest": "1 action:LiteSubscriptionAction 2 topic:R 3 group:R "
    "4 lite_topic_set:string* 5 version:i64? 6 offset_option:OffsetOption?",
    "SyncLiteSubscriptionResponse": "1 status:St",
}
