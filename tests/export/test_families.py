"""Every architecture of the table, from a random checkpoint through the whole export, against torch loaded by transformers itself."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from edgespec.errors import CapacityError, UsageError
from edgespec.export.trace.angles import steady_length
from edgespec.manifest import read_manifest
from edgespec.runtime.models.model import Model
from edgespec.runtime.providers.session import DEFAULT_PROVIDERS
from tests.export import architectures
from tests.export.architectures import CASES, LLAMA3, LONGROPE, Case
from tests.export.conftest import export
from tests.helpers.checkpoints import CAPACITY, auto_class, make_checkpoint, make_config, make_model

DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
TOLERANCE = 1e-4
LEAST_EFFECT = 2e-3  # of a peculiarity on the logits: twenty times what the comparison with torch lets pass
IDS = np.random.default_rng(0).integers(0, 256, CAPACITY).tolist()


class Reference:
    """Logits of token sequences from the checkpoint as transformers loads it."""

    def __init__(self, checkpoint: Path, layers: int | None = None) -> None:
        architecture = AutoConfig.from_pretrained(checkpoint).model_type
        self.model = auto_class(architecture).from_pretrained(checkpoint, attn_implementation="eager", dtype=torch.float32).eval()
        if layers is not None:
            self.model.base_model.layers = self.model.base_model.layers[:layers]

    def __call__(self, ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            logits: np.ndarray = self.model(torch.tensor([ids])).logits[0].numpy()
        return logits


@dataclasses.dataclass(frozen=True)
class Exported:
    """One case, exported once for all tests."""

    case: Case
    bundle: Path
    model: Model
    reference: Reference

    @classmethod
    def make(cls, case: Case, folder: Path) -> Exported:
        checkpoint = make_checkpoint(folder / "checkpoint", case.architecture, **case.settings)
        export(checkpoint, folder / "bundle")
        return cls(case, folder / "bundle", load(folder / "bundle"), Reference(checkpoint))


def load(bundle: Path, name: str = "target") -> Model:
    spec = read_manifest(bundle).models[name]
    return Model(bundle / spec.graph, spec, capacity=CAPACITY, threads=1, providers=DEFAULT_PROVIDERS)


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    assert wanted.std() > 0.1, "logits without spread would prove nothing"
    return float(np.abs(found - wanted).max())


def sequence_distances(model: Model, reference: Reference) -> dict[str, float]:
    """Differences from torch in the passes over a text of which a draft is rejected on the way."""
    right = reference(IDS[:60])
    model.keep(0)
    found = {"prefill": distance(model.run(IDS[:30], range(30)), right[:30])}
    # A verification pass on the past, of which two tokens are kept ...
    wrong = [*IDS[:32], 7, 8, 9]
    found["verification"] = distance(model.run(wrong[30:], range(5)), reference(wrong)[30:])
    model.keep(32)
    # ... and then on: one token, the same with a second row in attention, several, and only some of the rows.
    found["one token"] = distance(model.run(IDS[32:33], [0]), right[32:33])
    if model.can_pad:
        model.keep(32)
        model.attends_alone = False
        found["one token of two rows"] = distance(model.run(IDS[32:33], [0]), right[32:33])
        model.attends_alone = True
    found["several tokens"] = distance(model.run(IDS[33:40], range(7)), right[33:40])
    found["some rows"] = distance(model.run(IDS[40:60], [3, 19]), right[[43, 59]])
    return found


def tree_distances(model: Model, reference: Reference) -> dict[str, float]:
    """Differences from torch in a tree with siblings, each node against its own path, and behind a branch that is kept."""
    past = IDS[:20]
    tokens, parents = [11, 12, 13, 14, 15, 16, 17], [-1, 0, 0, 2, 0, 1, 5]
    model.keep(0)
    model.run(past, [0])
    rows = model.run(tokens, range(7), parents).copy()
    found = {}
    for node in range(7):
        path, at = [], node
        while at >= 0:
            path.append(tokens[at])
            at = parents[at]
        found[f"node {node}"] = distance(rows[node], reference(past + path[::-1])[-1])
    # The branch 0, 2, 3 is kept: its rows move together, and the text goes on from there.
    model.keep_path(20, [0, 2, 3])
    wanted = reference([*past, 11, 13, 14, 21, 22])
    found["behind the branch"] = distance(model.run([21, 22], range(2)), wanted[-2:])
    return found


def largest_difference(exported: Exported) -> float:
    parts = sequence_distances(exported.model, exported.reference) | tree_distances(exported.model, exported.reference)
    return max(parts.values())


def parameters(cases: tuple[Case, ...] = CASES) -> list[object]:
    return [pytest.param(case, marks=() if case.fast else pytest.mark.slow, id=case.name.replace(" ", "_")) for case in cases]


@pytest.fixture(scope="module", params=parameters())
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return Exported.make(request.param, tmp_path_factory.mktemp("family"))


def test_equals_torch_through_prefill_verification_and_rollback(exported: Exported) -> None:
    for name, difference in sequence_distances(exported.model, exported.reference).items():
        assert difference < TOLERANCE, name


def test_a_tree_with_siblings_equals_its_paths(exported: Exported) -> None:
    for name, difference in tree_distances(exported.model, exported.reference).items():
        assert difference < TOLERANCE, name


@pytest.mark.parametrize("case", parameters())
def test_what_is_peculiar_shows_in_the_logits(case: Case) -> None:
    """Otherwise the comparison with torch would not notice that it is missing."""
    model = make_model(case.architecture, **case.settings)
    ids = torch.tensor([IDS[:60]])
    with torch.no_grad():
        wanted = model(ids).logits
        for peculiarity, without in case.peculiar.items():
            other = copy.deepcopy(model)
            if isinstance(without, str):
                touched = [parameter for name, parameter in other.named_parameters() if re.search(without, name)]
                assert touched, peculiarity
                for parameter in touched:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                other = auto_class(case.architecture).from_config(_without(case, without), attn_implementation="eager").eval()
                other.load_state_dict(model.state_dict(), strict=False)
            effect = float((other(ids).logits - wanted).abs().max())
            assert effect > LEAST_EFFECT, f"{peculiarity}: {effect}"


def _without(case: Case, changes: architectures.Without) -> object:
    assert not isinstance(changes, str)
    settings = dict(case.settings)
    for name, value in changes.items():
        settings[name] = {**settings[name], **value} if name == "text_config" else value
    return make_config(case.architecture, **settings)


def test_the_table_of_architectures_is_not_stale() -> None:
    text = architectures.DOCUMENT.read_text(encoding="utf-8")
    measured, version = architectures.recorded(text)
    assert text == architectures.render(measured, version), "run: python -m tests.export.architectures"
    assert set(measured) == {case.name for case in CASES}
    assert all(float(difference) < TOLERANCE for difference in measured.values())


def test_an_early_exit_equals_the_shallow_model(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "qwen3")
    export(checkpoint, tmp_path / "bundle", draft="layers:2")
    model, reference = load(tmp_path / "bundle", "draft"), Reference(checkpoint, layers=2)
    assert distance(model.run(IDS[:30], range(30)), reference(IDS[:30])) < TOLERANCE


def test_the_manifest_says_what_each_layer_keeps(tmp_path: Path) -> None:
    export(make_checkpoint(tmp_path / "checkpoint", "gemma3_text"), tmp_path / "bundle")
    target = read_manifest(tmp_path / "bundle").target
    assert [layer.window for layer in target.layers] == [8, None, 8]
    assert {(layer.heads, layer.key_dim, layer.value_dim) for layer in target.layers} == {(2, 16, 16)}
    assert (target.vocab_size, target.capacity, target.max_width) == (288, CAPACITY, 8)


def test_layers_that_share_kv_have_no_buffers_of_their_own(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.architecture == "gemma4_text")
    exported = Exported.make(case, tmp_path)
    target = read_manifest(exported.bundle).target
    assert [(layer.window, layer.key_dim) for layer in target.layers] == [(8, 16), (8, 16), (None, 32)]
    with pytest.raises(UsageError, match="layers of the target share KV"):
        export(tmp_path / "checkpoint", tmp_path / "cut", draft="layers:2")


def test_a_context_is_kept_to_where_rotary_angles_are_steady(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.architecture == "phi3")
    checkpoint = make_checkpoint(tmp_path / "longrope", "phi3", **case.settings)
    assert export(checkpoint, tmp_path / "bundle").manifest.target.capacity == 64
    with pytest.raises(CapacityError, match=r"--context: 65 .* 64.*longrope of phi3"):
        export(checkpoint, tmp_path / "longer", context=65)


@pytest.mark.parametrize(("scaling", "steady"), [(LLAMA3, 1000), (LONGROPE, 64), (DYNAMIC, 96)])
def test_the_length_at_which_angles_change_is_found_by_value(scaling: dict[str, object], steady: int) -> None:
    model = make_model("llama", rope_parameters=scaling)
    before = [buffer.clone() for buffer in model.buffers()]
    assert steady_length(model, 1000)[0] == steady
    assert all(torch.equal(old, new) for old, new in zip(before, model.buffers(), strict=True))
