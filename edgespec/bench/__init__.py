"""Measuring a bundle for a person: prompts, runs that take turns, and a report."""
