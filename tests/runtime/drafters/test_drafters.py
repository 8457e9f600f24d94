"""The drafters by themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgespec.bundle import open_bundle
from edgespec.errors import UsageError
from edgespec.runtime import drafters
from edgespec.runtime.drafters import Drafter, Round
from edgespec.runtime.drafters.draft_model import DraftModel
from edgespec.runtime.drafters.ngram import NGram
from edgespec.runtime.drafters.proposer import Proposer, Source
from edgespec.runtime.models.model import Model
from edgespec.runtime.tuning.controller import FixedLength, Plan
from edgespec.tree import DraftTree


@pytest.fixture
def draft(attention_bundle: Path) -> Model:
    spec = open_bundle(attention_bundle).models["draft"]
    return Model(attention_bundle / spec.graph, spec, capacity=100, threads=1, providers=["CPUExecutionProvider"])


def chain_by_hand(model: Model, context: list[int], count: int) -> list[int]:
    model.keep(0)
    tokens: list[int] = []
    for _ in range(count):
        model.keep(0)
        tokens.append(int(model.run([*context, *tokens], [len(context) + len(tokens) - 1])[0].argmax()))
    return tokens


def test_draft_model_over_rounds_equals_fresh_runs(draft: Model, attention_bundle: Path) -> None:
    spec = open_bundle(attention_bundle).models["draft"]
    other = Model(attention_bundle / spec.graph, spec, capacity=100, threads=1, providers=["CPUExecutionProvider"])
    drafter = DraftModel(draft, 259)
    context = [*b"hello"]
    # In the last but one round another drafter's tokens came instead, and none of them is what this one had proposed.
    for accepted, own in ((0, [7]), (2, [8]), (4, [9]), (1, [10]), (0, [1, 2, 3, 4, 5]), (4, [12])):
        proposal = drafter.propose(context, 4)
        assert list(proposal.tokens) == chain_by_hand(other, context, 4)
        context += [*proposal.tokens[:accepted], *own]
    # Each proposal is one pass that catches up and three steps.
    assert drafter.passes == 6 * 4


def test_draft_model_keeps_what_two_generations_share(draft: Model) -> None:
    text = [*b"a longer text that both begin with"]
    DraftModel(draft, 259).propose([*text, 1], 2)
    seconds = draft.run_seconds
    again = DraftModel(draft, 259)
    expected = again.propose([*text, 2], 3)
    assert draft.run_seconds > seconds
    assert draft.tokens[: len(text) + 1] == [*text, 2]
    assert list(expected.tokens) == chain_by_hand(draft, [*text, 2], 3)


def test_draft_model_sees_the_end_of_a_text_that_its_cache_cannot_hold(draft: Model) -> None:
    """Room for 100 rows. Texts that grow beyond it are drafted for as if they began later, and each token is read only once
    or, when the window moves, twice."""
    drafter = DraftModel(draft, 259)
    text = [index % 7 + 1 for index in range(90)]
    starts = []
    for step in range(150):
        found = drafter.propose(text, 3)
        starts.append(len(text) - draft.length + 2)
        assert list(found.tokens) == chain_by_hand(draft, text[starts[-1] :], 3)
        assert draft.length <= 100
        text.append(step % 7 + 1)
    assert starts == sorted(starts)
    assert len(set(starts)) == 4, "the window moves by half a cache at a time"


def test_draft_model_stops_at_its_vocabulary(draft: Model) -> None:
    assert len(DraftModel(draft, 200).propose([1, 201], 5)) == 0
    assert max(DraftModel(draft, 10).propose([1, 2], 5).tokens) < 10


class Scripted(Drafter):
    """Proposes what it was told to."""

    def __init__(self, name: str, *tokens: int) -> None:
        self.name = name
        self.tokens = tokens
        self.seen: list[Round] = []

    def propose(self, _context: list[int], max_tokens: int) -> DraftTree:
        return DraftTree.chain(self.tokens[:max_tokens])

    def observe(self, found: Round) -> None:
        self.seen.append(found)


def test_the_first_with_a_proposal_is_asked_and_told() -> None:
    class Recording(FixedLength):
        def observe(self, wanted: int, offered: int, accepted: int) -> None:
            told.append((wanted, offered, accepted))

    told: list[tuple[int, int, int]] = []
    empty, first, second = Scripted("empty"), Scripted("first", 1, 2, 3), Scripted("second", 4, 5)
    proposer = Proposer([Source(drafter, Recording(2)) for drafter in (empty, first, second)])
    assert proposer.propose([0], 5).tokens == (1, 2)
    found = Round([0, 1, 2, 8, 9, 7], DraftTree.chain((1, 2, 8, 9)), (0, 1, 2, 3))
    proposer.observe(found)
    assert told == [(2, 0, 0), (2, 2, 2)], "the first had nothing; two of the four were guesses that filled rows"
    assert [proposer.author(node) for node in range(3)] == ["first", "first", "guess"]
    assert empty.seen == first.seen == second.seen == [found]
    assert len(proposer.propose([0], 0)) == 0


def test_the_one_that_pays_better_is_asked_first() -> None:
    class Known(FixedLength):
        def __init__(self, gain: float) -> None:
            self._plan = Plan(2, gain)

    def asked(*gains: float) -> str:
        proposer = Proposer([Source(Scripted(f"{gain}", 1, 2), Known(gain)) for gain in gains])
        proposer.propose([0], 5)
        return proposer.author(0)

    assert asked(1.1, 1.3) == "1.3"
    assert asked(1.3, 1.1) == "1.3"
    assert asked(1.2, 1.2) == "1.2"
    assert asked(1.1, float("nan"), 1.3) == "1.1", "where one is not known they keep their order"


class Doubtful:
    """A gate that keeps so many tokens, and wants no step after so many."""

    def __init__(self, kept: int, steps: int) -> None:
        self.kept, self.steps, self.told = kept, steps, list[float]()

    def keeps(self, confidence: float) -> bool:
        self.told.append(confidence)
        return len(self.told) <= self.kept

    def goes_on(self) -> bool:
        return len(self.told) < self.steps


@pytest.mark.parametrize(("kept", "steps", "tokens", "passes"), [(9, 9, 5, 5), (2, 9, 2, 3), (9, 2, 2, 2), (0, 9, 0, 1)])
def test_a_gate_ends_a_draft(draft: Model, kept: int, steps: int, tokens: int, passes: int) -> None:
    context = [*b"hello"]
    gate = Doubtful(kept, steps)
    drafter = DraftModel(draft, 259, gate=gate)
    whole = DraftModel(draft, 259).propose(context, 5).tokens
    draft.keep(0)
    passes_before = drafter.passes
    assert drafter.propose(context, 5).tokens == whole[:tokens]
    assert drafter.passes - passes_before == passes
    draft.keep(0)
    logits = draft.run(context, [4])[0].astype(np.float64)
    assert gate.told[0] == pytest.approx(np.exp(logits - logits.max()).max() / np.exp(logits - logits.max()).sum(), rel=1e-4)


def test_guesses_fill_rows_after_a_chain_only() -> None:
    proposer = Proposer([Source(Scripted("one", 3), FixedLength(1))])
    context = [1, 2, 3, 4, 5, 2]
    tree = proposer.propose(context, 4)
    assert proposer.fill(context, tree, 2).tokens == (3, 4, 5)
    assert proposer.fill(context, tree, 0) is tree
    branches = DraftTree((3, 4), (-1, -1))
    assert proposer.fill(context, branches, 2) is branches
    assert Proposer([]).fill(context, DraftTree(), 2) == DraftTree()


@pytest.mark.parametrize("name", ["none", "auto", "ngram"])
def test_a_name_is_registered_once(name: str) -> None:
    with pytest.raises(UsageError, match="the name is taken"):
        drafters.register(name, lambda _: NGram())


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("auto", ("ngram", "draft")),
        ("none", ()),
        ("draft", ("draft",)),
        ("draft,ngram", ("draft", "ngram")),
        (" ngram , draft", ("ngram", "draft")),
    ],
)
def test_names_in_order(attention_bundle: Path, names: str, expected: tuple[str, ...]) -> None:
    assert drafters.chosen(names, open_bundle(attention_bundle)) == expected


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("ngram,ngram", "ngram is named twice"),
        ("ngram,none", "none stands alone"),
        ("auto,draft", "auto stands alone"),
        ("ngram,", "no drafter ''"),
        ("ngram,oracle", "no drafter 'oracle'"),
    ],
)
def test_lists_that_say_nothing(attention_bundle: Path, names: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        drafters.chosen(names, open_bundle(attention_bundle))
