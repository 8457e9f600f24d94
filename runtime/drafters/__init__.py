"""Drafters: what proposes tokens. One file each, and a registry by name.

A drafter sees token ids, never the target's session. To add one, write a class with the methods of :class:`Drafter`
and register a factory under its name; the loop, the command line and ``edgespec verify`` then know it.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from edgespec.errors import UsageError
from edgespec.manifest import Manifest
from edgespec.runtime.model import Model
from edgespec.runtime.processors import Floats, Text
from edgespec.runtime.sampling import Candidate
from edgespec.tree import DraftTree


@dataclasses.dataclass(frozen=True)
class Round:
    """What became of a proposal.

    Attributes:
        context: the text, which has grown.
        tree: what was verified.
        path: the accepted nodes, in order.
        choices: the target's most likely token after the last known token and after each node, int64 [1 + n]. None
            unless a drafter asked for it (``reads_choices``).
    """

    context: Sequence[int]
    tree: DraftTree
    path: tuple[int, ...]
    choices: npt.NDArray[np.int64] | None = None


class Drafter(abc.ABC):
    """Proposes what may follow a context. It serves one generation, whose context only grows.

    Attributes:
        name: under which it is registered.
        reads_choices: whether it wants ``Round.choices``.
        passes: model passes so far, 0 for a drafter without a model.
        run_seconds: seconds of these passes inside ONNX Runtime.
    """

    name: ClassVar[str]
    reads_choices: ClassVar[bool] = False

    @abc.abstractmethod
    def propose(self, context: Sequence[int], max_tokens: int) -> DraftTree:
        """A tree of at most ``max_tokens`` nodes to follow ``context``; an empty one if there is no good guess."""

    def observe(self, found: Round) -> None:  # noqa: B027 - most have nothing to learn
        """A round is over. All drafters hear of every round, whoever proposed; nodes behind a proposal may be guesses
        that filled rows of the pass."""

    @property
    def passes(self) -> int:
        return 0

    @property
    def run_seconds(self) -> float:
        return 0.0


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a factory may use. ``model`` gives the bundle's model for a drafter of that name, loaded on the first call.
    ``choose`` takes a row of a draft's logits and the text before it to a token, and to q if it was drawn from q."""

    vocabulary: int
    model: Callable[[str], Model]
    choose: Callable[[Floats, Text], Candidate]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A registered drafter. ``needs_model`` says whether the bundle must bring a model for it."""

    make: Callable[[Resources], Drafter]
    needs_model: bool


_KINDS: dict[str, Kind] = {}


def register(name: str, make: Callable[[Resources], Drafter], *, needs_model: bool = False) -> None:
    """Make a drafter known. ``none`` and ``auto`` are taken."""
    if name in ("none", "auto") or name in _KINDS:
        raise UsageError(f"drafter {name!r}: the name is taken")
    _KINDS[name] = Kind(make, needs_model)


def kind_of(name: str) -> Kind:
    return _KINDS[name]


def available(manifest: Manifest) -> tuple[str, ...]:
    """Names that may be asked for with this bundle: "auto", "none", and each drafter that it has all parts for."""
    with_model = {drafter.kind for drafter in manifest.drafters if drafter.model is not None}
    return ("auto", "none", *(name for name, kind in _KINDS.items() if not kind.needs_model or name in with_model))


def chosen(name: str, manifest: Manifest) -> tuple[str, ...]:
    """The drafters that ``name`` stands for, in the order in which they are asked.

    Raises:
        UsageError: no drafter of that name, or the bundle has no model for it.
    """
    known = available(manifest)
    if name not in known:
        if name in _KINDS:
            raise UsageError(f"drafter {name!r} needs a draft model, which this bundle lacks; it can run {', '.join(known)}")
        raise UsageError(f"no drafter {name!r}; this bundle can run {', '.join(known)}")
    return {"auto": known[2:], "none": ()}.get(name, (name,))


def model_name(kind: str, manifest: Manifest) -> str | None:
    """The entry of the manifest's models that belongs to a drafter."""
    return next((drafter.model for drafter in manifest.drafters if drafter.kind == kind and drafter.model is not None), None)


def _register_own() -> None:
    from edgespec.runtime.drafters.draft_model import DraftModel
    from edgespec.runtime.drafters.ngram import NGram

    register("ngram", lambda _: NGram())
    register("draft", lambda resources: DraftModel(resources.model("draft"), resources.vocabulary, resources.choose), needs_model=True)


_register_own()
