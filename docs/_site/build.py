"""Build the documentation site: collect the pages, expand the navigation, run MkDocs, write llms.txt.

    python -m docs._site.build [FOLDER]

MkDocs sees a copy of docs/ in which three things differ. Links to files outside docs/ lead to pages of the site. Each
page of the Python reference has one section for every public name. A drawing is a link to its own file, so that it can
be enlarged on a small screen, and takes the place of a Mermaid chart, which the theme would draw with a script from
another host.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import griffe
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
CONFIG = ROOT / "mkdocs.yml"
EXTENSION = DOCS / "_site" / "griffe_extension.py"

PROJECT_PAGES = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/conduct.md",
}
"""Pages outside docs/, and their places in the site. Those of examples/ keep their paths."""

LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))|(?<=\]: )\S+$")
FENCE = re.compile(r"^ *(`{3,}|~{3,})")
API = re.compile(r"^<!-- api: ([\w.]+) -->$", re.MULTILINE)
MERMAID = re.compile(r"^```mermaid\n.*?^```$", re.MULTILINE | re.DOTALL)
DRAWING = re.compile(r"^!\[[^\]]*\]\(([^)\s]+\.svg)\)$", re.MULTILINE)
HEADING = re.compile(r"^# +(.+?) *#*$", re.MULTILINE)


# --- pages ---


def pages() -> dict[str, Path]:
    """Every Markdown page of the site: its path in the site, and its source."""
    found = {page.relative_to(DOCS).as_posix(): page for page in sorted(DOCS.rglob("*.md"))}
    found |= {place: ROOT / name for name, place in PROJECT_PAGES.items() if (ROOT / name).is_file()}
    found |= {page.relative_to(ROOT).as_posix(): page for page in sorted((ROOT / "examples").rglob("README.md"))}
    return found


class Stage:
    """The copy of the pages that MkDocs reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sources = pages()
        self._places = {source: place for place, source in self._sources.items()}
        self._images = {image: f"images/{image.name}" for image in sorted((DOCS / "images").glob("*"))}
        self._places |= self._images

    def fill(self) -> None:
        """Write every page, image and style sheet."""
        for place, source in self._sources.items():
            text = source.read_text(encoding="utf-8")
            text, drawings = DRAWING.subn(r"[\g<0>](\1)", text)
            text = MERMAID.sub("", text) if drawings else text
            text = API.sub(lambda found: reference_of(found[1]), text)
            self._write(place, self._with_links(text, place, source))
        for path, its_place in self._images.items():
            self._copy(path, its_place)
        self._copy(DOCS / "_site" / "site.css", "site.css")

    def _with_links(self, text: str, place: str, source: Path) -> str:
        def rewrite(found: re.Match[str]) -> str:
            return self._target(found[0], place, source)

        return "\n".join(
            line if is_code else "`".join(_every_second(line.split("`"), lambda part: LINK.sub(rewrite, part)))
            for line, is_code in _lines(text)
        )

    def _target(self, link: str, place: str, source: Path) -> str:
        """The link as the page in the site needs it."""
        name, mark, anchor = link.partition("#")
        if not name or re.match(r"[a-z]+:", name):
            return link
        target = (source.parent / name).resolve()
        if target.is_dir() and (target / "README.md").is_file():
            target /= "README.md"
        if target not in self._places and target.is_file() and not target.is_relative_to(DOCS):
            self._places[target] = self._show_file(target)
            mark = anchor = ""
        if target not in self._places:
            return link  # it leads nowhere: MkDocs reports it
        return posixpath.relpath(self._places[target], posixpath.dirname(place) or ".") + mark + anchor

    def _show_file(self, path: Path) -> str:
        """Add a page that shows a file of the repository; returns its place."""
        name = path.relative_to(ROOT).as_posix()
        languages = {".py": "python", ".sql": "sql", ".toml": "toml", ".sh": "sh", ".css": "css", ".html": "html"}
        language = languages.get(path.suffix, "text")
        text = path.read_text(encoding="utf-8").rstrip("\n")
        place = f"source/{name}.md"
        self._write(place, f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n````{language}\n{text}\n````\n")
        return place

    def _write(self, place: str, text: str) -> None:
        path = self._folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _copy(self, source: Path, place: str) -> None:
        path = self._folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, path)


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a block of code."""
    fence = ""
    for line in text.split("\n"):
        marks = FENCE.match(line)
        if fence:
            yield line, True
            fence = "" if marks and marks[1].startswith(fence) else fence
        else:
            fence = marks[1] if marks else ""
            yield line, bool(fence)


def _every_second(parts: Sequence[str], change: Callable[[str], str]) -> Iterator[str]:
    """Changes the parts of a line that are not between backticks."""
    return (part if number % 2 else change(part) for number, part in enumerate(parts))


# --- the Python reference ---


def public_names(package: str) -> list[str]:
    """The public names of a package, read from its source, so that pytest and Spark need not be installed."""
    path = ROOT / "src" / Path(*package.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):  # `from module import Name as Name`
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
        elif isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            names |= set(ast.literal_eval(node.value))
    return sorted(names, key=lambda name: (name.lower(), name))


PACKAGES = ("longshore", "errors", "testing", "backends", "server", "spark")


def reference_of(package: str) -> str:
    """A table of the public names, then one section for each; of the kit, the classes without their tests."""
    paths = [f"{package}.{name}" for name in public_names(package)]
    sections = [_section(path, inherited_members=_inherited(path)) for path in paths]
    if package == "longshore.testing":
        kit = [f"{package}.conformance.{name}" for name in public_names(f"{package}.conformance")]
        paths += kit
        sections += [_section(path, members=False, show_bases=False) for path in kit]
    rows = [f"| [`{path.rpartition('.')[2]}`][{path}] | {_first_line(path)} |" for path in paths]
    return "\n".join(["| name | what it is |", "|---|---|", *rows, "", *sections])


def _section(path: str, **options: Any) -> str:
    """The instruction to mkdocstrings."""
    return f"::: {path}\n    options: {json.dumps(options)}\n"


def _inherited(path: str) -> list[str]:
    """The members that a class has from base classes that no page of the reference shows."""
    found = _object(path)
    if not isinstance(found, griffe.Class):
        return []
    shown = _shown_objects()
    hidden = [base for base in found.mro() if base.path not in shown]
    return [name for base in hidden for name in base.members if not name.startswith("_") and name not in found.members]


@cache
def _shown_objects() -> set[str]:
    """The paths at which the public names are defined."""
    packages = [name if name == "longshore" else f"longshore.{name}" for name in PACKAGES]
    return {_object(f"{package}.{name}").path for package in packages for name in public_names(package)}


def _object(path: str) -> Any:
    """The class, function or value that a public name stands for."""
    found = _source()[path.partition(".")[2]]
    return found.final_target if isinstance(found, griffe.Alias) else found


def _first_line(path: str) -> str:
    """The first sentence of the documentation of a name."""
    found = _object(path)
    text = found.docstring.value if found.docstring else ""
    sentence, _, _ = " ".join(text.partition("\n\n")[0].split()).partition(". ")
    return sentence.removesuffix(".").replace("|", "\\|").replace("<", "&lt;")


@cache
def _source() -> Any:
    """The package as griffe reads it, without importing it."""
    return griffe.load("longshore", search_paths=[ROOT / "src"])


# --- navigation ---


def title_of(text: str) -> str:
    """The first heading of a page."""
    found = HEADING.search(text)
    return re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", found[1]) if found else ""


def navigation(nav: Sequence[Any], sources: Mapping[str, Path]) -> list[Any]:
    """The navigation of mkdocs.yml with its patterns expanded, without pages that do not exist."""
    named = {entry for entry in _leaves(nav) if "*" not in entry}
    seen: set[str] = set()

    def matching(pattern: str) -> list[str]:
        rest = [place for place in sources if place not in seen | named and _matches(place, pattern)]
        return sorted(rest, key=_order_in_folder(pattern, sources))

    def expand(entry: Any) -> list[Any]:
        if isinstance(entry, dict):
            [(title, inner)] = entry.items()
            if isinstance(inner, str) and "*" not in inner:
                seen.add(inner)
                return [{title: inner}] if inner in sources else []
            within = [page for each in ([inner] if isinstance(inner, str) else inner) for page in expand(each)]
            return [{title: within}] if within else []
        found = matching(entry) if "*" in entry else [entry] if entry in sources else []
        seen.update(found)
        return found

    expanded = [page for entry in nav for page in expand(entry)]
    left = sorted(set(sources) - seen)
    return [*expanded, {"More": left}] if left else expanded


def _leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav:
            yield from _leaves(each)


def _matches(place: str, pattern: str) -> bool:
    return fnmatchcase(place, pattern) and ("**" in pattern or place.count("/") == pattern.count("/"))


def _order_in_folder(pattern: str, sources: Mapping[str, Path]) -> Callable[[str], tuple[bool, int, str]]:
    """The index of a folder first, then the pages that it links to, in its order, then the others by name."""
    index = f"{pattern.partition('*')[0]}README.md"
    text = sources[index].read_text(encoding="utf-8") if index in sources else ""

    def order(place: str) -> tuple[bool, int, str]:
        at = text.find(f"]({posixpath.relpath(place, posixpath.dirname(index))}")
        return place != index, at if at >= 0 else len(text), place

    return order


# --- llms.txt ---


def llms_text(config: Mapping[str, Any], nav: Sequence[Any], folder: Path) -> str:
    """The list of pages for language models: a summary, then one line for each page."""
    summary = _first_paragraph((ROOT / "README.md").read_text(encoding="utf-8"))
    lines = [f"# {config['site_name']}", "", f"> {summary}"]

    def walk(entries: Sequence[Any], depth: int) -> None:
        for entry in entries:
            title, inner = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
            if isinstance(inner, list):
                lines.extend(["", f"{'#' * min(depth, 3)} {title}", ""])
                walk(inner, depth + 1)
                continue
            text = (folder / inner).read_text(encoding="utf-8")
            lines.append(f"- [{title_of(text) or title}]({html_of(inner)}): {_first_sentence(text)}")

    walk([entry for entry in nav if isinstance(next(iter(entry.values())), list)], 2)
    return "\n".join(lines) + "\n"


def html_of(place: str) -> str:
    """The address of a page in the site."""
    folder, name = posixpath.split(place)
    return posixpath.join(folder, "index.html" if name == "README.md" else f"{name.removesuffix('.md')}.html")


def _first_paragraph(text: str) -> str:
    """The first paragraph or item of a list that introduces no code and no list, as plain text."""
    blocks: list[list[str]] = [[]]
    for line, is_code in _lines(text):
        if is_code or not re.match(r"[\w*`\[\"-]| +\w", line):
            blocks.append([])
        elif line.startswith("- "):
            blocks.append([line.removeprefix("- ")])
        else:
            blocks[-1].append(line.strip())
    told = (" ".join(lines) for lines in blocks)
    first = next((block for block in told if block and not block.endswith(":") and not block.startswith("Status:")), "")
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", first).replace("**", "")


def _first_sentence(text: str) -> str:
    sentence, _, _ = _first_paragraph(text).partition(". ")
    return sentence[:1].upper() + sentence[1:].rstrip(".:;") + "."


# --- the build ---


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without making the Python objects that it names."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def read_config() -> dict[str, Any]:
    """The settings in mkdocs.yml."""
    config: dict[str, Any] = yaml.load(CONFIG.read_text(encoding="utf-8"), _Loader)
    return config


def build(out: Path) -> int:
    """Build the site into a folder; returns the exit code of MkDocs, which counts a warning as an error."""
    config = read_config()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "pages"
        Stage(folder).fill()
        nav = navigation(config["nav"], pages())
        python = {"paths": [str(ROOT / "src")], "options": {"extensions": [str(EXTENSION)]}}
        settings = {
            "INHERIT": str(CONFIG),
            "docs_dir": str(folder),
            "site_dir": str(out.resolve()),
            "nav": nav,
            "plugins": {"mkdocstrings": {"handlers": {"python": python}}},
        }
        staged = Path(scratch) / "mkdocs.yml"
        staged.write_text(yaml.safe_dump(settings, allow_unicode=True), encoding="utf-8")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(staged)]
        code = subprocess.run(command, check=False).returncode
        if code == 0:
            (out / "llms.txt").write_text(llms_text(config, nav, folder), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "site"))
