"""The names that users depend on, compared with the files in `frozen`. A changed name turns one of these tests red.

Set LONGSHORE_WRITE_SNAPSHOTS=1 to rewrite the files. Names that need Spark are in tests/spark/test_frozen_names.py.
The wire protocol needs no file: the OpenAPI document has every operation with its request and response.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import longshore.errors
from longshore import HeldClock, Queue, connect

# All private modules that this file needs; correct these lines when the modules move.
from longshore.backends.remote.codecs import PREFIX
from longshore.cli.exit_codes import Exit, exit_code_of
from longshore.server import problems
from longshore.server.app import create_app
from longshore.spark.audit.rules import Kind
from longshore.spark.lake.tables import COLUMNS as LAKE
from tests.cli.scene import Scene
from tests.cli.terminal import PROGRAM, leaves
from tests.cli.terminal import longshore as run_command
from tests.repo.frozen_files import check_frozen, keys_of
from tests.repo.openapi_text import operation_lines, schema_lines, type_text
from tests.repo.pages import ROOT
from tests.repo.python_text import describe, describe_object, names_in_guides
from tests.runtime.test_event_details import live_every_life

SOURCES = sorted((ROOT / "src").rglob("*.py"))


@asynccontextmanager
async def served() -> AsyncIterator[tuple[httpx.AsyncClient, Queue, HeldClock]]:
    """A client of a server in this process, the server's store, and the clock of the store."""
    clock = HeldClock()
    queue = Queue(connect("memory://", clock=clock))
    app = create_app(queue.backend)
    transport = httpx.ASGITransport(app=app)
    async with (
        queue,
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        yield client, queue, clock


# -- HTTP


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The OpenAPI document."""
    return create_app(connect("memory://")).openapi()


def test_the_paths_of_the_api_keep_their_parameters_bodies_and_statuses(document: dict[str, Any]) -> None:
    check_frozen("http_operations.txt", operation_lines(document))


def test_the_schemas_of_the_api_keep_their_fields_and_types(document: dict[str, Any]) -> None:
    check_frozen("http_schemas.txt", schema_lines(document))


def test_the_pages_outside_the_document_keep_their_paths(document: dict[str, Any]) -> None:
    routes: list[Any] = list(create_app(connect("memory://")).routes)
    told = {f"{method} {re.sub(':name}', '}', route.path)}" for route in routes for method in route.methods}
    described = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    check_frozen("http_pages.txt", sorted(told - described))


async def test_the_http_headers_keep_their_names() -> None:
    """Headers with the product's name, and headers of every response."""
    found = {text for text in literals() if re.fullmatch(r"(Longshore|Idempotency)-[A-Z][A-Za-z-]+", text)}
    async with served() as (client, _, _):
        answer = await client.get("/v1/jobs")
    check_frozen("http_headers.txt", [*sorted(found), "", *(f"answer: {name}" for name in sorted(answer.headers))])


def test_every_kind_of_problem_keeps_its_type_and_status() -> None:
    made = [problems.bad_request("x"), problems.unexpected("x")]
    told = {(one.status_code, json.loads(bytes(one.body))["type"]) for one in made}
    told |= {(kind.status, f"{PREFIX}{kind.name}") for kind in problems.TABLE.values()}
    lines = [f"{status} {kind}" for status, kind in sorted(told)]
    for name in sorted(longshore.errors.__all__):
        error = getattr(longshore.errors, name)
        if issubclass(error, longshore.errors.LongshoreError):
            kind = problems.kind_of(error)
            lines.append(f"{name}: {kind.status} {kind.name}")
    check_frozen("http_problems.txt", lines)


async def test_the_answers_that_refuse_keep_their_fields() -> None:
    as_json = {"content-type": "application/json"}
    lease = {"token": "no", "epoch": 1}
    requests: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/nothing-here", {}),
        ("PUT", "/v1/jobs", {}),
        ("GET", "/v1/jobs/none", {}),
        ("GET", "/v1/schedules/none", {}),
        ("DELETE", "/v1/tokens/none", {}),
        ("GET", "/v1/events?cursor=none", {}),
        ("GET", "/v1/jobs", {"headers": {"host": "elsewhere.example"}}),
        ("POST", "/v1/jobs", {"content": "{", "headers": as_json}),
        ("POST", "/v1/jobs", {"content": "x", "headers": {"content-type": "text/plain"}}),
        ("POST", "/v1/jobs", {"json": {}}),
        ("POST", "/v1/jobs/waiting/retry", {}),
        ("POST", "/v1/store/enqueue_job", {"json": {"job": {"id": "waiting", "type": "t"}}}),
        ("POST", "/v1/store/complete_job", {"json": {"job_id": "waiting"}}),
        ("POST", "/v1/store/complete_job", {"json": {"job_id": "running", "lease": lease}}),
        ("POST", "/v1/jobs", {"json": {"type": "t"}, "headers": {"idempotency-key": "k"}}),
        ("POST", "/v1/jobs", {"json": {"type": "other"}, "headers": {"idempotency-key": "k"}}),
    ]
    lines = []
    async with served() as (client, queue, _):
        await queue.add("t", job_id="running")
        await queue.dequeue_jobs("w")
        await queue.add("t", job_id="waiting")
        for method, address, options in requests:
            answer = await client.request(method, address, **options)
            if answer.is_success:
                continue
            told = answer.json()
            lines.append(f"{method} {address}: {answer.status_code} {told['type']}: {', '.join(sorted(told))}")
    check_frozen("http_refusals.txt", lines)


