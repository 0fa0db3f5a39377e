"""The pages, one module for each family: ``ROUTES`` show, ``CHANGES`` change the cluster."""

from penstock.console import live
from penstock.console.pages import brokers, groups, overview, preferences, topics

PAGES = (overview, topics, groups, brokers, preferences, live)
