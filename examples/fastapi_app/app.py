"""A web application that answers at once and leaves the work to a worker. Run it as a program for a demo."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from longshore import Harbor, JobStatus
from longshore.errors import JobNotFound

DATABASE = Path(__file__).resolve().parent / "jobs.db"

harbor = Harbor(f"sqlite:///{DATABASE}")


class Mail(BaseModel):
    """The request body, which the task takes unchanged."""

    to: str
    subject: str = "hello"


@harbor.task(attempts=3)
async def send_mail(mail: Mail) -> str:
    """The worker receives a Mail, not a dict."""
    return f"{mail.subject} sent to {mail.to}"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Run a worker in the same process; larger sites run it separately."""
    async with harbor:
        worker = harbor.worker()
        yield
        await worker.close()


app = FastAPI(lifespan=lifespan)


@app.post("/mails", status_code=202)
async def accept(mail: Mail) -> dict[str, str]:
    """Store the job durably, then answer."""
    handle = await send_mail.enqueue(mail)
    return {"id": handle.id}


@app.get("/mails/{job_id}")
async def look(job_id: str, wait: float = 0.0) -> dict[str, Any]:
    """Return the status; `?wait=5` waits up to five seconds for the result."""
    handle = send_mail.handle(job_id)
    try:
        if wait:
            return {"status": JobStatus.COMPLETED, "result": await handle.result(timeout=min(wait, 30))}
    except TimeoutError:
        pass
    except JobNotFound:
        raise HTTPException(404, "no such mail") from None
    try:
        return {"status": await handle.status()}
    except JobNotFound:
        raise HTTPException(404, "no such mail") from None


def demo() -> None:
    """Start the server on a free port, send a mail, wait for it, and ask for an unknown one."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=30) as browser:
        accepted = browser.post("/mails", json={"to": "ada@example.org"})
        print(f"POST /mails -> {accepted.status_code}")
        job_id = accepted.json()["id"]
        print(f"GET /mails/ID?wait=10 -> {browser.get(f'/mails/{job_id}', params={'wait': 10}).json()}")
        print(f"GET /mails/unknown -> {browser.get('/mails/unknown').status_code}")
        print(f"POST /mails without an address -> {browser.post('/mails', json={}).status_code}")
    server.should_exit = True
    thread.join()
    listening.close()


if __name__ == "__main__":
    demo()