# -- events and metrics


async def test_every_event_keeps_its_name_and_the_keys_of_its_details() -> None:
    """The error of a schedule that pauses itself is missing here: only a broken schedule writes it."""
    clock = HeldClock()
    found: dict[str, set[str]] = {}
    async with Queue(connect("memory://", clock=clock)) as queue:
        await live_every_life(queue, queue.backend, clock)
        for event in await queue.read_events(limit=10_000):
            found.setdefault(event.event, set()).update(event.detail)
    check_frozen("events.txt", [f"{name}: {', '.join(sorted(keys))}".rstrip() for name, keys in sorted(found.items())])


async def test_every_metric_keeps_its_name_type_and_labels() -> None:
    async with served() as (client, queue, clock):
        await queue.add("t", job_id="left")
        await queue.dequeue_jobs("w")
        clock.advance(3_600)
        await queue.reclaim_expired_leases()
        await queue.cancel_jobs(job_ids=["left"])
        await live_every_life(queue, queue.backend, clock)
        told = await client.post("/v1/work/heartbeat", json={"worker": {"id": "w"}})
        assert told.is_success
        text = await _metrics_with_samples_of(client, "longshore_leases_lost_total", "longshore_job_run_seconds_sum")
    families = [one for one in text_string_to_metric_families(text) if not one.name.endswith("_created")]
    lines = []
    for family in sorted(families, key=lambda one: one.name):
        samples = [one for one in family.samples if not one.name.endswith("_created")]
        lines.append(f"{family.type} {family.name}")
        lines.append(f"  labels: {', '.join(sorted({label for one in samples for label in one.labels}))}".rstrip())
        lines.append(f"  samples: {', '.join(sorted({one.name for one in samples}))}")
        if outcomes := sorted({one.labels["outcome"] for one in samples if "outcome" in one.labels}):
            lines.append(f"  outcomes: {', '.join(outcomes)}")
    check_frozen("metrics.txt", lines)


async def _metrics_with_samples_of(client: httpx.AsyncClient, *names: str) -> str:
    """The server reads the log in the background, so the first answers may have no samples yet."""
    text = ""
    for _ in range(500):
        text = (await client.get("/metrics")).text
        if all(f"\n{name}{{" in text for name in names):
            break
        await asyncio.sleep(0.01)
    return text


# -- the command


def test_every_command_keeps_its_flags_and_arguments() -> None:
    check_frozen("cli_commands.txt", _command_lines())


def _command_lines() -> Iterator[str]:
    commands = dict(leaves())
    for name, command in sorted(commands.items()):
        yield f"longshore {name}"
        for parameter in sorted(command.params, key=lambda one: (one.opts[0].startswith("-"), _place(command, one))):
            yield f"  {_parameter(parameter)}"
        yield ""


def _place(command: Any, parameter: Any) -> Any:
    """Arguments are given by position, options by name."""
    return (0, parameter.opts) if parameter.opts[0].startswith("-") else (command.params.index(parameter), [])


def _parameter(parameter: Any) -> str:
    is_option = parameter.opts[0].startswith("-")
    told = (
        " ".join([*parameter.opts, *parameter.secondary_opts])
        if is_option
        else parameter.metavar or parameter.name.upper()
    )
    if is_option and not getattr(parameter, "is_flag", False):
        told += " VALUE"
    words = ["required"] if parameter.required else []
    words += ["many"] if parameter.multiple or parameter.nargs == -1 else []
    words += [f"env {parameter.envvar}"] if parameter.envvar else []
    if parameter.default not in (None, False, (), ""):
        words.append(f"default {parameter.default}")
    return f"{told} ({', '.join(words)})" if words else told


