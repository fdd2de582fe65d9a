"""A task's signature: arguments are checked and stored as JSON by their annotations."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
import reprlib
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pydantic
import pydantic_core
import typing_extensions
from pydantic import BaseModel, ConfigDict, TypeAdapter

from longshore.core.errors import InvalidArgument
from longshore.core.validation import check_json, read_json


def is_same(given: Any, seen: Any) -> bool:
    """Whether two values are equal, part by part, without attributes that are not fields or cannot be compared.

    A tuple where any JSON is accepted is read back as a list, which counts as equal.
    """
    if isinstance(given, list | tuple) and isinstance(seen, list | tuple):
        return len(given) == len(seen) and all(map(is_same, given, seen))
    if type(given) is not type(seen):
        return bool(given == seen)
    if isinstance(given, Mapping):
        return given.keys() == seen.keys() and all(is_same(given[key], seen[key]) for key in given)
    if isinstance(given, BaseModel):
        return is_same(dict(given), dict(seen))
    if dataclasses.is_dataclass(given):
        names = [field.name for field in dataclasses.fields(given) if field.compare]
        return all(is_same(getattr(given, name, None), getattr(seen, name, None)) for name in names)
    return _NO_COMPARISON is type(given).__eq__ or bool(given == seen)


_NO_COMPARISON: Any = object.__eq__

_NOTHING = inspect.Parameter.empty
_VAR_POSITIONAL = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD = inspect.Parameter.VAR_KEYWORD
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_ALLOWED = "use plain types, datetimes, UUIDs, enums, dataclasses or pydantic models"

_STORED = "the job is COMPLETED and (await handle.job()).result has the JSON"


class Signature:
    """The arguments and the result of a task. Annotations are resolved when it is declared, or at first use."""

    def __init__(self, task: str, function: Callable[..., Any], names: Mapping[str, Any]) -> None:
        self._task = task
        self._function = function
        self._parameters = inspect.signature(function)
        try:
            self.arguments, self.result = self._resolved(names)
        except NameError:  # a class defined later in its module: resolve at first use
            return

    @functools.cached_property
    def arguments(self) -> Arguments:
        """Its arguments as JSON."""
        return self._resolved_later()[0]

    @functools.cached_property
    def result(self) -> Result:
        """Its result as JSON."""
        return self._resolved_later()[1]

    def _resolved_later(self) -> tuple[Arguments, Result]:
        try:
            return self._resolved({})
        except NameError as error:
            raise InvalidArgument(
                self._task,
                f"an annotation cannot be resolved: {error}; import it where the task is declared "
                f"({place_of(self._function)}), not only for type checking",
            ) from error

    def _resolved(self, names: Mapping[str, Any]) -> tuple[Arguments, Result]:
        hints = typing.get_type_hints(self._function, localns=dict(names) or None, include_extras=True)
        returned = hints.pop("return", Any)
        return Arguments(self._task, self._function, self._parameters, hints), Result(self._task, returned)


class Arguments:
    """Binds, writes and reads the arguments of one task."""

    def __init__(
        self, task: str, function: Callable[..., Any], signature: inspect.Signature, hints: Mapping[str, Any]
    ) -> None:
        self._task = task
        self._signature = signature
        self._place = place_of(function)
        annotated = {name: _type_of(parameter, hints) for name, parameter in signature.parameters.items()}
        self._untyped = [name for name, type_ in annotated.items() if type_ is Any]
        self._gathers = next((p.name for p in signature.parameters.values() if p.kind is _VAR_KEYWORD), None)
        self._by_name = all(parameter.kind in _BY_NAME for parameter in signature.parameters.values())
        self._annotated = annotated
        self._adapter = self._adapter_for(annotated)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, or raise InvalidArgument for a missing or unexpected one."""
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            raise self._unbound(args, kwargs, error) from None

    def write_around(self, bound: Mapping[str, Any], blanks: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """Like `write`, for arguments with results of other steps: the worker checks those when they are filled in."""
        complete = {name: value for name, value in bound.items() if name not in blanks}
        encoded, seen = self.write(complete, self._adapter_of_some)
        data = read_json(self._task, encoded)
        for name, value in blanks.items():
            try:
                data[name] = value if name in self._untyped else _as_json(value)
            except ValueError as error:
                raise InvalidArgument(f"{self._task}.{name}", _not_json(error)) from None
        return check_json(self._task, data), seen

    @functools.cached_property
    def _adapter_of_some(self) -> TypeAdapter[dict[str, Any]]:
        return self._adapter_for(self._annotated, require_all=False)

    def write(
        self, bound: Mapping[str, Any], adapter: TypeAdapter[dict[str, Any]] | None = None
    ) -> tuple[bytes, dict[str, Any]]:
        """Return the arguments as strict JSON by name, and as the worker will read them.

        The signature must accept both the given values and those read back, and they must be equal.
        """
        adapter = adapter or self._adapter
        try:
            checked = adapter.validate_python(bound, by_alias=True, by_name=True)
        except pydantic.ValidationError as error:
            raise self._refused(error) from None
        try:
            data: dict[str, Any] = adapter.dump_python(
                checked, mode="json", round_trip=True, by_alias=False, warnings=False
            )
        except ValueError as error:  # pydantic and the encoding of text raise ValueErrors
            wrong = next((f".{name}" for name, value in checked.items() if not _is_json(value)), "")
            raise InvalidArgument(self._task + wrong, f"{_not_json(error)}; {self._where}") from None
        for name in self._untyped:
            if name in checked:  # pydantic would turn a datetime into text that is never turned back
                data[name] = checked[name]
        encoded = check_json(self._task, data)
        try:
            seen = adapter.validate_json(encoded, by_alias=True, by_name=True)
        except pydantic.ValidationError as error:
            raise self._refused(error, "cannot be read back from JSON: ") from None
        if seen != checked:
            self._refuse_changed(checked, seen)
        return encoded, seen

    def read(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments to call the function with."""
        if payload == b"null":
            payload = b"{}"
        elif self._gathers is not None:
            payload = self._gathered(payload, self._gathers)
        try:
            values = self._adapter.validate_json(payload, by_alias=True, by_name=True)
        except pydantic.ValidationError as error:
            raise self._refused(error) from None
        if self._by_name:
            return (), values
        bound = inspect.BoundArguments(self._signature, values)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _gathered(self, payload: bytes, gathers: str) -> bytes:
        """Return the payload with extra arguments under the name of the `**` parameter.

        `write` puts them there; a client of the HTTP API does not know of the parameter.
        """
        sent = read_json(self._task, payload)
        if not isinstance(sent, dict):
            return payload
        more = {name: value for name, value in sent.items() if name not in self._annotated}
        kept = sent.get(gathers, {})
        if not isinstance(kept, dict):  # an extra argument has the name of the parameter
            more, kept = {**more, gathers: kept}, {}
        if not more:
            return payload
        own = {name: value for name, value in sent.items() if name in self._annotated}
        return check_json(self._task, {**own, gathers: {**kept, **more}})

    def call(self, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """Call another function with the arguments, including defaults."""
        bound = inspect.BoundArguments(self._signature, dict(values))
        bound.apply_defaults()
        return function(*bound.args, **bound.kwargs)

    @property
    def _where(self) -> str:
        return f"{self._task} is declared in {self._place}"

    def _adapter_for(self, annotated: Mapping[str, Any], *, require_all: bool = True) -> TypeAdapter[dict[str, Any]]:
        fields = {
            name: typing_extensions.Required[type_]
            if require_all and _is_required(self._signature.parameters[name])
            else typing_extensions.NotRequired[type_]
            for name, type_ in annotated.items()
        }
        shape: Any = _made_from(self._task, fields)
        shape.__pydantic_config__ = ConfigDict(
            extra="forbid", ser_json_inf_nan="constants"
        )  # NaN is refused, not turned into null
        try:
            return TypeAdapter(shape)
        except NameError:
            raise
        except pydantic.errors.PydanticUserError as error:
            for name, type_ in annotated.items():
                _check_type(f"{self._task}.{name}", type_, self._where)
            raise InvalidArgument(self._task, f"its annotations are not supported: {error}; {self._where}") from error

    def _refuse_changed(self, given: Mapping[str, Any], seen: Mapping[str, Any]) -> None:
        for name, value in given.items():
            if not is_same(value, seen[name]):
                changed = f"would reach the function as {_shown.repr(seen[name])}, not as {_shown.repr(value)}"
                raise InvalidArgument(f"{self._task}.{name}", f"{changed}: JSON cannot distinguish them; {self._where}")

    def _refused(self, error: pydantic.ValidationError, because: str = "") -> InvalidArgument:
        (field, first), *others = [self._problem(problem, because) for problem in error.errors(include_url=False)]
        more = "".join(f"; and {other}: {problem}" for other, problem in others[:9])
        return InvalidArgument(field, f"{first}{more}; {self._where}")

    def _problem(self, problem: Any, because: str) -> tuple[str, str]:
        field = self._task + _path(problem["loc"])
        if problem["type"] == "missing":
            return field, because + "is missing"
        if problem["type"] == "extra_forbidden":
            return field, f"{because}unexpected argument; {self._task} takes {self._signature}"
        return field, because + _worded(problem)

    def _unbound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: TypeError) -> InvalidArgument:
        parameters = self._signature.parameters.values()
        named = [p.name for p in parameters if p.kind in _BY_NAME]
        if not any(p.kind is _VAR_KEYWORD for p in parameters):
            for name in kwargs:
                if name not in named:
                    near = difflib.get_close_matches(name, named, 1)
                    hint = f". Did you mean {near[0]!r}?" if near else ""
                    takes = f"unexpected argument; {self._task} takes {self._signature}"
                    return InvalidArgument(f"{self._task}.{name}", f"{takes}; {self._where}{hint}")
        by_position = [p.name for p in parameters if p.kind not in (inspect.Parameter.KEYWORD_ONLY, _VAR_KEYWORD)]
        given = {*by_position[: len(args)], *kwargs}
        for parameter in parameters:
            if _is_required(parameter) and parameter.name not in given:
                return InvalidArgument(
                    f"{self._task}.{parameter.name}", f"is missing; {self._task} takes {self._signature}; {self._where}"
                )
        return InvalidArgument(self._task, f"{error}; it takes {self._signature}; {self._where}")


class Result:
    """Writes and reads the result of a task."""

    def __init__(self, task: str, type_: Any) -> None:
        self._task = task
        self._adapter: TypeAdapter[Any] | None = None
        if type_ is not Any:
            field = f"{task}.return"
            self._adapter = _check_type(
                field, type(None) if type_ is None else type_, "annotate it -> Any to return plain JSON"
            )

    def write(self, value: Any) -> Any:
        """Return the value as JSON data; a value of another type than annotated is written as it is."""
        if value is None:
            return None
        try:
            if self._adapter is None:
                return _as_json(value)
            return self._adapter.dump_python(value, mode="json", round_trip=True, by_alias=False, warnings=False)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"{self._task}.return", _not_json(error)) from None

    def read(self, stored: bytes | None) -> Any:
        """Return the stored value as the annotated type."""
        if stored is None:
            return None
        if self._adapter is None:
            return read_json(f"{self._task}.return", stored)
        try:
            return self._adapter.validate_json(stored, by_alias=True, by_name=True)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            problem = f"{_worded(first)}; the stored result does not match the annotation; {_STORED}"
            raise InvalidArgument(f"{self._task}.return{_path(first['loc'])}", problem) from None


def _as_json(value: Any) -> Any:
    return pydantic_core.to_jsonable_python(value, by_alias=False, round_trip=True)


def _is_json(value: Any) -> bool:
    with suppress(ValueError):
        _as_json(value)
        return True
    return False


def _not_json(error: Exception) -> str:
    unknown = re.search(r"unknown type: <class '(.+)'>", str(error))
    problem = (
        f"is or contains an object of type {unknown[1]}, which is not JSON"
        if unknown
        else f"is not valid JSON: {error}"
    )
    return f"{problem}; {_ALLOWED}"


def place_of(function: Callable[..., Any]) -> str:
    """Return the file and line of the function."""
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is _NOTHING and parameter.kind not in (_VAR_POSITIONAL, _VAR_KEYWORD)


def _type_of(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    hint: Any = hints.get(parameter.name, Any)
    if parameter.kind is _VAR_POSITIONAL and hint is not Any:
        return types.GenericAlias(tuple, (hint, ...))
    if parameter.kind is _VAR_KEYWORD and hint is not Any:
        unpacked = typing_extensions.get_origin(hint) in (typing.Unpack, typing_extensions.Unpack)
        return typing_extensions.get_args(hint)[0] if unpacked else types.GenericAlias(dict, (str, hint))
    return hint


def _check_type(field: str, type_: Any, advice: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(type_)
    except NameError:
        raise
    except pydantic.errors.PydanticUserError as error:
        name = getattr(type_, "__name__", None) or str(type_)
        unknown = isinstance(error, pydantic.errors.PydanticSchemaGenerationError)
        why = _ALLOWED if unknown else str(error).partition("\n")[0]
        raise InvalidArgument(field, f"is annotated {name}, which cannot be stored as JSON; {why}; {advice}") from error


def _path(location: tuple[int | str, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)


def _worded(problem: Any) -> str:
    message = str(problem["msg"]).removeprefix("Input ")
    given = problem["input"]
    return f"{message[:1].lower()}{message[1:]}; got {_shown.repr(given)} ({type(given).__name__})"


_made_from: Any = typing_extensions.TypedDict  # called as a function, which type checkers accept only for literals
_shown = reprlib.Repr()
_shown.maxstring = _shown.maxother = 60
