"""The argument BUNDLE: a folder, or the name of a bundle on the Hub."""

from __future__ import annotations

from pathlib import Path

import click


class BundleArgument(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Converts to the bundle's folder; a name like ``owner/name`` that is no folder is fetched from the Hub."""

    name = "bundle"

    def convert(self, value: str | Path, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: ARG002
        from edgespec.hub import find_bundle

        return find_bundle(value)


BUNDLE = BundleArgument()
