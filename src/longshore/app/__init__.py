"""The front door: Harbor and its tasks."""

from longshore.app.handles import JobHandle
from longshore.app.harbor import Harbor
from longshore.app.middleware import Middleware
from longshore.app.task import Call, Task

__all__ = ["Call", "Harbor", "JobHandle", "Middleware", "Task"]
