"""Drafters that other packages bring: found by name, and held to what a drafter may do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edgespec.errors import RuntimeFailure, UsageError
from edgespec.runtime import Engine
from edgespec.runtime.drafters import foreign
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.sampling.sampling import make_sampler

HEAD = """
from edgespec.runtime.drafters import Drafter
from edgespec.tree import DraftTree

class Other(Drafter):
    name = "other"

    def __init__(self, resources):
        self.vocabulary = resources.vocabulary

    def propose(self, context, max_tokens):
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package with a module of the given source, and its entry points, as pip would leave it."""
    foreign._entry_points.cache_clear()

    def install(source: str, name: str = "other", value: str = "Other") -> None:
        module = f"other_drafter_{abs(hash((source, name, value)))}"
        folder = tmp_path / "site"
        info = folder / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{module}.py").write_text(source, encoding="utf-8")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n", encoding="utf-8")
        (info / "entry_points.txt").write_text(f"[{foreign.GROUP}]\n{name} = {module}:{value}\n", encoding="utf-8")
        monkeypatch.syspath_prepend(str(folder))
        foreign._entry_points.cache_clear()

    yield install
    foreign._entry_points.cache_clear()


def test_it_drafts_and_can_stand_in_a_list(install: Install, attention: Engine) -> None:
    assert "other" not in attention.drafters
    install(HEAD + "        return DraftTree.chain([context[-1]] * max_tokens)\n")
    assert attention.drafters[-1] == "other"
    plain = attention.generate("hello", drafter="none", max_new_tokens=30)
    for names in ("other", "ngram, other"):
        found = attention.generate("hello", drafter=names, draft_length=3, max_new_tokens=30)
        assert found.token_ids == plain.token_ids
        assert found.stats.drafted > 0
    found = attention.generate("hello", drafter="other", max_new_tokens=30)
    assert found.token_ids == plain.token_ids
    assert found.stats.drafted_by_drafter["other"].total() > 0, "how many it drafts is found out for it, too"
    assert "other" not in attention.generate("hello", max_new_tokens=9).stats.drafted_by_drafter, "auto asks nobody's but ours"


def test_the_one_of_the_documentation(install: Install, attention: Engine) -> None:
    page = (Path(__file__).parents[3] / "docs" / "drafters.md").read_text(encoding="utf-8")
    source = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert source is not None
    assert 'wordy = "wordy:Wordy"' in page
    assert len(source[1].splitlines()) <= 40
    install(source[1], "wordy", "Wordy")
    prompt = [1, 2, 3, 4] * 6
    plain = attention.generate(prompt, drafter="none", max_new_tokens=60, ignore_eos=True)
    accepted = 0
    for exactness in ("exact", "fast"):
        for length in (1, 4, 7):
            found = attention.generate(
                prompt, drafter="wordy", draft_length=length, exactness=exactness, max_new_tokens=60, ignore_eos=True
            )
            assert found.token_ids == plain.token_ids
            accepted += found.stats.accepted
    assert accepted > 15


@pytest.mark.parametrize("name", ["auto", "none", "a,b"])
def test_a_name_that_means_something_else_is_passed_over(install: Install, attention: Engine, name: str) -> None:
    before = attention.drafters
    install(HEAD + "        return DraftTree()\n", name)
    assert attention.drafters == before


def test_ours_stays_ours(install: Install, attention: Engine) -> None:
    install(HEAD + "        raise AssertionError\n", "ngram")
    assert attention.drafters.count("ngram") == 1
    assert attention.generate("hello", drafter="ngram", max_new_tokens=5).stats.new_tokens == 5


@pytest.mark.parametrize(
    ("source", "value", "message"),
    [
        ("import nothing_of_this_name", "Other", r"drafter 'other' \(.*:Other\) cannot be loaded: ModuleNotFoundError: No module named"),
        ("1 / 0", "Other", "cannot be loaded: ZeroDivisionError: division by zero"),
        ("x = 1", "Other", "cannot be loaded: AttributeError"),
        ("Other = 3", "Other", "is int, not a class or function"),
    ],
)
def test_one_that_does_not_load(install: Install, attention: Engine, source: str, value: str, message: str) -> None:
    install(source, value=value)
    with pytest.raises(UsageError, match=message) as caught:
        attention.stream("hello", drafter="other")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise ValueError('first line\\nsecond')", "failed to propose: ValueError: first line$"),
        ("return [1, 2]", "proposed list, not a DraftTree"),
        ("return DraftTree.chain([1] * (max_tokens + 1))", "proposed 4 nodes where at most 3"),
        ("return DraftTree.chain([self.vocabulary])", "proposed 259, which is not a token id from 0 to 258"),
        ("return DraftTree.chain([-1])", "proposed -1"),
        ("return DraftTree.chain([0.5])", "proposed 0.5"),
        ("return DraftTree.chain([1], [0.5])", "drawn from a q that is no Distribution with this token"),
        (
            "import numpy\n        from edgespec.distribution import Distribution\n"
            "        q = Distribution(numpy.array([2]), numpy.ones(1))\n        return DraftTree.chain([1], [q])",
            "proposed 1 as drawn from a q",
        ),
        ("return DraftTree((1,), (0,))", "failed to propose: ValueError: node 0 has parent 0"),
        ("return DraftTree()\n    def observe(self, found):\n        found.nothing", "failed to observe a round: AttributeError"),
    ],
)
def test_one_that_misbehaves_ends_the_text_by_name(install: Install, attention: Engine, body: str, message: str) -> None:
    install(HEAD + f"        {body}\n")
    with pytest.raises(RuntimeFailure, match=message) as caught:
        attention.generate("hello", drafter="other", draft_length=3, max_new_tokens=20)
    assert str(caught.value).startswith("drafter 'other' (other_drafter_")
    assert attention.generate("hello", drafter="ngram", max_new_tokens=5).stats.new_tokens == 5, "the engine is as fit as before"


def test_its_numbers_become_pythons(install: Install, attention: Engine) -> None:
    install(HEAD + "        import numpy\n        return DraftTree.chain(list(numpy.array([1, 2])))\n")
    greedy = GenerationOptions()
    proposer = attention._drafting.proposer(("other",), attention._target(greedy), make_sampler(greedy), 3, None, None)
    tree = proposer.propose([1], 3)
    assert [type(token) for token in tree.tokens] == [int, int]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            HEAD.replace('    name = "other"', "    name = property(lambda self: self.nothing)") + "        pass",
            "has no name: AttributeError",
        ),
        ("def Other(resources): raise KeyError('a model')", "cannot be made: KeyError: 'a model'"),
        ("def Other(resources): return 3", "made int, which is no"),
    ],
)
def test_one_that_cannot_be_made(install: Install, attention: Engine, source: str, message: str) -> None:
    install(source)
    with pytest.raises(RuntimeFailure, match=message):
        attention.generate("hello", drafter="other")
