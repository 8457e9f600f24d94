import click


@click.command()
def quickstart():
    pass
