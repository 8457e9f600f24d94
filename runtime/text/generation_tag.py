"""``{% generation %} ... {% endgeneration %}`` of chat templates: it marks what the assistant wrote, for training.

A prompt is the same with and without it, so its body is rendered as it stands.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class GenerationTag(Extension):
    tags = {"generation"}  # noqa: RUF012 (declared so by jinja2)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
