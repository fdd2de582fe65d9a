"""The drawings in docs/images, made from the transition table, the import contracts, a real flow and the lake."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import groupby, pairwise
from pathlib import Path

from longshore import Harbor
from longshore.core.flows import drawing
from longshore.core.status import ELIGIBLE, FINAL, TRANSITIONS, JobStatus, Verb
from longshore.spark.lake.tables import COLUMNS

ROOT = Path(__file__).resolve().parents[2]

STYLE = """
svg { --ink: #1f2933; --soft: #52606d; --paper: #ffffff; --box: #f2f5f8; --line: #7b8794;
  --blue: #1967b3; --green: #1b7f4b; --orange: #b45309; --purple: #7c3aed; --red: #c62828; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e4e7eb; --soft: #9aa5b1; --paper: #1b1f27; --box: #272d38; --line: #7b8794;
    --blue: #6cb2f5; --green: #5fcf92; --orange: #f2a14b; --purple: #b794f6; --red: #f28b82; }
}
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: var(--ink); }
.paper { fill: var(--paper); }
.box { fill: var(--box); stroke: var(--line); stroke-width: 1.2; }
.group { fill: none; stroke: var(--line); stroke-width: 1; stroke-dasharray: 4 3; }
.soft { fill: var(--soft); }
path { fill: none; stroke-width: 1.6; }
""" + "".join(
    f".{name} {{ stroke: var(--{name}); }} .{name}-head {{ fill: var(--{name}); stroke: none; }}\n"
    for name in ("blue", "green", "orange", "purple", "red", "line")
)
COLOURS = ("blue", "green", "orange", "purple", "red", "line")
DASHES = {"orange": "7 3", "purple": "2 3", "red": "9 3 2 3"}
"""A pattern for each kind of arrow, for readers who do not see its colour."""


@dataclass(slots=True)
class Box:
    """A rectangle with centred lines of text, the first in bold. A box without text is drawn below the others."""

    x: float
    y: float
    width: float
    height: float
    lines: Sequence[str] = ()
    edge: str = "line"

    def port(self, side: str, part: float) -> tuple[float, float]:
        """A point on a side, at a part of its length."""
        across, down = self.x + self.width * part, self.y + self.height * part
        return {
            "left": (self.x, down),
            "right": (self.x + self.width, down),
            "top": (across, self.y),
            "bottom": (across, self.y + self.height),
        }[side]

    def centre(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


@dataclass(slots=True)
class Arrow:
    """A curve from a side of one box to a side of another."""

    source: str
    target: str
    colour: str = "line"
    sides: tuple[str, str] = ("", "")
    dash: str = ""
    title: str = ""


_OUTWARD = {"left": (-1, 0), "right": (1, 0), "top": (0, -1), "bottom": (0, 1)}


@dataclass
class Drawing:
    """Boxes, arrows between them, and notes."""

    width: int
    height: int
    title: str
    boxes: dict[str, Box] = field(default_factory=dict)
    arrows: list[Arrow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def note(self, x: float, y: float, text: str, size: int = 12, anchor: str = "start") -> None:
        """A line of small text."""
        self.notes.append(
            f'<text class="soft" x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def group(self, x: float, y: float, width: float, height: float) -> None:
        """A dashed frame."""
        self.notes.insert(0, f'<rect class="group" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>')

    def svg(self) -> str:
        """The whole file."""
        heads = "".join(
            f'<marker id="{colour}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path class="{colour}-head" d="M0,0 L8,4 L0,8 z"/></marker>'
            for colour in COLOURS
        )
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">',
            f"<title>{escape(self.title)}</title>",
            f"<style>{STYLE}</style>",
            f"<defs>{heads}</defs>",
            f'<rect class="paper" width="{self.width}" height="{self.height}" rx="10"/>',
            *(line for box in self.boxes.values() if not box.lines for line in _box_lines(box)),
            *self.notes,
            *self._paths(),
            *(line for box in self.boxes.values() if box.lines for line in _box_lines(box)),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _paths(self) -> Iterable[str]:
        sides = {id(arrow): self._sides(arrow) for arrow in self.arrows}
        ports: dict[tuple[str, str], list[tuple[float, int, bool]]] = defaultdict(list)
        for number, arrow in enumerate(self.arrows):
            for leaves, name, other in ((True, arrow.source, arrow.target), (False, arrow.target, arrow.source)):
                side = sides[id(arrow)][0 if leaves else 1]
                x, y = self.boxes[other].centre()
                ports[name, side].append((y if side in ("left", "right") else x, number, leaves))
        place = {}
        for (name, side), ends in ports.items():
            for at, (_, number, leaves) in enumerate(sorted(ends), start=1):
                place[number, leaves] = (self.boxes[name].port(side, at / (len(ends) + 1)), _OUTWARD[side])
        for number, arrow in enumerate(self.arrows):
            (x1, y1), (dx1, dy1) = place[number, True]
            (x2, y2), (dx2, dy2) = place[number, False]
            around = (dx1, dy1) == (dx2, dy2)  # it leaves and arrives on the same side
            reach = 64.0 if around else max(24.0, 0.42 * max(abs(x2 - x1), abs(y2 - y1)))
            curve = (
                f"M{x1:.1f},{y1:.1f} C{x1 + dx1 * reach:.1f},{y1 + dy1 * reach:.1f} "
                f"{x2 + dx2 * reach:.1f},{y2 + dy2 * reach:.1f} {x2:.1f},{y2:.1f}"
            )
            dash = f' stroke-dasharray="{arrow.dash}"' if arrow.dash else ""
            title = f"<title>{escape(arrow.title)}</title>" if arrow.title else ""
            yield f'<path class="{arrow.colour}"{dash} marker-end="url(#{arrow.colour})" d="{curve}">{title}</path>'

    def _sides(self, arrow: Arrow) -> tuple[str, str]:
        if arrow.sides[0]:
            return arrow.sides
        (x1, y1), (x2, y2) = self.boxes[arrow.source].centre(), self.boxes[arrow.target].centre()
        if abs(x2 - x1) >= abs(y2 - y1):
            return ("right", "left") if x2 > x1 else ("left", "right")
        return ("bottom", "top") if y2 > y1 else ("top", "bottom")


def _box_lines(box: Box) -> Iterable[str]:
    place = f'x="{box.x:g}" y="{box.y:g}" width="{box.width:g}" height="{box.height:g}"'
    yield f'<rect class="box {box.edge}" {place} rx="6"/>'
    x, _ = box.centre()
    step = 16
    first = box.y + box.height / 2 - (len(box.lines) - 1) * step / 2 + 4.5
    for number, line in enumerate(box.lines):
        kind = 'font-weight="600" font-size="13"' if number == 0 else 'class="soft" font-size="11.5"'
        yield f'<text x="{x:g}" y="{first + number * step:g}" {kind} text-anchor="middle">{escape(line)}</text>'


# --- states ---

_PLACES = {
    JobStatus.CREATED: (70, 30),
    JobStatus.WAITING_CHILDREN: (70, 155),
    JobStatus.INITIAL_PENDING: (70, 290),
    JobStatus.UNSCHEDULED: (330, 30),
    JobStatus.RUNNING: (330, 290),
    JobStatus.CANCELLING: (590, 140),
    JobStatus.UNKNOWN_RETRY: (590, 320),
    JobStatus.FAILED_RETRY: (590, 450),
    JobStatus.COMPLETED: (870, 30),
    JobStatus.UNKNOWN_STOPPED: (870, 160),
    JobStatus.STOPPED: (870, 290),
    JobStatus.DEAD: (870, 450),
}
_SIDES = {
    (JobStatus.CREATED, JobStatus.INITIAL_PENDING): ("left", "left"),
    (JobStatus.WAITING_CHILDREN, JobStatus.UNSCHEDULED): ("right", "left"),
    (JobStatus.INITIAL_PENDING, JobStatus.UNSCHEDULED): ("right", "bottom"),
    (JobStatus.RUNNING, JobStatus.COMPLETED): ("top", "left"),
    (JobStatus.RUNNING, JobStatus.FAILED_RETRY): ("bottom", "left"),
    (JobStatus.FAILED_RETRY, JobStatus.RUNNING): ("left", "bottom"),
    (JobStatus.RUNNING, JobStatus.STOPPED): ("right", "left"),
    (JobStatus.RUNNING, JobStatus.CANCELLING): ("right", "left"),
    (JobStatus.UNKNOWN_STOPPED, JobStatus.COMPLETED): ("top", "bottom"),
    (JobStatus.UNKNOWN_RETRY, JobStatus.COMPLETED): ("right", "left"),
    (JobStatus.UNKNOWN_RETRY, JobStatus.DEAD): ("right", "left"),
    (JobStatus.FAILED_RETRY, JobStatus.STOPPED): ("right", "left"),
}
_FAMILIES = {
    "blue": ("accept, claim", {Verb.ACCEPT, Verb.DEPENDENCIES_COMPLETED, Verb.CLAIM}),
    "green": ("complete", {Verb.COMPLETE}),
    "orange": ("fail, bury, retry", {Verb.FAIL, Verb.BURY, Verb.RETRY}),
    "purple": (
        "cancel, stop, expire",
        {Verb.CANCEL, Verb.EXPIRE, Verb.DEPENDENCY_FAILED, Verb.STOP, Verb.STOP_WITH_RETRY, Verb.ACKNOWLEDGE},
    ),
    "red": ("release, crash, unknown", {Verb.RELEASE, Verb.CRASH, Verb.DISOWN, Verb.MARK_UNKNOWN_STOPPED}),
}


def _colour_of(verb: Verb) -> str:
    return next(colour for colour, (_, verbs) in _FAMILIES.items() if verb in verbs)


def states() -> str:
    """Every status and every legal transition."""
    drawn = Drawing(1080, 570, "The statuses of a job and the transitions between them")
    for status in JobStatus:
        x, y = _PLACES[status]
        kind = "final" if status in FINAL else "a worker may claim it" if status in ELIGIBLE else ""
        edge = "green" if status in FINAL else "blue" if status in ELIGIBLE else "line"
        drawn.boxes[status] = Box(x, y, 170, 50, [status.value, kind] if kind else [status.value], edge)
    moves = sorted(TRANSITIONS, key=lambda move: (move.source, move.target))
    for (source, target), same in groupby(moves, key=lambda move: (move.source, move.target)):
        verbs = [move.verb for move in same]
        for colour in dict.fromkeys(map(_colour_of, verbs)):
            told = ", ".join(verb.value for verb in verbs if _colour_of(verb) == colour)
            sides = _SIDES.get((source, target), ("", ""))
            title = f"{source} to {target}: {told}"
            drawn.arrows.append(Arrow(source, target, colour, sides, DASHES.get(colour, ""), title))
    for number, (colour, (title, _)) in enumerate(_FAMILIES.items()):
        x, y = 70 + number * 195, 548
        dash = f' stroke-dasharray="{DASHES[colour]}"' if colour in DASHES else ""
        drawn.notes.append(f'<path class="{colour}"{dash} marker-end="url(#{colour})" d="M{x},{y - 4} h36"/>')
        drawn.note(x + 44, y, title)
    return drawn.svg()


# --- packages ---

_HOLDS = {
    "cli": "the longshore command",
    "server": "HTTP API, live events, pages",
    "spark": "source, sink, lake, audit, report",
    "testing": "conformance kit",
    "app": "Harbor: tasks, flows, results, middleware",
    "runtime": "Queue, Worker, leases, executors, Scheduler, Supervisor",
    "core": "records, statuses, transitions, retries, schedules: no I/O",
    "memory": "for tests",
    "sqlite": "one file",
    "postgres": "many hosts",
    "remote": "over HTTP",
}


def architecture() -> str:
    """The packages, from the import contracts of the project: a package imports only the ones below it."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers, stores = ([re.findall(r"\w+(?=\)| |$)", line) for line in contract["layers"]] for contract in contracts[:2])
    drawn = Drawing(860, 640, "The packages of Longshore; each imports only packages below it")
    left, width, y = 40, 780, 24
    for names in layers:
        height = 178 if names == ["backends"] else 56
        each = (width - 16 * (len(names) - 1)) / len(names)
        for number, name in enumerate(names):
            x = left + number * (each + 16)
            lines = [] if name == "backends" else [name, _HOLDS[name]]
            drawn.boxes[name] = Box(x, y, each, height, lines)
        y += height + 34
    frame = drawn.boxes["backends"]
    top = frame.y + 24
    drawn.notes.append(
        f'<text x="430" y="{frame.y + 24:g}" font-size="13" font-weight="600" text-anchor="middle">backends</text>'
    )
    drawn.boxes["engine"] = Box(
        left + 14,
        top + 14,
        width - 200,
        52,
        ["engine, operations", "the contract: decides once, for every store"],
    )
    *local, remote = stores[0]
    each = (width - 200 - 16 * (len(local) - 1)) / len(local)
    for number, name in enumerate(local):
        drawn.boxes[name] = Box(left + 14 + number * (each + 16), top + 86, each, 50, [name, _HOLDS[name]])
        drawn.arrows.append(Arrow("engine", name, "line", ("bottom", "top")))
    drawn.boxes[remote] = Box(left + width - 158, top + 14, 144, 122, [remote, _HOLDS[remote], "to a server"])
    for above, below in pairwise(layers):
        drawn.arrows += [Arrow(one, other, "line", ("bottom", "top")) for one in above for other in below]
    drawn.height = int(y - 34 + 24)
    return drawn.svg()


