"""Errors of the API, as RFC 9457 has them."""

from __future__ import annotations

import uuid

from starlette.responses import JSONResponse, Response

PROBLEM = "application/problem+json"


def problem_response(
    status: int, title: str, what: str, *, expected: str | None = None, hint: str | None = None
) -> Response:
    """An error as an object, with what the pages say."""
    return JSONResponse(
        {
            "type": "about:blank",
            "title": title,
            "status": status,
            "what": what,
            "expected": expected,
            "hint": hint,
            "request_id": uuid.uuid4().hex,
        },
        status,
        media_type=PROBLEM,
    )
