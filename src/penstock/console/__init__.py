"""A web console for a cluster: pages over `penstock.aio.Admin`, rendered on the server.

    penstock console --namesrv mq:9876

It knows a cluster only through RocketMQ's own requests, so it also serves clusters of Apache
RocketMQ. ``app`` makes the application, ``serving`` runs it; each module of ``pages`` is one family
of pages. Needs the extra ``[console]``.
"""
