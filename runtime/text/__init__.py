"""Between text and token ids: tokenizer, chat template, streaming detokeniser, stop texts."""
