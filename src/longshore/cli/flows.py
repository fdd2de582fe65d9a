"""`flow show`: the steps of a flow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from longshore.cli import rows
from longshore.cli.open_store import AsJson, Quiet
from longshore.cli.options import on_store
from longshore.cli.output import print_id, print_line, print_lines, print_model, print_rows
from longshore.core.validation import counted

if TYPE_CHECKING:
    from longshore.runtime.queue import Queue

flow = typer.Typer(help="Flows: jobs that depend on each other.", no_args_is_help=True, rich_markup_mode=None)

FlowId = Annotated[str, typer.Argument(metavar="ID", help="The flow's id.")]
Drawing = Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid chart.")]


@flow.callback()
def _flow() -> None:
    """Keep the name of a single command; without a callback typer drops it."""


@flow.command()
@on_store()
async def show(
    queue: Queue, flow_id: FlowId, *, mermaid: Drawing = False, as_json: AsJson = False, quiet: Quiet = False
) -> None:
    """Show the state of a flow and of each step."""
    from longshore.app.harbor import Harbor
    from longshore.core.flows import drawing, status_of_flow

    steps = await Harbor(queue.backend).get_flow(flow_id).steps()
    status = status_of_flow(flow_id, steps)
    if mermaid:
        print_lines(drawing(steps))
    elif as_json:
        from longshore.server.models.jobs import flow_view

        print_model(flow_view(status))
    elif quiet:
        for step in status.steps:
            print_id(step.job_id)
    else:
        ended = f"{status.ended} of {counted(status.total, 'step')} ended"
        print_line(f"flow {status.name} ({status.id}) is {status.state}: {ended}")
        print_rows(rows.STEPS, [rows.step_row(step) for step in status.steps])
