"""Import a file in parallel parts and report on it: a flow with fan-out, fan-in and results passed between steps."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from longshore import FlowHandle, Harbor
from longshore.errors import Fatal, JobFailed

DATABASE = Path(__file__).resolve().parent / "imports.db"
ORDERS = {"north": [120, 80, 45], "south": [300], "west": [15, 25]}
RATES: dict[str, float] = {}
"""Today's rates, which are not known yet."""

harbor = Harbor(f"sqlite:///{DATABASE}")


@harbor.task
async def list_regions(source: str) -> list[str]:
    """Return the parts to import."""
    print(f"  {source} has {len(ORDERS)} regions")
    return sorted(ORDERS)


@harbor.task(attempts=3)
async def import_region(regions: list[str], place: int) -> int:
    """Import one part; the previous step provides the list."""
    total = sum(ORDERS[regions[place]])
    print(f"  {regions[place]}: {len(ORDERS[regions[place]])} orders, {total} in all")
    return total


@harbor.task
async def convert(totals: list[int], currency: str) -> list[float]:
    """Convert all parts, in their order."""
    if currency not in RATES:
        raise Fatal(f"there is no rate for {currency} yet")  # a retry would not help
    return [total * RATES[currency] for total in totals]


@harbor.task
def report(amounts: list[float], weather: str | None) -> str:
    """Write the report: a `def`, run in a thread."""
    return f"{sum(amounts):.2f} USD from {len(amounts)} regions; the weather is {weather or 'unknown'}"


@harbor.task
async def look_out_of_the_window() -> str:
    """A step that may fail; the report can do without its result."""
    raise ConnectionError("no window in this office")


@harbor.task
async def add_up(totals: list[int]) -> int:
    """The last call of a chord."""
    return sum(totals)


async def enqueue_import() -> FlowHandle[Any]:
    """Store all steps in one transaction, before the first one runs."""
    flow = harbor.flow("import")
    regions = flow.add(list_regions.call("orders.csv"))
    totals = [flow.add(import_region.call(regions.result, place), name=f"region {place}") for place in range(3)]
    amounts = flow.add(convert.call([total.result for total in totals], "USD"))
    weather = flow.add(look_out_of_the_window.call())
    flow.add(report.call(amounts.result, weather.result_or_none))
    return await flow.enqueue()


async def main() -> None:
    """Run the flow until a step fails, fix the cause, and continue from there."""
    async with harbor:
        handle = await enqueue_import()
        print(f"enqueued the flow {handle.id}; a worker runs it:")
        worker = harbor.worker(concurrency=4)
        try:
            await handle.result(timeout=20)
        except JobFailed as failed:
            print(f"\na step failed: {failed.error.splitlines()[0]}")
        status = await handle.status()
        print(f"the flow is {status.state}, and {status.ended} of {status.total} steps have ended:")
        for step in status.steps:
            print(f"  {step.name:<24} {step.status}")

        RATES["USD"] = 1.25
        print("\nnow there is a rate; retry the dead steps, and the waiting ones continue:")
        await handle.retry(actor="the accountant")
        print(f"  {await handle.result(timeout=20)}")

        sums = harbor.chord([import_region.call(["west", "north"], place) for place in range(2)], add_up.call)
        print("\nthe same with harbor.chord:")
        print(f"  {await (await sums.enqueue()).result(timeout=20)}")
        await worker.close()


if __name__ == "__main__":
    asyncio.run(main())
