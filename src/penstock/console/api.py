"""The JSON API: a twin of each page, by the same function, and its description in OpenAPI 3.1.

    GET /api/v1/c/local/groups?sort=-lag      the rows of the page, fields as `penstock --json`
    POST /api/v1/c/local/groups/billing/reset {"topic": "orders", "to": "first", "plan": "..."}

No cookie counts here. Where the console asks for a login, a request brings the access key and the
secret of a user in ``Authorization: Basic``. Errors are ``application/problem+json``.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from penstock.console.key_check import TOO_MANY
from penstock.console.problems import PROBLEM, problem_response
from penstock.console.security import API, COOKIE, Login, Session, basic_keys
from penstock.console.view import PAGE_SECONDS, page_deadline
from penstock.console.visit import Console, Twin, Visit, error_title, status_of
from penstock.errors import NotFound, PenstockError


def api_routes(pages: Iterable[BaseRoute]) -> list[BaseRoute]:
    """The twins of pages, and the description of all of them."""
    twins = [
        (route, twin)
        for route in pages
        if isinstance(route, Route)
        and isinstance(twin := getattr(route.endpoint, "twin", None), Twin)
    ]
    description = _description(twins)

    async def openapi(request: Request) -> Response:
        return JSONResponse(description)

    return [
        Route("/api/openapi.json", openapi),
        Mount(
            f"{API}/c/{{context}}",
            routes=[
                Route(route.path, _serve(twin), methods=list(route.methods or ()))
                for route, twin in twins
            ],
        ),
    ]


def _serve(twin: Twin) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        console: Console = request.app.state.console
        page_deadline.set(time.monotonic() + PAGE_SECONDS)
        context = request.path_params["context"]
        if context not in console.options.contexts:
            return problem(NotFound(f"no cluster {context!r} is served here"), 404)
        session = await _session(request, console, context)
        if isinstance(session, Response):
            return session
        visit = Visit(request, console, session)
        visit.is_api = True
        try:
            response = await twin.endpoint(visit)
        except (PenstockError, TimeoutError) as error:
            visit.record_refusal(error)
            return problem(error, status_of(error))
        return _unless_known(request, response)

    return serve


async def _session(request: Request, console: Console, context: str) -> Session | Response:
    """Who asks; or the answer to a request without valid keys."""
    if not console.options.asks(context):
        now = time.monotonic()
        return Session("", now, now)
    keys = basic_keys(request.headers.get("authorization", ""))
    if keys is None:
        refused = "no access key was given"
    else:
        if (found := _known(console, context, keys)) is not None:
            return found
        address = request.client.host if request.client else "-"
        access = console.options.contexts[context]
        said = await console.keys.refusal(context, access, *keys, address)
        if said is None:
            # Another request with these keys may have ended meanwhile.
            known = _known(console, context, keys)
            return known or console.sessions.start({context: Login(*keys)})
        refused = said
    answer = problem(PenstockError(refused), 429 if refused == TOO_MANY else 401)
    answer.headers["www-authenticate"] = 'Basic realm="access key of the cluster"'
    return answer


def _known(console: Console, context: str, keys: tuple[str, str]) -> Session | None:
    found = console.sessions.with_keys(*keys, context)
    return None if found is None else console.sessions.find({COOKIE: found.key})


def _unless_known(request: Request, response: Response) -> Response:
    """Leave out a body that the client has already."""
    if request.method != "GET" or response.status_code != 200:
        return response
    tag = f'"{hashlib.sha256(response.body).hexdigest()[:32]}"'
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers={"etag": tag})
    response.headers["etag"] = tag
    return response


def problem(error: Exception, status: int) -> Response:
    """An error as RFC 9457 has it, with what the pages say."""
    titles = {401: "Keys are needed", 429: "Too many attempts"}
    return problem_response(
        status,
        titles.get(status, error_title(status, error)),
        getattr(error, "what", None) or str(error) or type(error).__name__,
        expected=getattr(error, "expected", None),
        hint=getattr(error, "hint", None),
    )


# The description


def _description(twins: list[tuple[Route, Twin]]) -> dict[str, Any]:
    shapes = list(dict.fromkeys(twin.shape for _, twin in twins))
    schemas, components = msgspec.json.schema_components(
        shapes, ref_template="#/components/schemas/{name}"
    )
    by_shape = dict(zip(shapes, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route, twin in twins:
        path = f"{API}/c/{{context}}{route.path}"
        method = "post" if "POST" in (route.methods or ()) else "get"
        paths.setdefault(path, {})[method] = _operation(path, method, twin, by_shape[twin.shape])
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock console",
            "version": "1",
            "description": "What the pages of the console show, as JSON.",
        },
        "paths": paths,
        "components": {
            "schemas": {**components, "Problem": _PROBLEM_SCHEMA},
            "securitySchemes": {"keys": {"type": "http", "scheme": "basic"}},
        },
        "security": [{}, {"keys": []}],
    }


def _operation(path: str, method: str, twin: Twin, schema: dict[str, Any]) -> dict[str, Any]:
    said = (twin.endpoint.__doc__ or "").strip().partition("\n")[0]
    operation: dict[str, Any] = {
        "summary": said,
        "operationId": f"{twin.endpoint.__module__.rpartition('.')[2]}.{twin.endpoint.__name__}",
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in re.findall(r"{(\w+)}", path)
        ],
        "responses": {
            "200": {"description": said, "content": {"application/json": {"schema": schema}}},
            "default": {
                "description": "What went wrong.",
                "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
    }
    if method == "post":
        operation["requestBody"] = {
            "description": "The fields of the page's form.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        }
    return operation


_PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "what", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "what": {"type": "string"},
        "expected": {"type": ["string", "null"]},
        "hint": {"type": ["string", "null"]},
        "request_id": {"type": "string"},
    },
}
