"""Users, their rights, and the guard that checks each request.

    request ─▶ guard ─┬─ the user: access key, signature    (users, protocol.acl)
                      ├─ needs: resources and actions       (needs)
                      └─ the user's entries allow them?     (evaluate) ─▶ handler or refusal

`model` has users, entries and their texts; `user_file` keeps them on the disk, shared by all
processes of one ``penstock up``; `audit` writes what was refused and changed. Servers without
authentication wrap nothing and pay nothing.
"""

from penstock.auth.evaluate import Verdict, decide
from penstock.auth.model import (
    Action,
    Decision,
    Entry,
    Policy,
    Resource,
    ResourceType,
    Secret,
    User,
)

__all__ = [
    "Action",
    "Decision",
    "Entry",
    "Policy",
    "Resource",
    "ResourceType",
    "Secret",
    "User",
    "Verdict",
    "decide",
]