def test_the_flags_before_a_command_keep_their_names() -> None:
    told = run_command("--help").out
    check_frozen("cli_first_flags.txt", re.findall(r"^ +(-.*?)(?:  .*)?$", told, re.MULTILINE))


def test_every_exit_code_keeps_its_meaning() -> None:
    lines = [f"all codes: {', '.join(str(code.value) for code in sorted(Exit))}"]
    public = [getattr(longshore.errors, name) for name in sorted(longshore.errors.__all__)]
    others = [TimeoutError, KeyboardInterrupt, BrokenPipeError, Exception]
    lines += [f"{error.__name__}: {int(exit_code_of(error))}" for error in [*public, *others]]
    check_frozen("cli_exit_codes.txt", lines)


USERS_CHOOSE = frozenset({"copied", "data", "detail", "details", "progress", "queues", "refused", "result", "tables"})
"""The fields whose keys are names of queues, jobs or tables, or data of users. Events have a separate file."""


@pytest.mark.slow
def test_the_json_of_every_command_keeps_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path)
    asyncio.run(scene.prepare())
    monkeypatch.setenv("LONGSHORE_URL", scene.url)
    many = tmp_path / "many.jsonl"
    many.write_text('{"type": "t"}\n', encoding="utf-8")
    apart = {
        "migrate-data": [scene.url, f"sqlite:///{tmp_path / 'new.db'}", "--while-live"],
        "enqueue --from": ["--from", str(many)],
        "cancel by filter": ["--type", "none", "--dry-run"],
        "cancel refused": ["none"],
    }
    with_json = [name for name, command in leaves() if any("--json" in one.opts for one in command.params)]
    runs = [(name, name, scene.use(name, "json")) for name in with_json if name not in _NOT_HERE]
    runs += [(name, name.split()[0], words) for name, words in apart.items()]
    found: dict[str, Any] = {}
    for title, name, words in runs:
        done = run_command(*name.split(), *words, "--json")
        assert done.code == (Exit.NOT_FOUND if title == "cancel refused" else Exit.OK), done.err
        found[title] = keys_of([json.loads(line) for line in done.out.splitlines()], USERS_CHOOSE)[0]
    for name in ("serve", "up"):
        found[name] = keys_of(_first_line_of(name, "--port", "0", "--json"))
    found["enqueue --wait"] = _result_of_a_job()
    check_frozen("cli_json.txt", json.dumps(found, indent=1, sort_keys=True).splitlines())


_NOT_HERE = {"migrate-data", "serve", "up", *(name for name, _ in leaves() if name.startswith("pipeline "))}
"""Commands that need other words, run until they are stopped, or need Spark."""


def _first_line_of(*words: str) -> Any:
    """What a command says that runs until it is stopped."""
    with subprocess.Popen([*PROGRAM, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        assert running.stdout is not None
        try:
            return json.loads(running.stdout.readline())
        finally:
            running.terminate()


def _result_of_a_job() -> Any:
    with subprocess.Popen([*PROGRAM, "worker", "--queue", "waited"], stderr=subprocess.DEVNULL) as worker:
        try:
            done = run_command("enqueue", "echo", '{"a": 1}', "--queue", "waited", "--wait", "--json")
        finally:
            worker.terminate()
    assert done.code == 0, done.err
    return keys_of(json.loads(done.out), USERS_CHOOSE)


# -- the environment, scopes and loggers


@functools.cache
def nodes() -> list[ast.AST]:
    """Every node of the product's code that a test here reads."""
    kinds = (ast.Constant, ast.Subscript, ast.Call, ast.Compare)
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES)
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, kinds)]


def literals() -> Iterator[str]:
    """Every text in the code of the product."""
    return (node.value for node in nodes() if isinstance(node, ast.Constant) and isinstance(node.value, str))


def test_the_environment_variables_keep_their_names() -> None:
    ours = {name for text in literals() for name in re.findall(r"\bLONGSHORE_[A-Z_]*[A-Z]\b", text)}
    check_frozen("environment.txt", sorted(ours | set(_read_from_the_environment())))


def _read_from_the_environment() -> Iterator[str]:
    """Names of others too, like JAVA_HOME."""
    for node in nodes():
        named: ast.expr | None = None
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "os.environ":
            named = node.slice
        elif isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("os.environ.", "os.getenv")):
            named = node.args[0] if node.args else None
        elif isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "os.environ":
            named = node.left
        if isinstance(named, ast.Constant) and isinstance(named.value, str):
            yield named.value


