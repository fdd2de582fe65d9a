"""A server, a worker, and a client that uses only HTTP: submit, repeat, follow, wait."""

from __future__ import annotations

import asyncio
import json

import httpx

from longshore import Harbor
from longshore.server import ApiServer, create_app

harbor = Harbor("sqlite:///http_jobs.db")


@harbor.task(attempts=3)
async def resize(image: str, width: int) -> str:
    """The task that the client enqueues."""
    if width <= 0:
        raise ValueError(f"{image} cannot be {width} pixels wide")
    return f"{image} at {width} px"


async def follow(client: httpx.AsyncClient, job_id: str) -> None:
    """Print the events of a job until it has ended."""
    async with client.stream("GET", f"/v1/jobs/{job_id}/events/stream", timeout=30) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                print(f"  {event['event']}")
                if event["to_status"] in ("COMPLETED", "DEAD"):
                    return


async def use(address: str) -> None:
    """The client's side, the same in any language."""
    async with httpx.AsyncClient(base_url=address) as client:
        body = {"type": "resize", "data": {"image": "quay.png", "width": 640}}

        # as a client whose first answer was lost: the same key gives the same job
        first = await client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "order-1047"})
        again = await client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "order-1047"})
        print(f"POST twice with one key -> {first.status_code}, {again.status_code}, one job:", end=" ")
        print(first.json()["id"] == again.json()["id"])
        other = await client.post("/v1/jobs", json={**body, "type": "crop"}, headers={"Idempotency-Key": "order-1047"})
        print(f"the key with another body -> {other.status_code}: {other.json()['title']}")

        job_id = first.json()["id"]
        print("its events:")
        await follow(client, job_id)
        print(f"its result: {(await client.get(f'/v1/jobs/{job_id}')).json()['result']}")

        bad = {"type": "resize", "data": {"image": "pier.png", "width": 0}}
        sent = await client.post("/v1/jobs", json=bad)
        dead = (await client.get(f"/v1/jobs/{sent.json()['id']}", params={"wait": 20}, timeout=30)).json()
        print(f"a job that cannot succeed: {dead['status']}, {dead['error_message'].partition(chr(10))[0]}")
        count = (await client.post("/v1/dead-letters/retry", json={"all": True, "dry_run": True})).json()["matched"]
        print(f"dead letters to retry: {count}")


async def main() -> None:
    """Run everything in one process; `longshore up --harbor http_jobs:harbor` uses several."""
    server = ApiServer(create_app(harbor.backend))
    serving = asyncio.create_task(server.run())
    await server.ready()
    worker = harbor.worker()
    await use(server.address)
    await worker.close()
    await server.close()
    await serving
    await harbor.close()


if __name__ == "__main__":
    asyncio.run(main())
