"""Store an order and its job in one transaction, or neither."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from longshore import Harbor
from longshore.backends import SQLiteBackend

DATABASE = Path(__file__).resolve().parent / "shop.db"
URL = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{DATABASE}"

harbor = Harbor(URL)


@harbor.task
def send_receipt(order: int) -> str:
    """Runs only for committed orders."""
    return f"receipt for order {order}"


def order_in_sqlite(harbor: Harbor, order: int, *, paid: bool) -> None:
    """Use a connection to the queue's file; the job joins its transaction."""
    assert isinstance(harbor.backend, SQLiteBackend)
    connection = harbor.backend.new_connection()
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT OR REPLACE INTO orders VALUES (?)", (order,))
    send_receipt.options(connection=connection, tags=[f"order-{order}"]).enqueue_sync(order)
    connection.execute("COMMIT" if paid else "ROLLBACK")
    connection.close()


async def order_in_postgres(order: int, *, paid: bool) -> None:
    """Use any connection to the same database: psycopg here, or SQLAlchemy."""
    import psycopg

    async with await psycopg.AsyncConnection.connect(URL) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY)")
        await connection.commit()
        await connection.execute("INSERT INTO orders VALUES (%s) ON CONFLICT DO NOTHING", (order,))
        await send_receipt.options(connection=connection, tags=[f"order-{order}"]).enqueue(order)
        await (connection.commit() if paid else connection.rollback())


async def main() -> None:
    """Store two orders, roll one back, and run the waiting jobs."""
    async with harbor:
        for order, paid in ((1, True), (2, False)):
            if URL.startswith("sqlite"):
                await asyncio.to_thread(order_in_sqlite, harbor, order, paid=paid)
            else:
                await order_in_postgres(order, paid=paid)
            stored = (await harbor.backend.get_job_stats([f"order-{order}"])).pending_jobs
            print(f"order {order} {'committed' if paid else 'rolled back'}: {stored} job waits")
        ran = await harbor.run_until_empty()
        print(f"{ran} job was run")


if __name__ == "__main__":
    asyncio.run(main())
