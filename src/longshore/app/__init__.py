"""The front door: Harbor and its tasks."""

from longshore.app.flows import Flow
from longshore.app.harbor import Harbor
from longshore.app.middleware import Middleware
from longshore.app.results import FlowHandle, JobHandle
from longshore.app.step import Step
from longshore.app.task import Call, Task

__all__ = ["Call", "Flow", "FlowHandle", "Harbor", "JobHandle", "Middleware", "Step", "Task"]
