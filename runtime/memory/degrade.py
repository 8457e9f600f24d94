"""What is given up when memory is short, in this order:

    1. the size of a prompt's chunks     a longer wait for the first token
    2. the width of a verification pass  fewer drafted tokens per round
    3. the window of the draft models    they see less of a long text, so fewer of their tokens are accepted
    4. the draft models                  n-gram drafts remain
    5. the type of the KV caches         only where the caller allows it: other types round, so the text changes
    6. the context                       the text ends earlier, or a prompt is refused

None but the last two can show in a text.

Each is given up as far as it goes before the next one is touched. What a later step frees is handed back to the earlier ones,
the last of them first, and to none more than needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from edgespec.errors import CapacityError
from edgespec.runtime.memory.plan import CHUNKS, LEAST_ROWS, WIDTHS, Footprint, Plan, Settings

ROWS_STEP = 64


@dataclasses.dataclass(frozen=True)
class Step:
    """Something to give up: fields of the settings, and ever smaller settings to try, the most generous first."""

    fields: tuple[str, ...]
    smaller: Callable[[Settings], Iterator[Settings]]


def _chunks(settings: Settings) -> Iterator[Settings]:
    return (dataclasses.replace(settings, chunk=chunk) for chunk in CHUNKS if chunk < settings.chunk)


def _widths(settings: Settings) -> Iterator[Settings]:
    return (dataclasses.replace(settings, width=width) for width in WIDTHS if width < settings.width)


def _windows(settings: Settings) -> Iterator[Settings]:
    window = settings.draft_window // 2
    while window >= LEAST_ROWS:
        yield dataclasses.replace(settings, draft_window=window)
        window //= 2


def _drafts(settings: Settings) -> Iterator[Settings]:
    for count in reversed(range(len(settings.drafts))):
        yield dataclasses.replace(settings, drafts=settings.drafts[:count], draft_window=settings.draft_window if count else 0)


def _kv_types(settings: Settings) -> Iterator[Settings]:
    return (dataclasses.replace(settings, kv=settings.kv[used:]) for used in range(1, len(settings.kv)))


def _contexts(settings: Settings) -> Iterator[Settings]:
    for rows in range(settings.context - 1, LEAST_ROWS - 1, -1):
        if rows % ROWS_STEP == 0:
            yield dataclasses.replace(settings, context=rows)


ORDER = (
    Step(("chunk",), _chunks),
    Step(("width",), _widths),
    Step(("draft_window",), _windows),
    Step(("drafts", "draft_window"), _drafts),
    Step(("kv",), _kv_types),
    Step(("context",), _contexts),
)


def fit(footprint: Footprint, wanted: Settings, budget: int | None) -> Plan:
    """The plan that gives up least of ``wanted``.

    Raises:
        CapacityError: even the smallest settings need more; says how much.
    """

    def fits(settings: Settings) -> bool:
        return budget is None or footprint.plan(settings).ceiling <= budget

    if fits(wanted):
        return footprint.plan(wanted, budget)
    settings = wanted
    for number, step in enumerate(ORDER):
        for smaller in step.smaller(settings):
            settings = smaller
            if fits(settings):
                for earlier in reversed(ORDER[:number]):
                    settings = _hand_back(earlier, settings, wanted, fits)
                return footprint.plan(settings, budget, describe(wanted, settings))
    assert budget is not None, "everything fits without one"
    least = footprint.plan(settings).ceiling
    raise CapacityError(
        f"memory budget of {budget / 1e6:.0f} MB: the smallest that works is {-(-least // 10**6)} MB, for {settings.context} tokens of "
        f"context{' and no draft model' if wanted.drafts else ''}; raise it, or export with fewer bits"
    )


def fit_with_packs(footprint: Footprint, wanted: Settings, budget: int | None) -> tuple[Plan, bool]:
    """The plan, and whether packed weights should be in files: not if something would have to be given up for it.

    Such packs are no private memory, but loading takes more for a moment.
    """
    try:
        packed = fit(footprint.with_packs(), wanted, budget)
    except CapacityError:
        return fit(footprint, wanted, budget), False
    plain = fit(footprint, wanted, budget)
    return (packed, True) if packed.settings == plain.settings else (plain, False)


def _hand_back(step: Step, settings: Settings, wanted: Settings, fits: Callable[[Settings], bool]) -> Settings:
    """The most of ``wanted`` in this step's fields that fits beside the rest of ``settings``."""
    if "draft_window" in step.fields and not settings.drafts:
        return settings
    full = dataclasses.replace(settings, **{field: getattr(wanted, field) for field in step.fields})
    return next((more for more in (full, *step.smaller(full)) if fits(more)), settings)


def describe(wanted: Settings, found: Settings) -> tuple[str, ...]:
    """What was given up, a phrase for each step that was taken, in their order."""
    steps = []
    if found.chunk < wanted.chunk:
        steps.append(f"prompts in chunks of {found.chunk} tokens, not {wanted.chunk}")
    if found.width < wanted.width:
        steps.append(f"passes of at most {found.width} tokens, not {wanted.width}")
    if found.drafts and found.draft_window < wanted.draft_window:
        steps.append(f"draft models see the last {found.draft_window} tokens, not {wanted.draft_window}")
    if dropped := [name for name in wanted.drafts if name not in found.drafts]:
        steps.append(f"without {', '.join(dropped)}")
    if found.kv[0] != wanted.kv[0]:
        steps.append(f"KV caches of {found.kv[0]}, not {wanted.kv[0]}, which changes the text")
    if found.context < wanted.context:
        steps.append(f"a context of {found.context} tokens, not {wanted.context}")
    return tuple(steps)
