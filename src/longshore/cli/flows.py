"""`flow show`: many jobs that wait for each other, seen as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli import rows
from longshore.cli.open_store import AsJson, Quiet
from longshore.cli.options import on_store
from longshore.cli.output import say, say_id, say_lines, say_model, show_rows

if TYPE_CHECKING:
    from longshore.runtime.queue import Queue

flow = typer.Typer(help="Flows: jobs that wait for each other.", no_args_is_help=True, rich_markup_mode=None)

FlowId = Annotated[str, typer.Argument(metavar="ID", help="The flow.")]
Drawing = Annotated[bool, typer.Option("--mermaid", help="Print it as a Mermaid chart.")]


@flow.callback()
def _flow() -> None:
    """A callback, so that one command alone is still named."""


@flow.command()
@on_store()
async def show(
    queue: Queue, flow_id: FlowId, *, mermaid: Drawing = False, as_json: AsJson = False, quiet: Quiet = False
) -> None:
    """Shows how far a flow is, step by step."""
    from longshore.app.harbor import Harbor
    from longshore.core.flows import drawing, status_of_flow

    steps = await Harbor(queue.backend).get_flow(flow_id).steps()
    status = status_of_flow(flow_id, steps)
    if mermaid:
        say_lines(drawing(steps))
    elif as_json:
        from longshore.server.models.jobs import flow_view

        say_model(flow_view(status))
    elif quiet:
        for step in status.steps:
            say_id(step.job_id)
    else:
        say(f"flow {status.name} ({status.id}) is {status.state}: {status.ended} of {status.total} steps are final")
        show_rows(rows.STEPS, [rows.step_row(step) for step in status.steps])
