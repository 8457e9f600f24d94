"""``edgespec push``: publish a bundle on the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(short_help="Publish a bundle on the Hugging Face Hub.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("repository")
@click.option("--private", is_flag=True, help="If the repository has to be made, make it private.")
@click.option("--revision", help="Branch to publish to; the main one unless given.")
@click.option("--message", help="Message of the commit.")
def push(bundle: Path, repository: str, private: bool, revision: str | None, message: str | None) -> None:
    """Publish BUNDLE as REPOSITORY (owner/name) with a model card that says what it was made from.

    Afterwards the name can stand for the folder: edgespec run owner/name. Log in first: hf auth login.
    """
    from edgespec.hub import push_bundle

    click.echo(push_bundle(bundle, repository, private=private, revision=revision, message=message))
