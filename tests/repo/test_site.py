"""The documentation site: built without a warning, whole, generated where it says so, and served from one origin."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from docs._site.build import html_of, pages, public_names
from docs._site.generate import GENERATED
from longshore import RunningJob
from tests.chromium import browser
from tests.repo.pages import ROOT
from tests.repo.test_public_names import PUBLIC
from tests.repo.test_repository import LOCK, locked_requirements

pytestmark = pytest.mark.timeout(180)

HERE = "http://site"
"""The origin of the site in these tests."""
RESOURCES = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
LOADED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
FOREIGN_FILES = re.compile(r"https?://[\w.-]*(?:unpkg|cdn|jsdelivr|googleapis|gstatic|cloudflare)[^\s\"'`)]*")
NEVER_ASKED = ("https://unpkg.com/mermaid@", "https://unpkg.com/resize-observer-polyfill")
"""The theme loads them for a Mermaid chart, of which no page has one, and for browsers without ResizeObserver."""
HEAVY = ("longshore.spark", "longshore.testing")
"""One would load Spark; of the other, the reference shows classes without their tests."""
SHOWN = (
    "index.html",
    "tasks.html",
    "states.html",
    "reference/python.html",
    "reference/cli.html",
    "reference/http.html",
)


class Parsed(HTMLParser):
    """The ids, links, resources and classes of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.resources: set[str] = set()
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        self.classes |= set(given.get("class", "").split())
        if tag == "a" and "href" in given:
            self.links.add(given["href"])
        if tag in RESOURCES and RESOURCES[tag] in given:
            self.resources.add(given[RESOURCES[tag]])
        if tag == "link" and LOADED_LINKS & set(given.get("rel", "").split()):
            self.resources.add(given["href"])
        self.resources |= set(re.findall(r"url\(([^)]+)\)", given.get("style", "")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site."""
    folder = tmp_path_factory.mktemp("site")
    began = processor_seconds()
    command = [sys.executable, "-m", "docs._site.build", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert processor_seconds() - began < 60
    return folder


def processor_seconds() -> float:
    """What the processes started here have used; unlike the clock, it does not depend on what else runs."""
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module")
def parsed(site: Path) -> dict[str, Parsed]:
    """Every page of the site by its path."""
    return {
        page.relative_to(site).as_posix(): Parsed(page.read_text(encoding="utf-8"))
        for page in sorted(site.rglob("*.html"))
    }


# --- the lock ---


def test_the_lock_of_the_site_has_hashes_no_address_and_the_versions_of_the_tests() -> None:
    lock = LOCK.with_name("docs.txt")
    assert [line for line in lock.read_text(encoding="utf-8").splitlines() if "://" in line] == []
    locked, tests = locked_requirements(lock), locked_requirements()
    assert {"mkdocs-material", "mkdocstrings", "mkdocstrings-python"} <= locked.keys()
    assert [name for name, entry in locked.items() if "--hash=sha256:" not in entry] == []
    both = locked.keys() & tests.keys()
    assert [name for name in both if locked[name].split()[0] != tests[name].split()[0]] == [], "run `make lock`"


# --- generated files ---


@pytest.mark.parametrize(("name", "make"), GENERATED.items(), ids=GENERATED)
def test_a_generated_file_is_what_the_program_says(name: str, make: Callable[[], str]) -> None:
    path = ROOT / "docs" / name
    assert path.is_file(), f"docs/{name} is missing: run `make docs`"
    assert path.read_text(encoding="utf-8") == make(), f"docs/{name} is stale: run `make docs`"


# --- the site ---


@pytest.mark.slow
def test_every_page_of_the_repository_is_a_page_of_the_site(parsed: dict[str, Parsed]) -> None:
    assert {html_of(place) for place in pages()} - set(parsed) == set()


@pytest.mark.slow
def test_every_link_and_every_anchor_leads_somewhere(site: Path, parsed: dict[str, Parsed]) -> None:
    lost = defaultdict(list)
    for name, page in parsed.items():
        for link in page.links:
            address = urlsplit(urljoin(f"{HERE}/{name}", link))
            if f"{address.scheme}://{address.netloc}" != HERE:
                continue
            path = unquote(address.path).lstrip("/") or "index.html"
            if not (site / path).is_file():
                lost[name].append(f"{link}: no such file")
            elif address.fragment and path in parsed and unquote(address.fragment) not in parsed[path].ids:
                lost[name].append(f"{link}: no such anchor")
    assert dict(lost) == {}


@pytest.mark.slow
def test_no_resource_comes_from_another_host(site: Path, parsed: dict[str, Parsed]) -> None:
    foreign = set()
    for name, page in parsed.items():
        for resource in page.resources:
            address = urlsplit(urljoin(f"{HERE}/{name}", resource.strip("\"'")))
            if address.scheme != "data" and f"{address.scheme}://{address.netloc}" != HERE:
                foreign.add(f"{name}: {resource}")
        assert not page.classes & {"mermaid", "md-source"}, f"{name} has what the theme completes from another host"
    for path in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        text = path.read_text(encoding="utf-8")
        for resource in re.findall(r"url\(([^)]+)\)|@import\s+([^;]+)", text):
            if re.match(r"[\"']?(?:https?:)?//", "".join(resource)):
                foreign.add(f"{path.name}: {resource}")
    for path in site.rglob("*.js"):
        found = FOREIGN_FILES.findall(path.read_text(encoding="utf-8"))
        foreign |= {f"{path.name}: {one}" for one in found if not one.startswith(NEVER_ASKED)}
    assert foreign == set()


@pytest.mark.slow
@pytest.mark.parametrize("package", PUBLIC)
def test_the_reference_has_every_public_name(package: str, parsed: dict[str, Parsed]) -> None:
    anchors = set[str]().union(*(page.ids for name, page in parsed.items() if name.startswith("reference/")))
    kit = "longshore.testing.conformance"
    names: list[str] = importlib.import_module(package).__all__
    wanted = {f"{kit if package == 'longshore.testing' else package}.{name}" for name in names}
    wanted |= {f"{package}.{name}" for name in public_names(package)}
    assert wanted - anchors == set()


@pytest.mark.slow
def test_the_reference_has_every_public_member_of_every_public_class(parsed: dict[str, Parsed]) -> None:
    anchors = set[str]().union(*(page.ids for name, page in parsed.items() if name.startswith("reference/")))
    modules = [importlib.import_module(package) for package in PUBLIC if package not in HEAVY]
    public = {getattr(module, name): f"{module.__name__}.{name}" for module in modules for name in module.__all__}
    missing = set()
    for one in [one for one in public if isinstance(one, type)]:
        ours = [base for base in one.__mro__ if base.__module__.startswith("longshore")]
        names = {name for base in ours for name in vars(base) if not name.startswith("_")}
        places = [public[base] for base in ours if base in public]
        if one is RunningJob:
            places.append("longshore.Job")  # its fields are those of its record
        missing |= {f"{public[one]}.{name}" for name in names if not {f"{at}.{name}" for at in places} & anchors}
    assert missing == set()


@pytest.mark.slow
def test_llms_txt_lists_every_page_with_a_description(site: Path, parsed: dict[str, Parsed]) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    title, _, summary, *lines = text.splitlines()
    assert title == "# Longshore"
    assert summary.startswith("> ")
    listed = [found for line in lines if (found := re.fullmatch(r"- \[(.+)\]\((\S+)\): (.+)", line))]
    assert [line for line in lines if line and not line.startswith(("#", "- ["))] == []
    left_out = {name for name in parsed if name.startswith("source/")} | {"404.html", "index.html"}
    assert {found[2] for found in listed} == set(parsed) - left_out


# --- in a browser ---


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site on a server of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=partial(server.serve_forever, 0.05), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_a_browser_asks_no_other_host_and_shows_pages_on_every_width_in_light_and_dark(
    address: str, tmp_path: Path
) -> None:
    with browser(tmp_path / "profile") as chromium:
        page = chromium.page()
        page.record()
        for dark in (False, True):
            for width in (1280, 360):
                page.emulate(width, dark=dark)
                for name in SHOWN:
                    page.go(f"{address}/{name}")
                    page.run("new Promise(done => requestIdleCallback(done, {timeout: 1000}))")
                    scheme = page.run("document.body.getAttribute('data-md-color-scheme')")
                    assert scheme == ("slate" if dark else "default"), name
                    assert page.run("document.documentElement.scrollWidth") <= width, f"{name} is wider than {width}"
                    assert [one for one in page.requested() if not one.startswith((address, "data:"))] == []
                    assert page.complaints() == []


@pytest.mark.slow
def test_the_search_finds_a_page_without_another_host(address: str, tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as chromium:
        page = chromium.page()
        page.emulate(1280)
        page.record()
        page.go(f"{address}/index.html?q=idempotency")  # the theme searches for `q` by itself
        page.run(
            """new Promise(done => { const look = () => document.querySelector('.md-search-result__link')
            ? done(true) : setTimeout(look, 50); look(); })"""
        )
        assert "dempotency" in page.run("document.querySelector('.md-search-result__list').innerText")
        assert [one for one in page.requested() if not one.startswith((address, "data:"))] == []