# --- a flow ---


async def _flow_in_progress() -> str:
    """The chart that `longshore flow show --mermaid` prints, of the flow in docs/flows.md while it runs."""
    harbor = Harbor("memory://")

    @harbor.task
    async def extract(url: str) -> list[str]:
        return [url]

    @harbor.task
    async def count_words(pages: list[str], place: int) -> int:
        return len(pages[place])

    @harbor.task
    async def report(counts: list[int]) -> int:
        return sum(counts)

    async with harbor:
        flow = harbor.flow("import")
        pages = flow.add(extract.call("example.org"))
        counts = [flow.add(count_words.call(pages.result, place)) for place in range(3)]
        flow.add(report.call([count.result for count in counts]))
        handle = await flow.enqueue()
        [first] = await harbor.backend.dequeue_jobs("worker")
        await harbor.backend.complete_job(first.id, b"[]", lease=first.lease)
        [second, _] = await harbor.backend.dequeue_jobs("worker", limit=2)
        await harbor.backend.complete_job(second.id, b"1", lease=second.lease)
        return drawing(await handle.steps())


_TINTS = {JobStatus.COMPLETED: "green", JobStatus.RUNNING: "blue", JobStatus.DEAD: "red"}


def flow() -> str:
    """The steps of a flow, each below the steps that it depends on."""
    chart = asyncio.run(_flow_in_progress())
    steps = {
        name: (title, JobStatus(status)) for name, title, status in re.findall(r'(s\d+)\["(.+?)<br/>(\w+)"\]', chart)
    }
    edges = re.findall(r"(s\d+) (-->|-\.->) (s\d+)", chart)
    rank: dict[str, int] = {}
    for name in steps:  # a step comes after the steps that it depends on
        rank[name] = max((rank[source] + 1 for source, _, target in edges if target == name), default=0)
    drawn = Drawing(720, 320, "A flow of five steps while it runs")
    for level in sorted(set(rank.values())):
        names = [name for name in steps if rank[name] == level]
        for number, name in enumerate(names):
            x = 360 + (number - (len(names) - 1) / 2) * 230 - 95
            title, status = steps[name]
            drawn.boxes[name] = Box(x, 24 + level * 110, 190, 52, [title, status.value], _TINTS.get(status, "line"))
    drawn.arrows = [
        Arrow(source, target, "line", ("bottom", "top"), "" if kind == "-->" else "3 3")
        for source, kind, target in edges
    ]
    return drawn.svg()


