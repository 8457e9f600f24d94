"""Which drafters a generation has, how many tokens each is asked for, and what an engine learns of them on the way.

Costs are measured once for a bundle on a machine and corrected by real rounds; how often a drafter's tokens are accepted is kept for
texts by themselves, for each conversation, and from one engine to the next (:mod:`edgespec.runtime.tuning.controller`).
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from edgespec.errors import UsageError
from edgespec.manifest import Manifest
from edgespec.runtime import drafters
from edgespec.runtime.drafters.corpus import Corpus
from edgespec.runtime.drafters.lookahead import check_window
from edgespec.runtime.drafters.proposer import Proposer, Source
from edgespec.runtime.endless import LEAST_CAPACITY
from edgespec.runtime.exactness import WidthRule
from edgespec.runtime.loop import Target
from edgespec.runtime.models.features import columns
from edgespec.runtime.models.fused import target_graph
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.models import Models
from edgespec.runtime.models.row_heads import RowHeads
from edgespec.runtime.models.rows import Floats
from edgespec.runtime.models.token_map import TokenMap, read_token_map
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.providers.providers import NPU
from edgespec.runtime.sampling.sampling import Sampler
from edgespec.runtime.text.tokenizer import Codec, Tokenizer, load_codec
from edgespec.runtime.text.translate import SharedIds, Translator, read_shared_ids
from edgespec.runtime.tuning import calibration, cost
from edgespec.runtime.tuning.acceptance import Acceptance
from edgespec.runtime.tuning.controller import AutoLength, FixedLength, LengthPolicy
from edgespec.runtime.tuning.cost import Costs, RunningCosts

log = logging.getLogger(__name__)

Policies = dict[tuple[str, WidthRule], AutoLength]


class Drafting:
    """The drafters of one engine.

    Args:
        path: the bundle.
        manifest: of the bundle, with the limits of the graphs that are used.
        models: loaded ones, and those to load.
        tokenizer: of the target; it says how many ids are tokens.
        capacity: rows of the target's cache.
        corpus: text of the user's for the n-gram drafter.
        key: what measurements depend on.
        measuring: to be held while models are measured; raises if something is running, which that would disturb.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        models: Models,
        *,
        tokenizer: Tokenizer,
        capacity: int,
        corpus: Corpus | None,
        key: Callable[[], str],
        measuring: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.corpus = corpus
        self._path = path
        self._manifest = manifest
        self._models = models
        self._tokenizer = tokenizer
        self._shared_ids: dict[str, tuple[SharedIds, Codec | None]] = {}
        self._token_maps: dict[str, TokenMap | None] = {}
        self._capacity = capacity
        self._key = key
        self._measuring = measuring
        # How many tokens each drafter is asked for: of texts by themselves, of each conversation, and of the text before.
        self.policies: Policies = {}
        self.chat_policies: weakref.WeakKeyDictionary[Any, Policies] = weakref.WeakKeyDictionary()
        self._last_policies: Policies = {}
        self.kept: weakref.WeakKeyDictionary[object, dict[str, Any]] = weakref.WeakKeyDictionary()
        """What drafters keep for a conversation."""
        self._learnt: dict[str, Any] = {}
        """What drafters that size themselves have learnt from texts before."""

    @property
    def available(self) -> tuple[str, ...]:
        """The values of the option ``drafter`` that have all they need, memory included."""
        return tuple(name for name in drafters.available(self._manifest) if self._why_dropped(name) is None)

    def chosen(self, options: GenerationOptions) -> tuple[str, ...]:
        """The drafters that a generation asks for.

        Raises:
            UsageError: there is no such drafter, or it cannot draft as it is asked to.
        """
        names = drafters.chosen(options.drafter, self._manifest)
        most = self._manifest.target.max_width - 1
        if names and options.draft_length != "auto" and options.draft_length > most:
            static = self._models.placements.of_model("target").profile == NPU
            wider = "--npu-widths that have" if static else "--max-width"
            raise UsageError(
                f"draft_length: {options.draft_length} is more than {most}, which this bundle's graph can verify in one pass; choose a "
                f"smaller one, or export with {wider} {options.draft_length + 1}"
            )
        if options.lookahead is not None:
            if "lookahead" not in names:
                raise UsageError(f"lookahead: has no effect with drafter {options.drafter!r}; name lookahead among the drafters")
            check_window(options.lookahead, most)
        return self._without_heads(names, options) if options.endless else names

    def _without_heads(self, names: Sequence[str], options: GenerationOptions) -> tuple[str, ...]:
        """The drafters for an endless text.

        Raises:
            UsageError: heads were asked for, or the cache is too small.
        """
        if self._capacity < LEAST_CAPACITY:
            raise UsageError(f"endless: needs a context of {LEAST_CAPACITY} tokens, this one has {self._capacity}")
        models = self._manifest.models
        heads = [name for name in names if any(models[model].reads for model in drafters.models_of(name, self._manifest))]
        if heads and options.drafter != "auto":
            raise UsageError(
                f"endless: drafter {heads[0]} reads hidden states of the whole text, of which a part is dropped; name another one"
            )
        return tuple(name for name in names if name not in heads)

    @functools.cached_property
    def costs(self) -> Costs:
        """Measured the first time that they are asked for on this machine; no model is loaded for those that are known."""
        with self._measuring():
            found = calibration.stored_costs(self._costs_key) or self._measured_costs()
        log.info(
            "milliseconds of a pass by width %s, of a draft step %s%s", found.target_ms, found.draft_ms, "" if found.quiet else ", busy"
        )
        return found

    def _measured_costs(self) -> Costs:
        for name in self._usable.values():
            self._models.try_load([name])  # one for which there is no memory is not usable any more
        models: dict[str, Callable[[], Model | RowHeads]] = {}
        for kind, name in self._usable.items():
            get = self._models.get if self._manifest.models[name].layers else self._models.get_heads
            models[kind] = functools.partial(get, name)
        return calibration.costs(self._costs_key, lambda: cost.measure(self._models.get("target"), models))

    @functools.cached_property
    def running_costs(self) -> RunningCosts:
        """Corrected by real rounds."""
        return RunningCosts(self.costs)

    @property
    def _usable(self) -> dict[str, str]:
        """The models for which there is memory, as far as that is known, by the kind of their drafter."""
        kinds = {spec.kind: spec.model for spec in reversed(self._manifest.drafters) if spec.model is not None}
        return {kind: name for kind, name in kinds.items() if kind in self.available}

    @property
    def _costs_key(self) -> str:
        return calibration.cache_key((self._key(), target_graph(self._manifest), *sorted(self._usable.values())))

    def forget(self) -> None:
        """All that was measured and learnt, here and in the user's cache folder."""
        calibration.forget_costs(self._costs_key)
        calibration.forget_acceptance(self._key())
        for name in ("costs", "running_costs"):
            self.__dict__.pop(name, None)
        self.policies.clear()
        self.chat_policies.clear()
        self._last_policies.clear()
        self._learnt.clear()
        self._known_acceptance = {}

    def keep_learnt(self) -> dict[str, Acceptance]:
        """Store how often tokens of each drafter are accepted, as far as it is known; what was stored."""
        found = {name: policy.acceptance for (name, _), policy in self._last_policies.items() if policy.acceptance.tried}
        calibration.keep_acceptance(self._key(), found)
        return found

    def proposer(
        self,
        names: Sequence[str],
        target: Target,
        sampler: Sampler,
        length: int | Literal["auto"],
        window: tuple[int, int, int] | None,
        owner: object,
    ) -> Proposer:
        """The drafters of ``names`` for which there is memory, for one generation.

        Args:
            names: in the order in which they are asked.
            target: whose passes verify.
            sampler: chooses the drafts' tokens, too.
            length: tokens to draft, or "auto".
            window: W, N and G of lookahead decoding, None for the usual ones.
            owner: the conversation, None for a text by itself.
        """
        self._models.leave_heads_out()
        auto = bool(names) and length == "auto"
        resources = drafters.Resources(
            vocabulary=self._tokenizer.size,
            models=self._draft_models,
            choose=sampler.draft,
            guess=sampler.draft_several,
            plain_guess=sampler.takes_likeliest,
            draws=sampler.draws,
            branches=target.branches,
            pass_ms=self._pass_cost(target.widths) if auto else None,
            draft_ms=lambda kind: self.running_costs.of_step(kind),
            first_ms=lambda kind: self.running_costs.of_first_step(kind),
            translator=self._translator,
            corpus=self.corpus,
            window=window,
            features=self._features,
            heads=lambda kind: self._models.get_heads(drafters.model_names(kind, self._manifest)[0]),
            token_map=self._token_map,
            first_steps=lambda kind: self._models.first_steps(drafters.model_names(kind, self._manifest)[0]),
            kept={} if owner is None else self.kept.setdefault(owner, {}),
            learnt=self._learnt,
        )
        most = target.widths.widths[-1] - 1
        sources, dropped = [], {}
        for name in names:
            models = drafters.models_of(name, self._manifest)
            if not self._models.try_load(models):
                dropped[name] = self._models.why_dropped(models) or ""
                continue
            kind = drafters.kind_of(name)
            policy: LengthPolicy
            if length != "auto" or kind.sizes_itself:
                policy = FixedLength(most if length == "auto" else min(length, most))
            else:
                policy = self._auto_length(name, target.widths, owner)
            made = kind.make(dataclasses.replace(resources, gate=policy.gate))
            sources.append(Source(made, policy, has_model=bool(models)))
        return Proposer(sources, target.branches, self.running_costs if auto else None, dropped, on_failure=self._drop)

    def _drop(self, name: str, reason: str) -> None:
        self._models.drop(drafters.models_of(name, self._manifest), reason)

    def _why_dropped(self, drafter: str) -> str | None:
        return self._models.why_dropped(drafters.models_of(drafter, self._manifest))

    def _auto_length(self, drafter: str, widths: WidthRule, owner: object) -> AutoLength:
        """One for each drafter and rule, kept for the next generation. A conversation has its own, which begins with what the last
        text has shown."""
        key = drafter, widths
        own = self.policies if owner is None else self.chat_policies.setdefault(owner, {})
        if key not in own:
            last, costs = self._last_policies.get(key), self.running_costs
            pass_ms, draft_ms = functools.partial(self._pass_ms, widths), functools.partial(costs.of_draft, drafter)
            most = widths.widths[-1] - 1
            known = self._known_acceptance[drafter].hint(most) if drafter in self._known_acceptance else None
            acceptance = known or Acceptance(most, self._usual_acceptance(drafter))
            own[key] = last.for_another_text() if last else AutoLength(pass_ms, draft_ms, most, acceptance)
        self._last_policies[key] = own[key]
        return own[key]

    def _usual_acceptance(self, drafter: str) -> float | None:
        """How often the first token of a draft was right when the bundle was exported, where that was tried."""
        shares = [self._manifest.models[name].accuracy for name in drafters.models_of(drafter, self._manifest)]
        return next((heads[0][0] for heads in shares if heads), None)

    def _pass_cost(self, widths: WidthRule) -> Callable[[int], float]:
        """Cost of a pass by its tokens, measured now if it has not been: in the middle of a generation it cannot be."""
        _ = self.running_costs
        return functools.partial(self._pass_ms, widths)

    def _pass_ms(self, widths: WidthRule, count: int) -> float:
        """Cost of a pass of ``count`` tokens, padded to an allowed width."""
        return self.running_costs.of_width(widths.fit(count, self._capacity) or count)

    @functools.cached_property
    def _known_acceptance(self) -> dict[str, Acceptance]:
        """Of drafters, from an earlier engine that kept what it learnt."""
        return calibration.acceptance(self._key())

    def _draft_models(self, kind: str) -> list[Model]:
        return [self._models.get(name) for name in drafters.model_names(kind, self._manifest)]

    def _features(self, kind: str) -> Callable[[], Floats]:
        """Gives the hidden states of the target that heads of a kind read, for the rows of its cache."""
        name = drafters.model_names(kind, self._manifest)[0]
        target, where = self._models.get("target"), columns(self._manifest.target, self._manifest.models[name].reads or ())
        return lambda: target.features[:, where]

    def _token_map(self, kind: str) -> TokenMap | None:
        """One of the generation's own, since it holds a buffer. The file is read once."""
        if kind not in self._token_maps:
            spec = self._manifest.models[drafters.model_names(kind, self._manifest)[0]]
            self._token_maps[kind] = read_token_map(self._path, spec, self._manifest.target.vocab_size)
        found = self._token_maps[kind]
        return None if found is None else TokenMap(found.ids, found.vocabulary)

    def _translator(self, kind: str) -> Translator:
        """From the target's ids to those of the model of a kind. It follows one text."""
        spec = self._manifest.models[drafters.model_names(kind, self._manifest)[0]]
        if kind not in self._shared_ids:
            codec = load_codec(self._path / spec.tokenizer.file) if spec.tokenizer else None
            self._shared_ids[kind] = read_shared_ids(self._path, spec, self._tokenizer.size), codec
        shared, codec = self._shared_ids[kind]
        prefix = spec.tokenizer.prefix_ids if spec.tokenizer else ()
        return Translator(self._tokenizer.codec, codec, shared, prefix, self._tokenizer.spec.prefix_ids)
