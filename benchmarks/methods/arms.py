"""The methods that a bundle can run, and for each group of them that needs the same models a bundle of these."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from edgespec.bundle import open_bundle
from edgespec.manifest import MANIFEST_NAME, Manifest
from edgespec.runtime import drafters

BASE, PLAIN = "plain, fast", "plain"
FAST = ", fast"
"""Ends the name of a method under the exactness "fast"; the others are exact."""

Modes = dict[str, dict[str, Any]]
"""Options of ``generate`` by the name of a method."""
Group = tuple[str, ...]
"""Names of the draft models and heads that some methods need."""


def groups_of(manifest: Manifest, asked: Collection[str] = (), exactness: Sequence[str] = ("exact", "fast")) -> dict[Group, Modes]:
    """Plain decoding, and every method of the bundle or those ``asked`` for, by the models that they need.

    Raises:
        UsageError: the bundle cannot run a method that was asked for.
    """
    groups: dict[Group, Modes] = {(): {BASE: {"drafter": "none", "exactness": "fast"}, PLAIN: {"drafter": "none"}}}
    for name in asked or [name for name in drafters.available(manifest) if name != "none"]:
        used = drafters.chosen(name, manifest)
        models = dict.fromkeys(model for drafter in used for model in drafters.models_of(drafter, manifest))
        modes = groups.setdefault(tuple(models), {})
        if "exact" in exactness:
            modes[name] = {"drafter": name}
        if "fast" in exactness:
            modes[name + FAST] = {"drafter": name, "exactness": "fast"}
    for modes in groups.values():
        for options in modes.values():
            options["ignore_eos"] = False
    return groups


def bundle_with(models: Group, bundle: Path, folder: Path) -> Path:
    """The bundle with these draft models and heads only, in ``folder``; files are links where the disk allows it."""
    manifest = open_bundle(bundle)
    kept = {name: spec for name, spec in manifest.models.items() if name == "target" or name in models}
    if kept.keys() == manifest.models.keys():
        return bundle
    output = folder / "-".join(("target", *models))
    output.mkdir()
    using = tuple(drafter for drafter in manifest.drafters if drafter.model is None or drafter.model in models)
    reduced = dataclasses.replace(manifest, models=kept, drafters=using)
    (output / MANIFEST_NAME).write_text(reduced.to_json(), encoding="utf-8")
    for file in manifest.files:
        try:
            os.link(bundle / file.name, output / file.name)
        except OSError:  # another disk
            shutil.copyfile(bundle / file.name, output / file.name)
    return output
