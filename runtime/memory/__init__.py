"""Memory: what an engine will take, what fits a budget, what happens when it does not, and what was taken in the end."""
