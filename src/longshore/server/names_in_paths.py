"""Ids and names in addresses: any text, each within its own segment, `%2F` for a slash."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from fastapi import Path, Request
from starlette.convertors import Convertor, register_url_convertor


class NameConvertor(Convertor[str]):
    """One segment of the path as it was sent, with its escapes read only after the route was found."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        """From the address."""
        return unquote(value)

    def to_string(self, value: str) -> str:
        """Only routes are written with it, never addresses."""
        raise NotImplementedError(f"quote {value!r} and write the address")


register_url_convertor("name", NameConvertor())


def root_of(request: Request) -> str:
    """The path that this application is mounted at, percent-encoded; empty where it is mounted nowhere."""
    return str(request.scope.get("root_path", "")).rstrip("/")  # the envelope encoded it


JobId = Annotated[str, Path(description="The job's id; a slash in it is written %2F.", examples=["welcome-ada"])]
QueueName = Annotated[str, Path(description="The queue's name; a slash in it is written %2F.", examples=["mail"])]
ScheduleId = Annotated[str, Path(description="The schedule's id; a slash in it is written %2F.", examples=["nightly"])]
FlowId = Annotated[str, Path(description="The flow's id; a slash in it is written %2F.", examples=["import-7"])]
