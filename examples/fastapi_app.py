"""A web application that accepts orders and bills them in the background.

Run it as a script to see a demonstration, or as an application with the cluster of NAMESRV_ADDR:

    python examples/fastapi_app.py
    uvicorn --app-dir examples fastapi_app:app
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from penstock import aio
from penstock.aio import Message, StoredMessage


class Order(BaseModel):
    """The body of a request."""

    number: str
    amount: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start the clients before the application serves, and stop them afterwards."""
    async with AsyncExitStack() as stack:
        namesrv = os.environ.get("NAMESRV_ADDR")
        if namesrv is None:  # no cluster: start one
            namesrv = (await stack.enter_async_context(aio.embedded())).namesrv
        app.state.bills = {}
        app.state.has_billed = asyncio.Event()
        app.state.producer = await stack.enter_async_context(aio.Producer("web", namesrv=namesrv))
        consumer = aio.PushConsumer("billing", namesrv=namesrv, start_from="first")

        @consumer.on("orders")
        async def bill(message: StoredMessage) -> None:
            order = Order.model_validate_json(message.body)
            app.state.bills[order.number] = order.amount
            app.state.has_billed.set()

        await stack.enter_async_context(consumer)
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=202)
async def place(order: Order, request: Request) -> dict[str, str]:
    """Accept an order once a broker has stored it; the consumer bills it."""
    receipt = await request.app.state.producer.send(
        Message("orders", order.model_dump_json().encode(), keys=[order.number])
    )
    return {"number": order.number, "msg_id": receipt.msg_id}


@app.get("/bills/{number}")
async def show(number: str, request: Request) -> dict[str, int | str]:
    """Return the bill of an order if there is one."""
    amount = request.app.state.bills.get(number)
    if amount is None:
        raise HTTPException(404, f"order {number} has no bill yet")
    return {"number": number, "amount": amount}


async def main() -> None:
    async with (
        lifespan(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client,
    ):
        placed = await client.post("/orders", json={"number": "o-1", "amount": 42})
        print(f"POST /orders: {placed.status_code}")
        async with asyncio.timeout(30):
            await app.state.has_billed.wait()
        answer = await client.get("/bills/o-1")
        print(f"GET /bills/o-1: {answer.status_code} {answer.json()}")
        print(f"GET /bills/o-2: {(await client.get('/bills/o-2')).status_code}")


if __name__ == "__main__":
    asyncio.run(main())
