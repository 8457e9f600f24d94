"""How many tokens to draft: what passes cost on this machine, how likely drafts are accepted, and the choice that follows."""
