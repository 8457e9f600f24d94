"""The engine: a loaded bundle that generates text.

    with edgespec.load("bundle") as engine:
        for piece in engine.stream("List three uses of a paperclip."):
            print(piece.text, end="", flush=True)
        print(engine.generate("And of a brick?").stats.tokens_per_pass)

An engine has one KV cache and so generates one text at a time. What a prompt shares with the text before it is not
computed again. ``engine.chat()`` holds a conversation, see :mod:`edgespec.runtime.conversations.chat`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from edgespec.bundle import bundle_key, open_bundle
from edgespec.errors import BundleError, UsageError
from edgespec.hub import find_bundle
from edgespec.manifest import Manifest
from edgespec.runtime import drafters
from edgespec.runtime.conversations import prefix as prefixes
from edgespec.runtime.conversations.chat import Chat
from edgespec.runtime.conversations.swap import Swap
from edgespec.runtime.drafters.corpus import read_corpus
from edgespec.runtime.drafters.proposer import Proposer
from edgespec.runtime.drafting import Drafting
from edgespec.runtime.endless import Rolling
from edgespec.runtime.exactness import SPAN, Exactness, WidthRule, find_equal_widths
from edgespec.runtime.loop import Target, generate_blocks, most_tokens
from edgespec.runtime.memory import container
from edgespec.runtime.memory.ahead import what_is_wanted
from edgespec.runtime.memory.degrade import fit, fit_with_packs
from edgespec.runtime.memory.measure import return_freed_memory
from edgespec.runtime.memory.pack_cache import open_packs
from edgespec.runtime.memory.plan import LEAST_WINDOW, Plan, Settings
from edgespec.runtime.memory.relief import Relief
from edgespec.runtime.memory.size import parse_size
from edgespec.runtime.models.fused import without_fused
from edgespec.runtime.models.kv import kv_choice, with_kv
from edgespec.runtime.models.model import Model
from edgespec.runtime.models.models import Models
from edgespec.runtime.models.rows import cache_bytes, hold_for
from edgespec.runtime.options import GenerationOptions
from edgespec.runtime.ort import import_onnxruntime
from edgespec.runtime.providers.placement import Placements, Profile, Providers, Threads
from edgespec.runtime.providers.profiles import with_profiles
from edgespec.runtime.recheck import Recheck
from edgespec.runtime.sampling.sampling import make_sampler
from edgespec.runtime.sampling.structured import Grammar, GrammarMaker
from edgespec.runtime.stats import Stats
from edgespec.runtime.stream import GenerationResult, Piece, Stream, pieces_of
from edgespec.runtime.text.chat_template import ChatTemplate, Message
from edgespec.runtime.text.prompt import Prompt, encode_prompt
from edgespec.runtime.text.tokenizer import Tokenizer
from edgespec.runtime.tuning import calibration
from edgespec.runtime.tuning.acceptance import Acceptance
from edgespec.runtime.tuning.machine import machine_name
from edgespec.runtime.turns import Turns

log = logging.getLogger(__name__)

MEASURED_ROWS = 512  # more than any measurement fills
KEPT_BLOCKS = 2**22  # memory blocks below this size stay with the process when they are freed, so that passes are quick
OWN_BLOCKS = 2**17  # under a budget, memory blocks from this size on go back to the system when they are freed


@dataclasses.dataclass(frozen=True)
class Job:
    """One generation, checked and ready to run. ``owner`` is the conversation that it belongs to, if any."""

    target: Target
    names: Sequence[str]
    context: list[int]
    options: GenerationOptions
    stats: Stats
    owner: object
    grammar: Grammar | None


def load(
    path: str | Path,
    *,
    memory_budget: int | str | None = None,
    context: int | None = None,
    draft_window: int | None = None,
    kv: str | Sequence[str] | None = None,
    providers: Providers | None = None,
    provider_options: Mapping[str, Mapping[str, str]] | None = None,
    strict_providers: bool = False,
    profile: Profile | None = None,
    threads: Threads | None = None,
    ngram_corpus: str | Path | None = None,
    pack_cache: bool = True,
) -> Engine:
    """Open a bundle.

    Args:
        path: the bundle's folder, or its name on the Hub (``owner/name``, needs ``edgespec[hub]``).
        memory_budget: most memory that this process may have resident, in bytes or as text such as "300MB". What has to be
            given up for it, in the order of :mod:`edgespec.runtime.memory.degrade`, is logged and in the statistics. Without one
            it is what a container leaves, where everything might not fit that.
        context: tokens of prompt and text to have room for; as many as the bundle was exported for by default.
        draft_window: tokens that a draft model has room for; a longer text it sees the end of. All by default.
        kv: type of the KV caches, of those that the bundle was exported with: "float32", "int8" or "int4"; the first of these by default.
            With several, as "float32,int8", a later one is used where the memory budget would else cut the context; it changes the text.
        providers: what to run on, the CPU by default: a name such as "cuda", several in order of preference, or each model's own as
            in "target=cuda,draft=cpu" (:mod:`edgespec.runtime.providers.placement`).
        provider_options: ONNX Runtime's options of a provider, by the provider's name.
        strict_providers: refuse a graph of which a part would run on another provider than asked; it is a warning otherwise.
        profile: which of the bundle's graphs to run, "cpu", "cuda", "webgpu" or "npu", also by model; by default what the provider can.
        threads: threads of a pass, also by model ("target=4,draft=1"); by default the cores that the process may use.
        ngram_corpus: a text file in which the n-gram drafter looks for continuations, besides prompt and text.
        pack_cache: keep packed weights in the user's cache folder, as files that are mapped (:mod:`edgespec.runtime.memory.pack_cache`).

    Raises:
        BundleError: the bundle is missing, damaged or newer than this version.
        CapacityError: the budget is too small; says which one would do.
        UsageError: an argument is out of range.
        RuntimeFailure: ONNX Runtime cannot load a graph.
    """
    if context is not None and (isinstance(context, bool) or not isinstance(context, int) or context < 1):
        raise UsageError(f"context: {context!r} is not a number of tokens from 1")
    if draft_window is not None and (isinstance(draft_window, bool) or not isinstance(draft_window, int) or draft_window < LEAST_WINDOW):
        raise UsageError(f"draft_window: {draft_window!r} is not a number of tokens from {LEAST_WINDOW}")
    budget = None if memory_budget is None else parse_size(memory_budget)
    placements = Placements.of(providers, threads, provider_options, strict_providers, profile)
    found = find_bundle(path)
    return Engine(
        found,
        budget=budget,
        context=context,
        draft_window=draft_window,
        kv=kv,
        placements=placements,
        ngram_corpus=ngram_corpus,
        pack_cache=pack_cache,
    )


class Engine:
    """See the module. Made by :func:`load`; use it in a ``with`` statement, or call ``close``."""

    def __init__(
        self,
        path: Path,
        *,
        budget: int | None,
        context: int | None,
        placements: Placements,
        draft_window: int | None = None,
        kv: str | Sequence[str] | None = None,
        ngram_corpus: str | Path | None = None,
        pack_cache: bool = True,
    ) -> None:
        self.path = path
        manifest = open_bundle(path)
        placements.check_models(manifest.models)
        heads = [name for name, spec in manifest.models.items() if spec.reads]
        # Heads have no other graphs, and are so small that waking a second thread for a step costs more than it gains.
        placements = placements.with_usual_graphs(heads).with_one_thread(heads)
        profiles = {name: placements.of_model(name).profile for name in manifest.models}
        self.manifest: Manifest = with_profiles(manifest, profiles)
        """The bundle's, with the graphs that are used and their limits."""
        self.placements = placements
        self.threads = placements.of_model("target").threads
        # What is left for the models is measured, and tokenizer and corpus take their part; where nothing is limited they need not wait.
        first = budget is not None or ngram_corpus is not None or container.room() is not None
        if first:
            self._read_texts()
        corpus = None if ngram_corpus is None else read_corpus(ngram_corpus, self.tokenizer)
        allowed = kv_choice(kv, self.manifest, import_onnxruntime().__version__)
        usual = placements.are_usual(self.manifest.models)
        asked = what_is_wanted(path, self.manifest if usual else without_fused(self.manifest), budget, allowed, context, draft_window)
        self.manifest, self._footprint = asked.manifest, asked.footprint
        if not first:
            self._footprint = self._footprint.with_tokenizer()
        wanted, budget = asked.settings, asked.budget
        self._planned, packs = self._make_plan(wanted, budget, pack_cache)
        self.settings = self._planned.settings if self._planned else wanted
        self.manifest = with_kv(self.manifest, self.settings.kv[0])
        self.capacity = self.settings.context
        dropped = {name: "no room in the memory budget" for name in wanted.drafts if name not in self.settings.drafts}
        own_blocks = KEPT_BLOCKS if budget is None else OWN_BLOCKS
        self._models = Models(path, self.manifest, self.settings, placements, dropped=dropped, packs=packs, own_blocks=own_blocks)
        if not first:
            with self._models.loading("target"):
                self._read_texts()
                return_freed_memory()  # which reading a tokenizer leaves, before packing takes the most
        # Conversations that wait may take as much memory again as the caches, under a budget what it leaves.
        models = [self.manifest.models[name] for name in ("target", *self.settings.drafts)]
        caches = sum(cache_bytes(spec, self.capacity, hold_for(spec)) for spec in models)
        self._swap = Swap(self._models.loaded, caches if budget is None else max(0, budget - self.plan.ceiling))
        self._drafting = Drafting(
            path,
            self.manifest,
            self._models,
            tokenizer=self.tokenizer,
            capacity=self.capacity,
            corpus=corpus,
            key=lambda: self._key,
            measuring=self._alone,
        )
        self._turns = Turns(self._give_back)
        self._closed = False
        if budget is not None:
            self._load_at_once()
        self._model("target")
        log.info("%s: %d tokens of context, %d threads, drafters %s", path, self.capacity, self.threads, ", ".join(self.drafters))

    def _read_texts(self) -> None:
        """Read the tokenizer and the chat template."""
        spec = self.manifest.tokenizer
        self.tokenizer = Tokenizer(self.path, spec, self.manifest.target.vocab_size)
        self.chat_template = ChatTemplate(self.path, spec) if spec.chat_template else None

    @property
    def drafters(self) -> tuple[str, ...]:
        """The values of the option ``drafter`` that this engine can run."""
        return self._drafting.available

    def _make_plan(self, wanted: Settings, budget: int | None, pack_cache: bool) -> tuple[Plan | None, dict[str, Path]]:
        """The plan within a budget, None without one, and graphs with saved packs: none where something would have to be given up
        for them."""
        if budget is None:
            packs = self._open_packs(pack_cache, wanted)
            self._footprint = self._footprint.with_packs() if packs else self._footprint
            return None, packs
        plan, useful = fit_with_packs(self._footprint, wanted, budget)
        packs = self._open_packs(pack_cache and useful, plan.settings)
        return (plan, packs) if packs else (fit(self._footprint, wanted, budget), {})

    def _open_packs(self, wanted: bool, settings: Settings) -> dict[str, Path]:
        """Graphs with saved packs, where they are wanted and can be had."""
        if not wanted or not self.placements.are_usual(self.manifest.models):
            return {}
        try:
            return open_packs(self.path, with_kv(self.manifest, settings.kv[0]), self._footprint.weights)
        except BundleError:  # of a graph that ONNX Runtime will refuse, with its own words
            return {}

    @functools.cached_property
    def plan(self) -> Plan:
        """What this engine takes at most, part by part, and what was given up for its memory budget."""
        return self._planned or self._footprint.plan(self.settings)

    def check_drafter(self, names: str) -> None:
        """Refuse, with a ``UsageError``, what ``drafter`` cannot be for this bundle."""
        drafters.chosen(names, self.manifest)

    def retest(self) -> Exactness:
        """Run the self-test again and keep its result, whatever an earlier one found."""
        self._check_idle()
        self.__dict__.pop("exactness", None)
        calibration.forget_exactness(self._key)
        return self.exactness

    @functools.cached_property
    def exactness(self) -> Exactness:
        """Result of this machine's self-test of the target; the first time it takes a second or two and is then cached."""
        with self._alone():
            found = calibration.exactness(self._key, lambda: find_equal_widths(self._model("target"), self.tokenizer.size))
        log.info("self-test of this machine: %s, widths %s, largest difference %.2g", found.grade, found.widths, found.difference)
        return found

    def remeasure(self) -> bool:
        """Measure costs again, and forget how often drafted tokens were accepted. False if the machine was busy; such costs serve
        this engine but are not kept."""
        self._check_idle()
        self._drafting.forget()
        return self._drafting.running_costs.start.quiet

    def keep_learnt(self) -> dict[str, Acceptance]:
        """Store how often tokens of each drafter are accepted, as far as it is known, so that later engines for this bundle begin
        with it; what was stored."""
        return self._drafting.keep_learnt()

    @property
    def cost_curve(self) -> dict[int, float]:
        """Milliseconds of a target pass by width, measured on this machine."""
        return dict(self._drafting.costs.target_ms)

    def exact_pass_ms(self, count: int) -> float:
        """Milliseconds, as measured, of a target pass of ``count`` tokens under "exact", which pads it to a width that is proven."""
        widths = self._target(GenerationOptions()).widths
        return self._drafting.costs.of_width(widths.fit(count, self.capacity) or count)

    @property
    def draft_cost(self) -> dict[str, float]:
        """Milliseconds of one draft step, by drafter that has a model."""
        return dict(self._drafting.costs.draft_ms)

    def generate(self, prompt: Prompt, options: GenerationOptions | None = None, **more: Any) -> GenerationResult:
        """Generate a whole text. Arguments and errors are those of :meth:`stream`."""
        return self.stream(prompt, options, **more).result()

    def stream(self, prompt: Prompt, options: GenerationOptions | None = None, *, stats: Stats | None = None, **more: Any) -> Stream:
        """Generate piece by piece, also in an ``async for``. Stopping or closing the stream early is fine, from any thread.

        Args:
            prompt: a text, a list of messages (``{"role": ..., "content": ...}``), or token ids used as they are.
            options: how, all fields documented.
            stats: counters to fill, for a caller who wants them.
            more: fields of :class:`~edgespec.runtime.options.GenerationOptions`, instead of ``options`` or on top of them.

        Raises:
            UsageError: an option is out of range, the prompt is empty, or another generation is running.
            CapacityError: the prompt does not fit.
            RuntimeFailure: a pass fails, or its logits are not finite.
        """
        return self._start(prompt, GenerationOptions.of(options, **more), Stats() if stats is None else stats)

    def generate_many(self, prompts: Iterable[Prompt], options: GenerationOptions | None = None, **more: Any) -> list[GenerationResult]:
        """One result for each prompt, in order; what a prompt shares with the one before it is not computed again.

        Everything is checked before the first one runs. Arguments and errors are otherwise those of :meth:`stream`.
        """
        streams = [self.stream(prompt, options, **more) for prompt in prompts]
        return [stream.result() for stream in streams]

    def stop(self) -> None:
        """End the running generation after its current pass, from any thread. Without one, nothing happens."""
        self._turns.stop()

    def chat(self, system: str | None = None, messages: Sequence[Message] = (), **options: Any) -> Chat:
        """A conversation.

        Args:
            system: a system message to begin with.
            messages: what was said so far, to go on from.
            options: fields of :class:`~edgespec.runtime.options.GenerationOptions` for every turn.

        Raises:
            UsageError: no chat template, a message that is none, or an option out of range.
        """
        head = [] if system is None else [{"role": "system", "content": system}]
        return Chat(self, [*head, *messages], options)

    def restore_chat(self, path: str | Path, **options: Any) -> Chat:
        """A conversation that ``Chat.save`` wrote, with its cache rows if this machine made them.

        Raises:
            UsageError: no such file, damaged, or saved with another bundle.
        """
        prefix, state = prefixes.restore(Path(path), self._bundle_key, self._machine_key)
        chat = Chat(self, (), options)
        try:
            chat._restore(state)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}: not a saved conversation, or damaged: {error}") from error
        if prefix is not None:
            self._swap.put(chat, prefix)
        if self._swap.get(chat) is None:
            log.warning("%s: its cache rows are not of this machine or do not fit; the next turn computes them again", path)
        return chat

    def _save_chat(self, chat: Chat, path: Path, state: dict[str, Any]) -> None:
        with self._alone():
            prefixes.save(path, self._swap.get(chat), self._bundle_key, self._machine_key, state)

    def encode(self, prompt: Prompt, chat: bool | None = None) -> list[int]:
        """The token ids that a prompt becomes; ``chat`` as in the options."""
        return encode_prompt(prompt, chat, self.tokenizer, self.chat_template)

    def trim(self) -> None:
        """Give back memory that can be had again, on the system's low-memory signal and from any thread: draft models, rows of
        conversations that wait, spare rows of the caches, buffers, and what the heap holds free.

        The conversation in the cache stays. A generation that is running gives back all but its draft model before its next piece,
        and that when it ends; what was given back is loaded or computed again when it is needed.
        """
        self._turns.trim()

    def _give_back(self, drafts: bool) -> None:
        """For the one whose turn it is."""
        if drafts:
            self._models.unload_drafts()
        self._swap.forget()
        for model in self._models.loaded.values():
            model.trim()
        return_freed_memory()

    def _make_room(self, proposer: Proposer, error: BaseException) -> str:
        """Free all that the text which is being written can do without; what that was, in words."""
        dropped = proposer.drop_models(error)
        self._give_back(drafts=True)
        return "dropped the draft model" if dropped else "freed what is not in use"

    def close(self) -> None:
        """Free the models and all rows. The engine cannot be used afterwards."""
        self._closed = True
        self._models.unload()
        self._swap.forget()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _start(self, prompt: Prompt, options: GenerationOptions, stats: Stats, owner: object = None) -> Stream:
        """Check everything that can be checked before the first pass, so that a mistake shows at the call."""
        self._check_idle()
        started = time.perf_counter()
        names = self._drafting.chosen(options)
        context = self.encode(prompt, options.chat)
        if not context:
            raise UsageError("the prompt is empty")
        options.check_ids(self.tokenizer.size, self.manifest.tokenizer.eos_ids)
        grammar = self._grammars.make(options, len(context)) if options.has_grammar else None
        encoding = time.perf_counter() - started
        target = self._target(options)
        most_tokens(target, len(context), options.max_new_tokens)
        stats.prompt_tokens = len(context)
        stats.drafter = options.drafter
        stats.draft_length = options.draft_length if names else 0
        stats.branches = "commit" if target.branches else "seed"
        stats.exactness = "fast" if options.exactness == "fast" else self.exactness.grade
        if names and options.acceptance == "typical":
            stats.exactness = "typical"
        stats.time_to_first_token_s = encoding
        stats.degraded = [*self.plan.steps] if self._planned else []
        stats.predicted_peak_bytes = self.plan.peak if self._planned else None

        stopped = threading.Event()
        recheck = Recheck(self.exactness.margin) if names and stats.exactness == "checked" else None
        job = Job(dataclasses.replace(target, stopped=stopped.is_set, recheck=recheck), names, context, options, stats, owner, grammar)
        return Stream(self._pieces(job, stopped), stopped, stats)

    def _pieces(self, job: Job, stopped: threading.Event) -> Generator[Piece]:
        """Run the loop as a generator that owns the engine until it is finished or closed."""
        options, context, model = job.options, job.context, job.target.model
        sampler = make_sampler(options, prompt_length=len(context), eos_ids=self.manifest.tokenizer.eos_ids, grammar=job.grammar)
        self._check_idle()
        proposer = self._drafting.proposer(job.names, job.target, sampler, options.draft_length, options.lookahead, job.owner)
        with self._turns.generation(stopped):
            model.best, model.attends_alone = sampler.best, not job.target.widths.pads
            try:
                same_owner = self._swap.enter(job.owner)
                if self._may_reuse(options, same_owner):
                    model.keep_common(job.target.sees(context))
                else:
                    model.keep(0)
                self._swap.made = options.exactness
                target = dataclasses.replace(job.target, relief=Relief(functools.partial(self._make_room, proposer), job.stats.degraded))
                blocks = generate_blocks(target, proposer, sampler, context, options.max_new_tokens, job.stats)
                for piece in pieces_of(blocks, self.tokenizer, options.stop, job.stats):
                    self._turns.between_pieces()
                    yield piece
            finally:
                model.best = None
                log.debug("generation: %s", job.stats)
                if job.stats.speculation_off:
                    log.info("speculation was off in the end: %s", job.stats.speculation_off)

    def _may_reuse(self, options: GenerationOptions, same_owner: bool) -> bool:
        """Whether cache rows of the generation before are what this one would compute. Under "exact" that needs every
        pass that made them, and every chunk of the prompt, to be of a proven width. Where no width is proven, a
        conversation still goes on from its own rows."""
        if options.exactness == "fast":
            return True
        if self.exactness.grade != "exact":
            return same_owner
        return self._swap.made == "exact" and self._proven_for_prompts

    @property
    def _proven_for_prompts(self) -> bool:
        """Whether there are proven widths large enough to run a prompt with."""
        return self.exactness.grade == "exact" and self.exactness.widths[-1] >= SPAN

    def _check_idle(self) -> None:
        if self._closed:
            raise UsageError("the engine is closed")
        self._turns.check_idle()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Measuring and saving need the models' caches for themselves."""
        self._check_idle()
        with self._turns.alone():
            yield

    def _target(self, options: GenerationOptions) -> Target:
        """The target with the widths that the asked exactness allows."""
        model = self._model("target")
        most = model.spec.max_width
        proven = self.exactness if options.exactness == "exact" and self.exactness.grade == "exact" else None
        verify = tuple(width for width in proven.widths if width <= most) if proven else tuple(range(1, most + 1))
        # Where no wide pass is proven, the prompt still goes in wide chunks: they depend on the prompt alone.
        chunks = proven.widths if proven and self._proven_for_prompts else range(1, model.max_pass + 1)
        pads = proven is not None and proven.pads
        widths = WidthRule(verify, pads)
        return Target(
            model=model,
            widths=widths,
            prefill_widths=WidthRule(tuple(width for width in chunks if width <= model.chunk), pads),
            vocabulary=self.tokenizer.size,
            eos_ids=frozenset() if options.ignore_eos else frozenset(self.manifest.tokenizer.eos_ids),
            branches=proven is None,
            rolling=Rolling(model.capacity - widths.least_rows + 1) if options.endless else None,
        )

    def _model(self, name: str) -> Model:
        return self._models.get(name)

    def _load_at_once(self) -> None:
        """Load all models that the plan has, so that what loading takes for a while comes before the caches fill."""
        return_freed_memory(threshold=OWN_BLOCKS)
        for name in ("target", *self.settings.drafts):
            self._models.load(name)

    @functools.cached_property
    def _grammars(self) -> GrammarMaker:
        spec = self.manifest.tokenizer
        return GrammarMaker(self.path / spec.file, self.tokenizer.size, spec.eos_ids)

    @functools.cached_property
    def _bundle_key(self) -> str:
        return bundle_key(self.path)

    @functools.cached_property
    def _machine_key(self) -> str:
        """What the bits of a result depend on besides the bundle."""
        return calibration.cache_key((machine_name(), import_onnxruntime().__version__, self.placements.key))

    @functools.cached_property
    def _key(self) -> str:
        """What a measurement depends on. Of the context only whether the measurements fit into it."""
        version, settings = import_onnxruntime().__version__, self.settings
        shape = (min(settings.context, MEASURED_ROWS), settings.chunk, settings.width, settings.kv[0])
        return calibration.cache_key((self._bundle_key, machine_name(), version, self.placements.key, *shape))
