"""Messages, queues, routes and subscriptions, and the layout and text forms they share."""

from penstock.model.message import Message, StoredMessage, TypedMessage
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
    "TypedMessage",
]
