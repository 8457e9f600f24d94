"""ChatML without jinja2, and the runtime with nothing but numpy and the standard library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgespec.errors import BundleError, UsageError
from edgespec.manifest import TokenizerSpec
from edgespec.runtime import load
from edgespec.runtime.ort import LIBRARY_VARIABLE
from edgespec.runtime.text.chat_template import ChatTemplate
from tests.helpers.blocker import BLOCKER
from tests.helpers.bundles import make_attention_bundle
from tests.helpers.onnxruntime import wheel_library

PLAIN = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
FIRST = (
    "{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
)
TEMPLATES = {
    "plain": PLAIN,
    "default system": PLAIN.replace("{% for message in messages %}", "{% for message in messages %}" + FIRST),
    "lines": PLAIN.replace("{% endfor %}", "{% endfor %}\n").replace("{% for message in messages %}", "{%- for message in messages -%}")
    + "\n",
    "attributes": PLAIN.replace("message['role']", "message.role").replace("message['content']", "message.content | trim"),
    "line ends as they are": PLAIN.replace("{% for message in messages %}", "{% for message in messages %}" + FIRST).replace("\\n", "\n"),
    "quotes": PLAIN.replace("'<|im_end|>' + '\\n'", '"<|im_end|>\\n"').replace("['role']", '["role"]'),
}
OTHERS = {
    "another mark": PLAIN.replace("im_end", "end"),
    "something said before": "Hi" + PLAIN,
    "a blank after a tag": PLAIN.replace("{% endfor %}", "{% endfor %} "),
    "no generation prompt": PLAIN.partition("{% if")[0],
    "a role left out": PLAIN.replace("{% for message in messages %}", "{% for message in messages if message.role != 'tool' %}"),
}
MESSAGES = (
    [{"role": "user", "content": " Hello\n"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<b>'\"{{ 7 }}"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "ü\U0001f600"}],
)


def template(folder: Path, source: str) -> ChatTemplate:
    (folder / "t.jinja").write_text(source, encoding="utf-8")
    return ChatTemplate(folder, TokenizerSpec("x", "0", 3, (), chat_template="t.jinja"))


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_recognised_is_rendered_as_by_jinja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    expected = [template(tmp_path, TEMPLATES[name]).render(messages) for messages in MESSAGES]
    monkeypatch.setitem(sys.modules, "jinja2", None)
    ours = template(tmp_path, TEMPLATES[name])
    assert [ours.render(messages) for messages in MESSAGES] == expected
    assert all(text.endswith("<|im_start|>assistant\n") for text in expected)
    with pytest.raises(UsageError, match="is not a text"):
        ours.render([{"role": "user", "content": ["parts"]}])
    with pytest.raises(UsageError, match="no messages"):
        ours.render([])


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_not_needs_jinja(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    template(tmp_path, OTHERS[name])
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(BundleError, match=r"t\.jinja: a chat template other than plain ChatML needs jinja2: pip install jinja2"):
        template(tmp_path, OTHERS[name])


BARE = (
    BLOCKER
    + """
import edgespec
with edgespec.load(sys.argv[1], threads=1) as engine:
    chat = engine.chat()
    text = chat.send("hello", max_new_tokens=30).result()
    print(json.dumps({"ids": text.token_ids, "text": text.text, "stats": text.stats.as_dict()}))
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names)))
"""
)


def test_with_numpy_and_the_standard_library_alone(tmp_path: Path) -> None:
    """What a phone has. Everything else cannot even be imported there."""
    bundle = make_attention_bundle(tmp_path / "b", draft_noise=0.1, chat=TEMPLATES["default system"])
    environment = {**os.environ, LIBRARY_VARIABLE: str(wheel_library())}
    command = [sys.executable, "-S", "-c", BARE, str(bundle)]
    environment["PYTHONPATH"] = os.pathsep.join(path for path in [str(Path(__file__).parents[3]), *sys.path] if path)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    answer, modules = map(json.loads, done.stdout.splitlines())
    own = {"numpy", "edgespec", "__main__"}
    assert [name for name in modules if name not in own and "cython" not in name] == []  # the latter are parts of numpy
    with load(bundle, threads=1) as engine:
        result = engine.chat().send("hello", max_new_tokens=30).result()
    assert (answer["text"], tuple(answer["ids"])) == (result.text, result.token_ids)
    assert answer["stats"]["new_tokens"] == 30
