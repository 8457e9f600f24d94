"""Drafters: what proposes tokens. One file each, and a registry by name.

A drafter sees token ids, never the target's session. To add one, write a class with the methods of :class:`Drafter`
and register a factory under its name, or in a package of your own name it as an entry point (docs/drafters.md); the loop, the
command line and ``edgespec verify`` then know it.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from edgespec.errors import UsageError
from edgespec.manifest import Manifest
from edgespec.runtime.drafters import foreign
from edgespec.runtime.models.fused import FirstSteps
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.row_heads import RowHeads
from edgespec.runtime.models.token_map import TokenMap
from edgespec.runtime.sampling.processors import Floats, Text
from edgespec.runtime.sampling.sampling import Candidate, Guess
from edgespec.runtime.text.translate import Translator
from edgespec.runtime.tuning.controller import Gate
from edgespec.tree import DraftTree

if TYPE_CHECKING:
    from edgespec.runtime.drafters.corpus import Corpus


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

    def begin(self, context: Sequence[int]) -> None:  # noqa: B027 - most have nothing to prepare
        """A text begins, whose prompt has not been read yet. ``context`` is the list that every round is about; it grows."""

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

    @property
    def off(self) -> str | None:
        """Why it proposes nothing for now, of one that finds out by itself what pays; None while it does."""
        return None


def _no_head(kind: str) -> Any:
    raise UsageError(f"drafter {kind!r} needs a head, and there is none")


def no_translator(kind: str) -> Translator:
    """For models that have the target's ids."""
    raise ValueError(f"a {kind} model needs no translator")


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a factory may use.

    Attributes:
        vocabulary: ids from it on are no tokens.
        models: gives the bundle's models for drafters of a kind, in the manifest's order, loaded on the first call.
        choose: takes a row of a draft's logits and the text before it to a token, and to q if it was drawn from q.
        guess: takes a row of each draft's logits, the text before it and a number to as many tokens, the likeliest first or in the
            order in which they were drawn.
        plain_guess: whether ``guess`` takes the likeliest of a row as they are, so that the row may be in other ids than the target's.
        draws: whether ``guess`` draws, so that none of its tokens may be dropped.
        branches: whether every branch of a tree may commit tokens.
        pass_ms: milliseconds of a target pass of so many tokens. None where a number of nodes was asked for: then it is not the
            drafter's to choose.
        draft_ms: milliseconds of a step of the model of a kind.
        first_ms: milliseconds of its first step in a round, which is cheaper where the target's passes make it.
        translator: from the target's ids to those of the model of a kind that has its own.
        gate: says of token after token whether it pays; None where a number of tokens was asked for.
        corpus: a text of the user's for the n-gram drafter, if there is one.
        window: W, N and G of Lookahead decoding, None for its own choice.
        kept: what drafters keep from one generation of a conversation to the next, by names of their own.
        learnt: what drafters know from texts before, also by names of their own.
        features: for a head of a kind, what gives the target's hidden states that it reads, [rows of the target's cache, F].
        heads: gives the bundle's heads of a kind that keep no cache.
        token_map: of the bundle's model of a kind, None where it scores the target's ids.
        first_steps: lets the target's passes make the first step of the head of a kind; None where they cannot.
    """

    vocabulary: int
    models: Callable[[str], Sequence[Model]]
    choose: Callable[[Floats, Text], Candidate]
    guess: Callable[[Sequence[Floats], Text, int], Sequence[Guess]]
    plain_guess: bool = False
    draws: bool = False
    branches: bool = True
    pass_ms: Callable[[int], float] | None = None
    draft_ms: Callable[[str], float] = lambda _: 0.0
    first_ms: Callable[[str], float] = lambda _: 0.0
    translator: Callable[[str], Translator] = no_translator
    gate: Gate | None = None
    corpus: Corpus | None = None
    window: tuple[int, int, int] | None = None
    kept: dict[str, Any] = dataclasses.field(default_factory=dict)
    learnt: dict[str, Any] = dataclasses.field(default_factory=dict)
    features: Callable[[str], Callable[[], Floats]] = _no_head
    heads: Callable[[str], RowHeads] = _no_head
    token_map: Callable[[str], TokenMap | None] = lambda _: None
    first_steps: Callable[[str], FirstSteps | None] = lambda _: None


@dataclasses.dataclass(frozen=True)
class Kind:
    """A registered drafter.

    Attributes:
        make: gives a drafter for one generation.
        needs: the kind of the manifest's drafters whose models it runs, None if it runs none.
        sizes_itself: whether it finds out by itself how many nodes pay. It is then asked for as many as a pass can verify.
    """

    make: Callable[[Resources], Drafter]
    needs: str | None = None
    sizes_itself: bool = False


_KINDS: dict[str, Kind] = {}
PARTS = {"draft": "a draft model", "universal": "a draft model with another vocabulary", "eagle": "an EAGLE head", "medusa": "Medusa heads"}
AUTO = (("ngram",), ("eagle", "medusa", "draft", "universal"))
"""What "auto" asks in turn: of each group the first that the bundle can run. The cheap one comes first."""


def register(name: str, make: Callable[[Resources], Drafter], *, needs: str | None = None, sizes_itself: bool = False) -> None:
    """Make a drafter known. ``none`` and ``auto`` are taken."""
    if name in ("none", "auto") or name in _KINDS:
        raise UsageError(f"drafter {name!r}: the name is taken")
    _KINDS[name] = Kind(make, needs, sizes_itself)


def kind_of(name: str) -> Kind:
    """What is registered under ``name``, here or as an entry point of another package.

    Raises:
        UsageError: another package's drafter cannot be loaded.
    """
    return _KINDS[name] if name in _KINDS else Kind(foreign.load(name))


def available(manifest: Manifest) -> tuple[str, ...]:
    """Names that may be asked for with this bundle: "auto", "none", and each drafter that it has all parts for."""
    own = (name for name, kind in _KINDS.items() if kind.needs is None or model_names(kind.needs, manifest))
    return ("auto", "none", *own, *(name for name in foreign.names() if name not in _KINDS))


def chosen(names: str, manifest: Manifest) -> tuple[str, ...]:
    """The drafters that ``names`` stands for, one name or several with commas between, in the order in which they are asked.

    Raises:
        UsageError: no drafter of that name, one named twice, one that cannot be loaded, or the bundle has no model for it.
    """
    known = available(manifest)
    if names == "auto":
        return tuple(found[0] for group in AUTO if (found := [name for name in group if name in known]))
    if names == "none":
        return ()
    asked = tuple(name.strip() for name in names.split(","))
    for index, name in enumerate(asked):
        if len(asked) > 1 and name in ("auto", "none"):
            raise UsageError(f"drafter {names!r}: {name} stands alone, it is no drafter to ask among others")
        if name in asked[:index]:
            raise UsageError(f"drafter {names!r}: {name} is named twice")
        if name not in known and name in _KINDS:
            needed = PARTS.get(_KINDS[name].needs or "", f"a {_KINDS[name].needs} model")
            raise UsageError(f"drafter {name!r} needs {needed}, which this bundle lacks; it can run {', '.join(known)}")
        if name not in known:
            raise UsageError(f"no drafter {name!r}; this bundle can run {', '.join(known)}")
        kind_of(name)
        for other in asked[:index]:
            if shared := set(models_of(name, manifest)) & set(models_of(other, manifest)):
                raise UsageError(
                    f"drafter {names!r}: {other} and {name} run the same model, {min(shared)}, which has one cache; name one of them"
                )
    return asked


def models_of(name: str, manifest: Manifest) -> tuple[str, ...]:
    """The entries of the manifest's models that the drafter of that name runs."""
    needs = _KINDS[name].needs if name in _KINDS else None
    return model_names(needs, manifest) if needs else ()


def model_names(kind: str, manifest: Manifest) -> tuple[str, ...]:
    """The entries of the manifest's models that belong to drafters of a kind."""
    return tuple(drafter.model for drafter in manifest.drafters if drafter.kind == kind and drafter.model is not None)


def _register_own() -> None:
    from edgespec.runtime.drafters.draft_model import DraftModel
    from edgespec.runtime.drafters.eagle import make_eagle
    from edgespec.runtime.drafters.lookahead import make_lookahead
    from edgespec.runtime.drafters.medusa import make_medusa
    from edgespec.runtime.drafters.ngram import NGram
    from edgespec.runtime.drafters.tree import make_token_tree
    from edgespec.runtime.drafters.universal import make_universal

    register("ngram", NGram.of)
    register("draft", DraftModel.of, needs="draft")
    register("universal", make_universal, needs="universal")
    register("tree", make_token_tree, needs="draft", sizes_itself=True)
    register("eagle", make_eagle, needs="eagle", sizes_itself=True)
    register("medusa", make_medusa, needs="medusa", sizes_itself=True)
    register("lookahead", make_lookahead, sizes_itself=True)


_register_own()
