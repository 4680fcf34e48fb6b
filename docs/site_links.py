"""A hook of mkdocs: links that leave `docs` lead to the repository, and to a file that exists.

In the repository such a link is relative (`../bench/README.md`), so that it works there, too.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_OUTSIDE = re.compile(r"\]\(\.\./([^)#\s]+)(#[^)\s]*)?\)")
_log = logging.getLogger("mkdocs.hooks.site_links")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Rewrites the links of one page; a missing file is a warning, which a strict build refuses."""
    del files

    def rewrite(found: re.Match[str]) -> str:
        target, anchor = found[1], found[2] or ""
        if not (ROOT / target).exists():
            _log.warning("%s links to ../%s, which does not exist", page.file.src_path, target)
        return f"]({config.repo_url}/blob/main/{target}{anchor})"

    return _OUTSIDE.sub(rewrite, markdown)
