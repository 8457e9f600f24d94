"""Which model of a bundle runs where: providers and threads for all models, or for each by name.

providers="cuda"                      every model
providers="target=cuda,draft=cpu"     one or the other; a model that is not named runs on the CPU
providers={"draft": ["qnn", "cpu"]}   in order of preference
threads="target=4,draft=1"
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from edgespec.errors import UsageError
from edgespec.runtime.cores import default_threads
from edgespec.runtime.providers.providers import DYNAMIC, choose, provider
from edgespec.runtime.providers.session import CPU, Choice

EVERY = "*"  # stands for models that are not named
_ITEM = re.compile(r"(?:([a-z][a-z0-9_-]*)=)?([A-Za-z0-9:]+)")

Providers = str | Sequence[str] | Mapping[str, str | Sequence[str]]
Profile = str | Mapping[str, str]
Threads = int | str | Mapping[str, int]


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where one model runs, and which of its graphs. ``providers`` are in order of preference; with ``strict`` none but these may run
    any of it."""

    providers: tuple[Choice, ...]
    threads: int
    strict: bool = False
    profile: str = DYNAMIC


@dataclasses.dataclass(frozen=True)
class Placements:
    """Where the models of a bundle run: those that were named, and all others."""

    providers: Mapping[str, tuple[Choice, ...]]
    threads: Mapping[str, int]
    profiles: Mapping[str, str]
    strict: bool = False

    @classmethod
    def of(
        cls,
        providers: Providers | None = None,
        threads: Threads | None = None,
        options: Mapping[str, Mapping[str, str]] | None = None,
        strict: bool = False,
        profile: Profile | None = None,
    ) -> Placements:
        """Check what was asked for.

        Args:
            providers: see the module; the CPU alone for None.
            threads: of a pass; the cores that the process may use for None.
            options: ONNX Runtime's provider options by the provider's name.
            strict: refuse a model of which a part would run on another provider than those named.
            profile: which of the bundle's graphs; what the first provider can run for None.

        Raises:
            UsageError: not a placement, or a provider that is not installed.
        """
        names = _by_model("providers", "cpu" if providers is None else providers)
        options = {provider(name).name: settings for name, settings in (options or {}).items()}
        used = {provider(name.partition(":")[0]).name for chosen in names.values() for name in chosen}
        for name in options.keys() - used:
            raise UsageError(f"provider options for {provider(name).short}, which no model was put on")
        chosen = {
            model: tuple(choose(name, options.get(provider(name.partition(":")[0]).name)) for name in items)
            for model, items in names.items()
        }
        if strict:
            _check_strict(chosen)
        profiles = {} if profile is None else {model: found[-1] for model, found in _by_model("profile", profile).items()}
        return cls({EVERY: (CPU,), **chosen}, {EVERY: default_threads(), **_threads(threads)}, profiles, strict)

    def check_models(self, models: Iterable[str]) -> None:
        """Refuse the name of a model that the bundle does not have."""
        models = sorted(models)
        for what, named in (("providers", self.providers), ("threads", self.threads), ("profile", self.profiles)):
            for name in named:
                if name != EVERY and name not in models:
                    raise UsageError(f"{what}: the bundle has no model {name!r}; it has {', '.join(models)}")

    def with_usual_graphs(self, models: Iterable[str]) -> Placements:
        """The same, but these models run the graph that every model has, on the CPU where the provider of all cannot run it; unless
        they were named otherwise."""
        models = list(models)
        providers = {} if provider(self.providers[EVERY][0].name).profile == DYNAMIC else dict.fromkeys(models, (CPU,))
        return dataclasses.replace(
            self, providers={**providers, **self.providers}, profiles={**dict.fromkeys(models, DYNAMIC), **self.profiles}
        )

    def with_one_thread(self, models: Iterable[str]) -> Placements:
        """The same, but these models run on the caller's thread, unless theirs were named."""
        return dataclasses.replace(self, threads={**dict.fromkeys(models, 1), **self.threads})

    def of_model(self, name: str) -> Placement:
        providers = self.providers.get(name, self.providers[EVERY])
        profile = self.profiles.get(name, self.profiles.get(EVERY, provider(providers[0].name).profile))
        return Placement(providers, self.threads.get(name, self.threads[EVERY]), self.strict, profile)

    def are_usual(self, models: Iterable[str]) -> bool:
        """Whether all of them run the graph that every model has, on the CPU."""
        return all(place.providers == (CPU,) and place.profile == DYNAMIC for place in map(self.of_model, models))

    @property
    def key(self) -> str:
        """All of it in one line: what measurements depend on."""
        return repr([sorted(part.items()) for part in (self.providers, self.threads, self.profiles)])


def _by_model(what: str, value: Providers) -> dict[str, list[str]]:
    """Names by model, ``EVERY`` for those before any model's name."""
    if isinstance(value, Mapping):
        return {str(model): _names(what, names.split(",") if isinstance(names, str) else names) for model, names in value.items()}
    found: dict[str, list[str]] = {}
    model = EVERY
    for item in value.replace(" ", "").split(",") if isinstance(value, str) else value:
        match = _ITEM.fullmatch(item) if isinstance(item, str) else None
        if match is None:
            raise UsageError(f"{what}: {item!r} is not a name, or MODEL=NAME such as draft=cpu")
        model = match[1] or model
        found.setdefault(model, []).append(match[2])
    return {model: _names(what, names) for model, names in found.items()} or {EVERY: _names(what, [])}


def _names(what: str, names: Sequence[str]) -> list[str]:
    if not names or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f"{what}: name at least one, such as cpu")
    return list(names)


def _threads(value: Threads | None) -> dict[str, int]:
    if value is None:
        return {}
    if isinstance(value, str):
        try:
            value = {model: int(numbers[-1]) for model, numbers in _by_model("threads", value).items()}
        except ValueError as error:
            raise UsageError(f"threads: {value!r} is not a number from 1, nor one for each model such as target=4,draft=1") from error
    counts = dict(value) if isinstance(value, Mapping) else {EVERY: value}
    for count in counts.values():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"threads: {count!r} is not a number from 1")
    return counts


def _check_strict(chosen: Mapping[str, tuple[Choice, ...]]) -> None:
    """A model on another provider must not list the CPU as well: strict denies what that allows."""
    for model, providers in chosen.items():
        if len(providers) > 1 and CPU.name in {choice.name for choice in providers}:
            where = "all models" if model == EVERY else model
            raise UsageError(f"strict providers: {where} may run on the CPU as well; leave cpu out of its list, or do not be strict")
