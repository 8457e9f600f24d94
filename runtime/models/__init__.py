"""The models of a bundle as the loop sees them: a session, the rows of its KV cache, and what the graphs of a profile need beside."""