# --- the pipeline ---


def pipeline() -> str:
    """The tables of the lake, from the event log to the report."""
    tables: Mapping[str, list[str]] = {
        layer: [name.partition(".")[2] for name in names]
        for layer, names in groupby(COLUMNS, key=lambda name: name.partition(".")[0])
    }
    drawn = Drawing(1070, 360, "From the event log to the report: bronze, silver and gold tables")
    columns = [
        ("store", ["event log"], "in SQLite or PostgreSQL"),
        ("bronze", tables["bronze"], "every event, once"),
        ("silver", tables["silver"], "a row per attempt and job"),
        ("gold", tables["gold"], "figures per hour and day"),
        ("report", ["report.html"], "one page with plots"),
    ]
    width = 182
    for number, (layer, names, told) in enumerate(columns):
        x = 30 + number * 212
        drawn.group(x - 8, 40, width - 4, 300)
        middle = x + (width - 20) / 2
        drawn.notes.append(
            f'<text x="{middle:g}" y="26" font-size="15" font-weight="600" text-anchor="middle">{layer}</text>'
        )
        drawn.note(middle, 60, told, 11, "middle")
        step = min(48.0, 262 / len(names))
        top = 205 - step * len(names) / 2
        for at, name in enumerate(names):
            drawn.boxes[f"{layer}.{name}"] = Box(x, top + at * step + 3, width - 20, step - 6, [name])
    frames = {layer: Box(30 + number * 212 - 8, 40, width - 4, 300) for number, (layer, _, _) in enumerate(columns)}
    for (one, _, _), (other, _, _) in pairwise(columns):
        x1, y = frames[one].port("right", 0.55)
        x2, _ = frames[other].port("left", 0.55)
        drawn.notes.append(f'<path class="blue" marker-end="url(#blue)" d="M{x1 + 2:g},{y:g} L{x2 - 2:g},{y:g}"/>')
    return drawn.svg()


DRAWINGS = {"states": states, "architecture": architecture, "flow": flow, "pipeline": pipeline}
