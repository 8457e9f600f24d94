"""What is measured of edgespec where nothing else is asked for: options of ``generate`` by name."""

from __future__ import annotations

ALONE: dict[str, dict[str, str]] = {
    "plain": {"drafter": "none", "exactness": "fast"},
    "plain exact": {"drafter": "none"},
    "n-gram": {"drafter": "ngram"},
    "n-gram fast": {"drafter": "ngram", "exactness": "fast"},
    "auto": {},
}
