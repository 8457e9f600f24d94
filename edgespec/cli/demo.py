"""``edgespec demo``: the page of the Android app, on this machine."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import click

from edgespec.cli.bundle_argument import BUNDLE
from edgespec.cli.options import NGRAM_CORPUS, PROVIDER_OPTIONS, ROOM_OPTIONS, with_options


@click.command(short_help="Chat in a web page that shows what speculation does.")
@click.argument("bundle", type=BUNDLE)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on this machine; any that is free unless given.")
@click.option("--browser/--no-browser", default=True, help="Open the page, which is the default, or only print its address.")
@click.option("--memory-budget", default="", metavar="SIZE", help="Most memory to use, as 500MB or 1.5GiB; none unless given.")
@click.option("--threads", type=click.IntRange(1, 64), help="Threads of a pass; one for each core unless given.")
@with_options(*ROOM_OPTIONS, *PROVIDER_OPTIONS, NGRAM_CORPUS)
def demo(bundle: Path, port: int, browser: bool, memory_budget: str, threads: int | None, **options: Any) -> None:
    """Serve a chat with BUNDLE as a web page on this machine: accepted drafts in colour, figures, plain and speculative side by side.

    The address holds a secret token; nothing is reachable from other machines. Ctrl-C ends it.
    """
    from edgespec.bundle import open_bundle
    from edgespec.cache import cache_folder
    from edgespec.demo.protocol import Settings
    from edgespec.demo.server import Events, Server
    from edgespec.demo.service import Service

    open_bundle(bundle)
    settings = Settings(memory_budget=memory_budget, threads=threads or 0)
    events = Events()
    service = Service(cache_folder() / "demo", bundle.resolve().parent, events.emit, settings=settings, load_options=options)
    try:
        server = Server(events, service.receive, service.state, port)
        try:
            service.open(bundle.resolve())
            click.echo(server.url)
            click.echo("Open this address in a browser on this machine. Ctrl-C ends.", err=True)
            if browser:
                import webbrowser

                threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
            while True:
                time.sleep(3600)  # until Ctrl-C or a polite kill
        finally:
            server.close()
    finally:
        service.close()