def test_the_scopes_of_tokens_keep_their_names_and_what_they_may_do(
    document: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = document["paths"]["/v1/tokens"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = document["components"]["schemas"][type_text(body)]["properties"]["scopes"]
    lines = [f"a token may have {type_text(schema)}"]
    monkeypatch.setenv("LONGSHORE_URL", f"sqlite:///{tmp_path / 'jobs.db'}")
    run_command("migrate")
    secret = json.loads(run_command("token", "create", "x", "--scope", "read", "--json").out)["token"]
    lines.append(
        "a secret is " + re.sub("[0-9a-f]{12,}", lambda found: f"<{len(found[0])} hexadecimal digits>", secret)
    )
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    for scope in sorted({one.get("x-longshore-scope", "no scope") for one in operations}):
        names = sorted(one["operationId"] for one in operations if one.get("x-longshore-scope", "no scope") == scope)
        lines += [f"{scope}:", *(f"  {name}" for name in names)]
    check_frozen("scopes.txt", lines)


def test_the_loggers_keep_their_names() -> None:
    found = set()
    for node in nodes():
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("logger", "getLogger"):
            found |= {one.value for one in node.args if isinstance(one, ast.Constant)}
    check_frozen("loggers.txt", sorted(map(str, found)))


# -- Spark


def test_the_tables_of_the_spark_source_keep_their_columns_and_types() -> None:
    from pyspark.sql.types import StructType

    from pyspark_longshore import DefaultSource

    with pytest.raises(longshore.errors.InvalidArgument) as refused:
        DefaultSource({"path": "none"}).schema()
    lines = [f"format {DefaultSource.name()}", ""]
    for table in re.findall(r'load\("(\w+)"\)', str(refused.value)):
        lines += [table, *(_column(each) for each in DefaultSource({"path": table}).schema()), ""]
    with pytest.raises(longshore.errors.InvalidArgument) as refused:
        DefaultSource({"path": "jobs", "url": "sqlite:///x"}).writer(StructType().add("none", "string"), False)
    written = str(refused.value).partition("use one of ")[2].split(", ")
    check_frozen("spark_source.txt", [*lines, "columns that are written", *(f"  {name}" for name in written)])


def _column(field: Any) -> str:
    return f"  {field.name} {field.dataType.simpleString()}"


def test_the_tables_of_the_lake_keep_their_columns_and_types() -> None:
    lines = []
    for table, columns in LAKE.items():
        lines += [table, *(f"  {' '.join(column.split())}" for column in columns.split(",")), ""]
    check_frozen("lake.txt", lines)


def test_the_findings_of_an_audit_keep_their_names() -> None:
    check_frozen("audit_findings.txt", sorted(kind.value for kind in Kind))


# -- Python


def test_the_public_python_names_keep_their_signatures() -> None:
    """Fields of records and the verbs of a backend are in test_public_surface.py too, written by hand."""
    check_frozen("python_longshore.txt", _described((name, getattr(longshore, name)) for name in longshore.__all__))


def test_the_public_errors_keep_their_names_bases_and_signatures() -> None:
    errors = [(name, getattr(longshore.errors, name)) for name in longshore.errors.__all__]
    check_frozen("python_errors.txt", _described(errors))


async def test_types_returned_by_public_names_keep_their_members() -> None:
    """Users hold these objects without importing or making their classes."""
    async with longshore.Harbor("memory://") as harbor:

        @harbor.task(name="t")
        async def work() -> None:
            """Do nothing."""

        flow = harbor.flow("f")
        found = {
            "Harbor(...)": harbor,
            "connect(...)": harbor.backend,
            "harbor.queue(...)": harbor.queue("q"),
            "harbor.worker(...)": harbor.worker(),
            "harbor.scheduler(...)": harbor.scheduler(),
            "harbor.task(...)": work,
            "task.call(...)": work.call(),
            "task.options(...)": work.options(priority=1),
            "task.enqueue(...)": await work.enqueue(),
            "harbor.flow(...)": flow,
            "flow.add(...)": flow.add(work.call()),
            "flow.enqueue(...)": await flow.enqueue(),
        }
    lines = [line for name, one in sorted(found.items()) for line in (*describe_object(name, one), "")]
    check_frozen("python_returned.txt", lines)


def test_names_imported_by_guides_and_examples_keep_their_signatures() -> None:
    """The names alone: the modules below `longshore` that hold them may move."""
    check_frozen("python_guides.txt", _described(names_in_guides()))


def _described(names: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for name, found in sorted(names, key=lambda one: one[0]):
        yield from describe(name, found)
        yield ""
