import click


@click.command()
def verify():
    pass
