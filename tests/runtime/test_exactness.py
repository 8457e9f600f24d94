"""The self-test finds widths whose results differ, on graphs made to differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgespec.manifest import KvLayer
from edgespec.runtime import load
from edgespec.runtime.exactness import Exactness, WidthRule
from tests.helpers.bundles import alphabet_table, logits_of_table, lookup_graph, make_lookup_bundle, write_bundle

WIDEST = 200


def graph_with_error(error: Callable[[int, int], float], counted: str = "input_ids") -> onnx.ModelProto:
    """The alphabet's graph whose logits of row r in a pass of S tokens are too large by error(S, r), where S is as many as there are
    ``counted``."""
    graph = lookup_graph(logits_of_table(alphabet_table()))
    errors = np.array([[error(width, row) for row in range(WIDEST)] for width in range(WIDEST)], np.float32)
    nodes = graph.graph.node
    next(node for node in nodes if "logits" in node.output).output[0] = "right_logits"
    nodes.extend(
        [
            helper.make_node("Shape", [counted], ["width"], start=1, end=2),
            helper.make_node("Gather", ["errors", "width"], ["errors_of_width"], axis=0),
            helper.make_node("Gather", ["errors_of_width", "logit_rows"], ["errors_of_rows"], axis=1),
            helper.make_node("Unsqueeze", ["errors_of_rows", "last"], ["error"]),
            helper.make_node("Add", ["right_logits", "error"], ["logits"]),
        ]
    )
    graph.graph.initializer.extend([numpy_helper.from_array(errors, "errors"), helper.make_tensor("last", TensorProto.INT64, [1], [2])])
    onnx.checker.check_model(graph)
    return graph


def self_test(path: Path, error: Callable[[int, int], float], counted: str = "input_ids", **changes: object) -> Exactness:
    bundle = write_bundle(path, {"target": graph_with_error(error, counted)}, {"target": (KvLayer(1, 1, 1),)}, chat=False, **changes)
    with load(bundle, threads=1) as engine:
        return engine.exactness


ALL = (1, 2, 3, 4, 5, 6, 7, 8)
WIDE = (24, 32, 64, 128)


@pytest.mark.parametrize(
    ("error", "widths"),
    [
        (lambda *_: 0, (*ALL, *WIDE)),
        (lambda width, _: width == 1, (*ALL[1:], *WIDE)),
        (lambda width, row: width % 2 and row == width - 1, (2, 4, 6, 8, *WIDE)),
        (lambda width, _: width in (1, 5, 6), (2, 3, 4, 7, 8, *WIDE)),
        (lambda width, row: width > 30 and row == width - 1, (*ALL, 24)),
    ],
)
def test_the_largest_set_of_equal_widths(tmp_path: Path, error: Callable[[int, int], float], widths: tuple[int, ...]) -> None:
    found = self_test(tmp_path / "b", error)
    assert (found.grade, found.widths) == ("exact", widths)


@pytest.mark.parametrize(
    ("counted", "pads_attention", "widths"),
    [
        ("position_ids", True, (*ALL, *WIDE)),  # what differs is attention, and it can get a second row
        ("position_ids", False, (*ALL[1:], *WIDE)),
        ("input_ids", True, (*ALL[1:], *WIDE)),  # what differs is something else
    ],
)
def test_one_token_alone_gets_a_second_row_where_that_makes_it_equal(
    tmp_path: Path, counted: str, pads_attention: bool, widths: tuple[int, ...]
) -> None:
    found = self_test(tmp_path / "b", lambda width, _: width == 1, counted, pads_attention=pads_attention)
    assert (found.widths, found.pads) == (widths, widths[0] == 1)


def test_nothing_is_padded_where_one_token_alone_is_equal(tmp_path: Path) -> None:
    found = self_test(tmp_path / "b", lambda *_: 0, pads_attention=True)
    assert (found.widths[0], found.pads) == (1, False)


@pytest.mark.parametrize("capacity", [20, 21])
def test_a_second_row_needs_room(tmp_path: Path, capacity: int) -> None:
    graphs = {
        "target": graph_with_error(lambda width, _: width == 1, "position_ids"),
        "draft": lookup_graph(logits_of_table(alphabet_table())),
    }
    layers = dict.fromkeys(graphs, (KvLayer(1, 1, 1),))
    bundle = write_bundle(tmp_path / "b", graphs, layers, chat=False, pads_attention=True, capacity=capacity)
    with load(bundle, threads=1) as engine:
        plain = engine.generate("abcdefghijk", drafter="none", max_new_tokens=30)
        assert (plain.finish_reason, plain.stats.target_passes) == ("capacity", plain.stats.new_tokens - 1)
        assert plain.stats.new_tokens == capacity - 11
        assert not engine._model("target").attends_alone
        for length in (1, 2, 3):
            drafted = engine.generate("abcdefghijk", drafter="draft", draft_length=length, max_new_tokens=30)
            assert (drafted.token_ids, drafted.finish_reason) == (plain.token_ids, "capacity")
        engine.generate("abc", drafter="none", max_new_tokens=3, exactness="fast")
        assert engine._model("target").attends_alone


def test_a_generation_that_waits_keeps_its_own_rule(tmp_path: Path) -> None:
    """Whether attention has a second row is a matter of the generation that runs, not of the one that was asked for last."""
    graphs = {"target": graph_with_error(lambda width, _: width == 1, "position_ids")}
    bundle = write_bundle(tmp_path / "b", graphs, {"target": (KvLayer(1, 1, 1),)}, chat=False, pads_attention=True)
    with load(bundle, threads=1) as engine:
        streams = [engine.stream("abc", drafter="none", max_new_tokens=3, exactness=exactness) for exactness in ("exact", "fast")]
        engine.exact_pass_ms(1)
        for stream, alone in zip(streams, (False, True), strict=True):
            stream.result()
            assert engine._model("target").attends_alone is alone


def test_no_two_widths_agree(tmp_path: Path) -> None:
    found = self_test(tmp_path / "b", lambda width, _: width / 100)
    assert found.grade == "fast"
    assert found.widths == (*ALL, *WIDE)
    assert found.difference == pytest.approx(0.07, rel=1e-3)


def test_equal_logits_with_other_cache_rows_are_not_equal(tmp_path: Path) -> None:
    graph = lookup_graph(logits_of_table(alphabet_table()))
    write = next(node for node in graph.graph.node if "present.0.key" in node.output)
    write.CopyFrom(helper.make_node("Add", ["past_key_values.0.key", "step"], ["present.0.key"]))
    graph.graph.initializer.append(numpy_helper.from_array(np.float32([1]), "step"))
    bundle = write_bundle(tmp_path / "b", {"target": graph}, {"target": (KvLayer(1, 1, 1),)}, chat=False)
    with load(bundle, threads=1) as engine:
        assert (engine.exactness.grade, engine.exactness.difference) == ("fast", 0)


def test_a_width_that_depends_on_the_row_is_not_used(tmp_path: Path) -> None:
    found = self_test(tmp_path / "b", lambda width, row: width == 4 and row == 1)
    assert found.widths == (1, 2, 3, 5, 6, 7, 8, *WIDE)


def test_small_graphs_and_caches(tmp_path: Path) -> None:
    assert self_test(tmp_path / "a", lambda *_: 0, max_width=1).grade == "exact"
    assert self_test(tmp_path / "b", lambda *_: 0, max_width=4, capacity=8).widths[:4] == (1, 2, 3, 4)


def test_a_graph_that_errs_at_one_row_still_speculates_like_plain(tmp_path: Path) -> None:
    """At one row the largest logit is another one: only a plain decoding that never runs one row writes the same text."""
    bundle = make_lookup_bundle(tmp_path / "b", draft_table=alphabet_table())

    def wrong_token(width: int, _row: int) -> float:
        return float(width == 1)

    graph = graph_with_error(wrong_token)
    # Instead of adding the error to every logit, mask the right one with it.
    mask = np.zeros((1, 1, 259), np.float32)
    mask[..., ord("f")] = -100
    graph.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    add = graph.graph.node[-1]
    add.input[1] = "masked"
    graph.graph.node.insert(len(graph.graph.node) - 1, helper.make_node("Mul", ["error", "mask"], ["masked"]))
    bundle = write_bundle(tmp_path / "c", {"target": graph}, {"target": (KvLayer(1, 1, 1),)}, chat=False)
    with load(bundle, threads=1) as engine:
        assert engine.exactness.widths[0] == 2
        prompt = "abcdefghabcd"
        plain = engine.generate(prompt, drafter="none", max_new_tokens=9)
        drafted = engine.generate(prompt, drafter="ngram", draft_length=4, max_new_tokens=9)
        assert plain.text == drafted.text == "efghijklm"
        assert engine.generate(prompt, drafter="none", max_new_tokens=9, exactness="fast").text != plain.text


def nearly_tied_bundle(path: Path, size: float) -> Path:
    """The alphabet, but after every letter its successor and an exclamation mark are tied up to ``size``, and which one leads
    depends on the width of the pass."""
    logits = logits_of_table(alphabet_table())
    rows = np.arange(ord("a"), ord("z") + 1)
    logits[rows, ord("!")] = 10.0
    graph = graph_with_error(lambda width, _row: size * (0.5 if width == 1 else 0.01 * width - 0.3))
    next(item for item in graph.graph.initializer if item.name == "table").CopyFrom(numpy_helper.from_array(logits, "table"))
    mask = np.zeros((1, 1, 259), np.float32)
    mask[..., ord("!")] = -1.0
    graph.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    add = graph.graph.node[-1]
    add.input[1] = "masked"
    graph.graph.node.insert(len(graph.graph.node) - 1, helper.make_node("Mul", ["error", "mask"], ["masked"]))
    draft = lookup_graph(logits_of_table(alphabet_table()))
    return write_bundle(path, {"target": graph, "draft": draft}, dict.fromkeys(("target", "draft"), (KvLayer(1, 1, 1),)), chat=False)


def test_checked_scores_near_ties_again(tmp_path: Path) -> None:
    with load(nearly_tied_bundle(tmp_path / "b", 4e-4), threads=1) as engine:
        assert engine.exactness.grade == "checked"
        assert engine.exactness.margin == pytest.approx(8 * engine.exactness.difference)
        plain = engine.generate("a", drafter="none", max_new_tokens=30)
        assert plain.text == "bcdefghijklmnopqrstuvwxyzabcde", "in passes of one token the letter leads"
        assert (plain.stats.exactness, plain.stats.rechecked) == ("checked", 0)
        for length in (1, 2, 3, 5):
            passes = engine._model("target").passes
            found = engine.generate("a", drafter="draft", draft_length=length, max_new_tokens=30)
            again = engine._model("target").passes - passes - found.stats.target_passes - found.stats.prefill_passes
            assert again <= found.stats.new_tokens, "a row is computed again once at most"
            assert found.token_ids == plain.token_ids
            assert found.stats.rechecked > 5
            assert found.stats.new_tokens == found.stats.accepted + found.stats.own_tokens
            assert engine._model("target").length == 1 + 30 - 1
        fast = [engine.generate("a", drafter="draft", draft_length=k, max_new_tokens=30, exactness="fast") for k in (1, 2, 3, 5)]
        assert any(result.token_ids != plain.token_ids for result in fast), "or there was nothing to check"
        assert fast[0].stats.exactness == "fast"


def test_differences_that_are_not_tiny_are_not_checked(tmp_path: Path) -> None:
    with load(nearly_tied_bundle(tmp_path / "b", 0.5), threads=1) as engine:
        result = engine.generate("a", drafter="draft", draft_length=3, max_new_tokens=9)
        assert (engine.exactness.grade, result.stats.exactness, result.stats.rechecked) == ("fast", "fast", 0)


def test_what_is_not_tied_is_not_scored_again(tmp_path: Path) -> None:
    graph = graph_with_error(lambda width, _row: 1e-5 * width)
    graphs = {"target": graph, "draft": lookup_graph(logits_of_table(alphabet_table()))}
    bundle = write_bundle(tmp_path / "b", graphs, dict.fromkeys(graphs, (KvLayer(1, 1, 1),)), chat=False)
    with load(bundle, threads=1) as engine:
        result = engine.generate("abc", drafter="draft", draft_length=3, max_new_tokens=21)
        assert (result.stats.exactness, result.stats.rechecked, result.stats.target_passes) == ("checked", 0, 5)


def test_width_rule() -> None:
    rule = WidthRule((2, 4, 8))
    assert [rule.fit(count, 100) for count in (1, 2, 3, 8, 9)] == [2, 2, 4, 8, None]
    assert rule.fit(3, 3) is None
    assert [rule.widest(room) for room in (1, 2, 7, 100)] == [0, 2, 4, 8]
