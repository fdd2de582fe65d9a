"""Two tenants share a queue; each has its own limits, so the greedy one does not delay the other."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from longshore import Harbor, Rate, current_job

DATABASE = Path(__file__).resolve().parent / "jobs.db"

harbor = Harbor(f"sqlite:///{DATABASE}")
running: Counter[str] = Counter()
most: Counter[str] = Counter()
order: list[str] = []


@harbor.task(queue="reports", concurrency_key=lambda tenant, *_: tenant)
async def render(tenant: str, page: int) -> str:
    """Sleep briefly, and record how many jobs of each tenant run at once."""
    running[tenant] += 1
    most[tenant] = max(most[tenant], running[tenant])
    order.append(tenant)
    await asyncio.sleep(0.05)
    running[tenant] -= 1
    return f"{tenant} page {page} by {current_job().assignee_id}"


async def main() -> None:
    """Fill the queue with one tenant's jobs, then add a few of another's."""
    async with harbor:
        await harbor.set_limits("reports", running=5, per_key=2)
        greedy = await render.enqueue_many([render.call("greedy", page) for page in range(20)])
        modest = await render.enqueue_many([render.call("modest", page) for page in range(3)])

        workers = [harbor.worker(["reports"], concurrency=5) for _ in range(2)]
        await modest[-1].result(timeout=20)
        print(f"modest is done; of greedy's 20 reports, {order.count('greedy')} have started")
        print((await greedy[-1].explain()).reasons[0].text.partition(":")[0])

        await harbor.set_limits("reports", per_key=None)  # takes effect at once, in all workers
        for handle in greedy:
            await handle.result(timeout=20)
        print(f"most at once: modest {most['modest']}, greedy {most['greedy']} (after its limit was removed)")

        await harbor.set_limits("reports", running=None, rate_per_key=Rate(4, 1))
        began = asyncio.get_running_loop().time()
        for handle in await render.enqueue_many([render.call("greedy", page) for page in range(10)]):
            await handle.result(timeout=20)
        seconds = asyncio.get_running_loop().time() - began
        print(f"10 reports at 4 a second took at least a second: {seconds > 1}")
        await harbor.set_limits("reports", rate_per_key=None)
        for worker in workers:
            await worker.close()


if __name__ == "__main__":
    asyncio.run(main())
