"""The command ``edgespec``.

One file per command; the commands import the runtime or the exporter only when they run, so that ``edgespec --help`` is
quick and the runtime's user needs none of the exporter's libraries. :mod:`edgespec.cli.app` turns errors into one line.
"""

from edgespec.cli.app import main

__all__ = ["main"]
