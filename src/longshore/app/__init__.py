"""The front door: Harbor and its tasks."""

from longshore.app.flow import Flow
from longshore.app.flow_handle import FlowHandle
from longshore.app.handles import JobHandle
from longshore.app.harbor import Harbor
from longshore.app.middleware import Middleware
from longshore.app.step import Step
from longshore.app.task import Call, Task

__all__ = ["Call", "Flow", "FlowHandle", "Harbor", "JobHandle", "Middleware", "Step", "Task"]
