"""Write the generated pages and drawings of docs/: `python -m docs._site.generate`, which `make docs` runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from docs._site.diagrams import DRAWINGS
from docs._site.reference import cli_page, http_page, settings_page
from longshore.core.status import page as states_page

DOCS = Path(__file__).resolve().parents[1]

GENERATED: Mapping[str, Callable[[], str]] = {
    "states.md": states_page,
    "reference/cli.md": cli_page,
    "reference/http.md": http_page,
    "reference/settings.md": settings_page,
    **{f"images/{name}.svg": draw for name, draw in DRAWINGS.items()},
}
"""Each file below docs/, and what makes its text."""


def main() -> None:
    """Write every file."""
    for name, make in GENERATED.items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
