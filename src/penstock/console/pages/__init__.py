"""The pages, one module for each family: ``ROUTES`` show, ``EXPORTS`` give out files,
``CHANGES`` change the cluster.
"""

from penstock.console import live
from penstock.console.pages import (
    access,
    brokers,
    clients,
    dead_letters,
    groups,
    message,
    messages,
    overview,
    preferences,
    resets,
    search,
    sending,
    spark,
    topics,
    waiting,
    work,
)

PAGES = (
    overview,
    topics,
    messages,
    message,
    sending,
    groups,
    resets,
    dead_letters,
    waiting,
    clients,
    brokers,
    spark,
    access,
    search,
    work,
    preferences,
    live,
)
