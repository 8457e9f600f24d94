import click


@click.command()
def chat():
    pass
