"""The page as it is served: one file, whose script runs only under the policy that is sent with it. The app loads the file itself."""

from __future__ import annotations

import functools
from pathlib import Path

NONCE = "{{nonce}}"


@functools.cache
def page_source() -> str:
    """The text of page.html."""
    return (Path(__file__).parent / "page.html").read_text(encoding="utf-8")


def page(nonce: str) -> str:
    """The page with ``nonce`` on its script and style."""
    return page_source().replace(NONCE, nonce)


def policy(nonce: str) -> str:
    """The Content-Security-Policy: nothing from elsewhere, no script and no style but the page's own."""
    own = f"'nonce-{nonce}'"
    return (
        f"default-src 'none'; script-src {own}; style-src {own}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
