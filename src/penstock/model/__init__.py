"""What messages, queues, routes and subscriptions are, with no idea of how they travel."""

from penstock.model.message import Message, StoredMessage
from penstock.model.queue import MessageQueue
from penstock.model.route import BrokerRoute, QueueRoute, TopicRoute
from penstock.model.subscription import Subscription

__all__ = [
    "BrokerRoute",
    "Message",
    "MessageQueue",
    "QueueRoute",
    "StoredMessage",
    "Subscription",
    "TopicRoute",
]
