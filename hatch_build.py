"""Makes the links of README.md absolute in the package's metadata, where relative ones lead nowhere."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]+)\)")


class AbsoluteLinks(MetadataHookInterface):
    """Reads README.md when the metadata is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets the description of the package."""
        repository, version = metadata["urls"]["Repository"], metadata["version"]

        def absolute(link: re.Match[str]) -> str:
            image, text, path = link.groups()
            return f"{image}[{text}]({repository}/{'raw' if image else 'blob'}/v{version}/{path})"

        text = _LINK.sub(absolute, Path(self.root, "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
