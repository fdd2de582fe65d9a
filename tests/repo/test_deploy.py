"""The files in deploy/ can be read, and name commands, metrics, probes and stop times that Longshore has."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from longshore.cli.main import command
from longshore.runtime.signals import STOP_GRACE
from tests.repo.frozen_files import FOLDER as FROZEN
from tests.repo.pages import ROOT
from tests.repo.test_names_in_prose import unknown_in

DEPLOY = ROOT / "deploy"
WITH_METRICS = [DEPLOY / name for name in ("alerts.yml", "prometheus.yml", "grafana-dashboard.json")]
MARGIN = 30
"""Seconds after its grace that docs/worker.md gives a worker; the supervisor kills its processes after 20."""


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"])


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))


def pods() -> dict[str, dict[str, Any]]:
    """The pod of each workload, by the workload's name."""
    return {
        each["metadata"]["name"]: each["spec"]["template"]["spec"]
        for each in kubernetes()
        if "template" in each.get("spec", {})
    }


def image_line(instruction: str) -> str:
    """The last line of the Containerfile with this instruction."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    return str(re.findall(rf"^{instruction} (.+)$", text, re.MULTILINE)[-1])


def started() -> Iterator[tuple[str, list[str]]]:
    """Every command that a file starts, without its first word."""
    for name, service in compose().items():
        if "command" in service:
            yield f"compose.yaml: {name}", service["command"]
    for name, pod in pods().items():
        for container in pod["containers"]:
            yield f"kubernetes.yaml: {name}", container["args"]
    yield "Containerfile", json.loads(image_line("CMD"))
    unit = (DEPLOY / "longshore.service").read_text(encoding="utf-8")
    yield "longshore.service", shlex.split(re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)[0])[1:]


def mentioned() -> Iterator[tuple[str, list[str]]]:
    """Every command in a comment or an annotation."""
    for path in sorted(DEPLOY.iterdir()):
        for line in path.read_text(encoding="utf-8").splitlines():
            for words in re.findall(r"`longshore ([^`]+)`|^#.* (?:/\S+/)?longshore ([a-z][^#`\\]*)", line):
                yield path.name, shlex.split(words[0] or words[1])


def seconds(text: str | int) -> int:
    return int(str(text).removesuffix("s"))


# --- commands ---


@pytest.mark.parametrize(("where", "words"), list(started()), ids=lambda given: given if isinstance(given, str) else "")
def test_a_command_that_a_file_starts_is_accepted_with_its_options(where: str, words: list[str]) -> None:
    found: Any = command()
    found.commands[words[0]].make_context(words[0], words[1:])  # raises on an unknown option or a wrong value


def test_a_command_that_a_file_mentions_exists() -> None:
    found = list(mentioned())
    assert len(found) >= 8
    assert [f"{where}: {' '.join(words)}" for where, words in found if unknown_in(words)] == []


# --- stopping and probes ---


def test_every_worker_has_more_time_to_stop_than_its_jobs_have() -> None:
    workers = [(words, compose()["worker"]["stop_grace_period"]) for _, words in started() if words[0] == "worker"][:1]
    pod = pods()["longshore-worker"]
    workers.append((pod["containers"][0]["args"], pod["terminationGracePeriodSeconds"]))
    for words, time in workers:
        assert seconds(time) >= seconds(words[words.index("--grace") + 1]) + MARGIN
    unit = (DEPLOY / "longshore.service").read_text(encoding="utf-8")
    assert seconds(re.findall(r"^TimeoutStopSec=(.+)$", unit, re.MULTILINE)[0]) >= STOP_GRACE + MARGIN


def test_probes_ask_routes_of_the_server_at_the_port_that_the_image_exposes() -> None:
    [server] = pods()["longshore-server"]["containers"]
    assert server["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert server["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    known = (FROZEN / "http_operations.txt").read_text(encoding="utf-8")
    assert "/healthz" in known
    assert "/readyz" in known
    [port] = server["ports"]
    assert port == {"name": "http", "containerPort": int(image_line("EXPOSE"))}
    assert compose()["server"]["ports"] == [f"127.0.0.1:{port['containerPort']}:{port['containerPort']}"]
    # a worker has no port, so the health check of the image would always fail there
    assert compose()["worker"]["healthcheck"] == {"disable": True}


def test_a_service_selects_the_pods_of_the_server() -> None:
    [service] = [each for each in kubernetes() if each["kind"] == "Service"]
    [server] = [each for each in kubernetes() if each["metadata"]["name"] == "longshore-server"]
    assert service["spec"]["selector"] == server["spec"]["template"]["metadata"]["labels"]


def test_no_service_sets_a_variable_that_longshore_reads() -> None:
    [service] = [each for each in kubernetes() if each["kind"] == "Service"]
    prefix = service["metadata"]["name"].upper().replace("-", "_")
    read = (FROZEN / "environment.txt").read_text(encoding="utf-8").split()
    assert [name for name in read if name.startswith(prefix)] == []
    assert [name for name, pod in pods().items() if pod.get("enableServiceLinks", True)] == []


# --- metrics ---


def samples() -> dict[str, set[str]]:
    """The labels of every sample that the server exposes."""
    known: dict[str, set[str]] = {}
    text = (FROZEN / "metrics.txt").read_text(encoding="utf-8")
    for labels, names in re.findall(r"^  labels:(.*)\n  samples:(.*)$", text, re.MULTILINE):
        for name in names.split(","):
            known[name.strip()] = {label.strip() for label in labels.split(",") if label.strip()}
    return known


def expressions(path: Path) -> list[str]:
    """The queries in a file."""
    read = yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML
    if path.suffix == ".json":
        return [target["expr"] for panel in read["panels"] for target in panel["targets"]]
    return [rule["expr"] for group in read.get("groups", []) for rule in group["rules"]]


@pytest.mark.parametrize("path", WITH_METRICS, ids=lambda path: path.name)
def test_every_metric_in_a_file_exists_with_the_labels_it_is_asked_for(path: Path) -> None:
    known = samples()
    lost = [name for name in re.findall(r"longshore_\w+", path.read_text(encoding="utf-8")) if name not in known]
    added = {"job", "instance"}  # by Prometheus
    for expression in expressions(path):
        for name, selectors in re.findall(r"(longshore_\w+)\{([^}]*)\}", expression):
            used = set(re.findall(r"(\w+)\s*[=!]", selectors))
            lost += [f"{name}: {label}" for label in used - known[name] - added]
        labels = set().union(*(known[name] for name in re.findall(r"longshore_\w+", expression)))
        grouped = re.findall(r"\bby \(([^)]*)\)", expression)
        lost += [
            f"{expression}: {label}" for label in re.findall(r"\w+", " ".join(grouped)) if label not in labels | added
        ]
    assert not lost, "\n".join(lost)


def test_the_dashboard_shows_every_metric() -> None:
    shown = " ".join(expressions(DEPLOY / "grafana-dashboard.json"))
    metrics = re.findall(r"^\w+ (longshore_\w+)$", (FROZEN / "metrics.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name in metrics if name not in shown] == []


def test_every_panel_of_the_dashboard_has_a_place_of_its_own() -> None:
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_prometheus_reads_the_rules_that_are_there() -> None:
    read = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
    assert [name for name in read["rule_files"] if not (DEPLOY / name).is_file()] == []
    [job] = read["scrape_configs"]
    rules = (DEPLOY / "alerts.yml").read_text(encoding="utf-8")
    assert set(re.findall(r'job="(\w+)"', rules)) == {job["job_name"]}
