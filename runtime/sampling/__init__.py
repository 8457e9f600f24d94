"""From logits to a token: processors, samplers, and grammars that the text must follow."""
