"""Compiles the app's Java against Android's API without an Android SDK: ``java_stubs.py STUBS OUT``.

STUBS is an unpacked chaquopy-stubs-android: typed signatures of API 36 for Python. From them Java sources are made of every
class that the shell mentions, with those members whose names occur in it, and javac compiles both. That finds wrong names,
arguments and types. It says nothing about behaviour. Return types that Python does not tell apart (int, long) are taken as int.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

SHELL = Path(__file__).resolve().parents[1] / "app" / "src" / "main" / "java"
# What the signatures for Python leave out: checked exceptions.
THROWS = {
    "org.json.JSONObject": "org.json.JSONException",
    "android.content.ContentResolver.openFileDescriptor": "java.io.FileNotFoundException",
}
NUMBERS = {f"j{name}": name for name in ("int", "long", "boolean", "float", "double", "short", "byte")}
RETURNS = {"int": "int", "bool": "boolean", "float": "double", "str": "String", "None": "void"}
OF_OBJECT = {"toString", "equals", "hashCode", "clone", "getClass", "finalize", "notify", "wait"}
CHAQUOPY = {
    "com/chaquo/python/PyObject.java": "package com.chaquo.python; public class PyObject { "
    "public PyObject callAttr(String key, Object... arguments) { return null; } }",
    "com/chaquo/python/Python.java": "package com.chaquo.python; public class Python { public interface Platform {} "
    "public static void start(Platform platform) {} public static Python getInstance() { return null; } "
    "public PyObject getModule(String name) { return null; } }",
    "com/chaquo/python/android/AndroidPlatform.java": "package com.chaquo.python.android; public class AndroidPlatform implements "
    "com.chaquo.python.Python.Platform { public AndroidPlatform(android.content.Context context) {} }",
}


class Stubs:
    """Classes by their full names, and which of them are wanted."""

    def __init__(self, folder: Path, words: set[str], protected: set[str]) -> None:
        self._folder, self._words, self._protected = folder, words, protected
        self._classes: dict[str, ast.ClassDef] = {}
        self._read: set[str] = set()
        self.wanted: list[str] = []

    def want(self, name: str) -> bool:
        """Have a class written. False where there are no signatures of it, as for what the JDK has."""
        package = ".".join(part for part in name.split(".") if part[:1].islower())
        if package.partition(".")[0] not in ("android", "org", "dalvik"):
            return False
        if package not in self._read:
            self._read.add(package)
            first, *rest = package.split(".")
            path = self._folder.joinpath(f"{first}-stubs", *rest, "__init__.pyi")
            if path.exists():
                self._collect(package, ast.parse(path.read_text(encoding="utf-8")).body)
        if name not in self._classes:
            return False
        outer = name.rpartition(".")[0]
        if outer in self._classes:
            self.want(outer)
        if name not in self.wanted:
            self.wanted.append(name)
        return True

    def write(self, out: Path) -> int:
        """Write all classes, those included that others turn out to need; their number."""
        texts: dict[str, list[str]] = {}
        for name in self.wanted:  # grows while it is gone through
            texts[name] = self._members(name)
        for name in self.wanted:
            if name.rpartition(".")[0] not in self._classes:
                package, _, simple = name.rpartition(".")
                path = out.joinpath(*package.split("."), f"{simple}.java")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"package {package};\n{self._text(name, texts, nested=False)}", encoding="utf-8")
        return len(self.wanted)

    def _collect(self, outer: str, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                self._classes[f"{outer}.{node.name}"] = node
                self._collect(f"{outer}.{node.name}", node.body)

    def _text(self, name: str, texts: dict[str, list[str]], nested: bool) -> str:
        simple, kind = name.rpartition(".")[2], self._kind(name)
        parents = [base for base in self._bases(name) if self._kind(base) == kind]
        extends = f" extends {', '.join(parents)}" if parents and kind != "@interface" else ""
        inner = [self._text(other, texts, nested=True) for other in self.wanted if other.rpartition(".")[0] == name]
        body = "\n".join("  " + line for line in [*texts[name], *inner])
        return f"public {'static ' if nested else ''}{kind} {simple}{extends} {{\n{body}\n}}\n"

    def _kind(self, name: str) -> str:
        """An interface has no constructor, and neither has an annotation."""
        node = self._classes.get(name)
        if node is None:
            return "interface" if name.startswith("java.io.Closeable") else "class"
        if any("Annotation" in ast.unparse(base) for base in node.bases):
            return "@interface"
        if any(isinstance(item, ast.FunctionDef) and item.name == "__init__" for item in node.body):
            return "class"
        return "interface" if node.body and not self._has_static_only(node) else "class"

    def _has_static_only(self, node: ast.ClassDef) -> bool:
        methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
        return not methods or all(self._decorated(item, "staticmethod") for item in methods)

    def _bases(self, name: str) -> list[str]:
        package = name.rpartition(".")[0]
        found = []
        for base in self._classes[name].bases if name in self._classes else []:
            text = self._resolved(ast.unparse(base), package)
            if self.want(text) or text == "java.io.Closeable" or text.endswith("Exception"):
                found.append(text)
        return found

    def _members(self, name: str) -> list[str]:
        self._bases(name)
        kind, lines, seen = self._kind(name), dict[str, None](), set[str]()
        for owner in self._with_interfaces(name):
            for node in self._classes[owner].body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id in self._words:
                    text = re.sub(r"typing\.ClassVar\[(.*)\]", r"\1", ast.unparse(node.annotation))
                    if text in ("int", "str"):
                        value = {"int": "0", "str": '""'}[text]
                        lines[f"public static final {RETURNS[text]} {node.target.id} = {value};"] = None
        simple = name.rpartition(".")[2]
        for node in self._classes[name].body:
            if isinstance(node, ast.FunctionDef) and (node.name in self._words - OF_OBJECT or node.name == "__init__"):
                line = self._method(name, kind, node)
                signature = re.sub(r"^.*?(\w+\(.*?\)).*$", r"\1", line)
                if signature not in seen:  # two may differ in what Python does not tell apart
                    seen.add(signature)
                    lines[line] = None
        if kind == "class" and f"{simple}()" not in seen:
            lines[f"protected {simple}() {{}}"] = None  # for the constructors of what extends it
        return list(lines)

    def _with_interfaces(self, name: str) -> list[str]:
        """The class and, for their constants, the interfaces that it implements."""
        return [name, *(base for base in self._bases(name) if base in self._classes and self._kind(base) == "interface")]

    def _method(self, owner: str, kind: str, node: ast.FunctionDef) -> str:
        package = owner.rpartition(".")[0]
        given = [item for item in node.args.posonlyargs + node.args.args if item.arg != "self"]
        arguments = [f"{self._type(item.annotation, package, False)} p{index}" for index, item in enumerate(given)]
        thrown = THROWS.get(f"{owner}.{node.name}") or THROWS.get(owner)
        throws = f" throws {thrown}" if thrown else ""
        if node.name == "__init__":
            return f"public {owner.rpartition('.')[2]}({', '.join(arguments)}){throws if given else ''} {{}}"
        returns = self._type(node.returns, package, True)
        static = "static " if self._decorated(node, "staticmethod") else ""
        access = "protected" if node.name in self._protected and kind == "class" else "public"
        value = "" if returns == "void" else f"return {_nothing(returns)};"
        body = ";" if kind == "interface" and not static else f"{{ {value} }}"
        return f"{access} {static}{returns} {node.name}({', '.join(arguments)}){throws} {body}"

    def _type(self, node: ast.expr | None, package: str, returned: bool) -> str:
        options = [part.strip() for part in ast.unparse(node).split(" | ")] if node else ["None"]
        options = [part for part in options if part != "None"] or ["None"]
        for option in options:
            if option.startswith("java.j") and option[5:] in NUMBERS:
                return NUMBERS[option[5:]]
        for option in options:
            if option.startswith("java.chaquopy.JavaArray"):
                inner = re.search(r"\[(.*)\]", option)
                return f"{self._named(inner[1], package)}[]" if inner else f"{NUMBERS.get('j' + option[24:].lower(), 'Object')}[]"
        for option in options:
            if "." in option or option not in RETURNS:
                return self._named(option, package)
        return RETURNS[options[0]] if returned or options[0] != "None" else "Object"

    def _named(self, text: str, package: str) -> str:
        name = self._resolved(text, package)
        if name == "java.lang.String":
            return "String"
        return name if name.startswith(("java.lang.", "java.util.", "java.io.")) or self.want(name) else "Object"

    def _resolved(self, text: str, package: str) -> str:
        """A full name for one as it stands in a signature, without its parameters."""
        name = re.sub(r"\[.*\]", "", text).strip("'\"")
        if name.startswith(("android.", "java.", "javax.", "org.", "dalvik.")):
            return name
        while package:
            if f"{package}.{name}" in self._classes:
                return f"{package}.{name}"
            package = package.rpartition(".")[0]
        return name

    @staticmethod
    def _decorated(node: ast.FunctionDef, name: str) -> bool:
        return any(ast.unparse(item) == name for item in node.decorator_list)


def _nothing(kind: str) -> str:
    return "false" if kind == "boolean" else "0" if kind in NUMBERS.values() else "null"


def javac(classes: Path, options: list[str], sources: list[Path]) -> subprocess.CompletedProcess[str]:
    """Compile for Java 8, the newest that an old Android understands."""
    command = ["javac", *options, "-source", "8", "-target", "8", "-cp", str(classes), "-d", str(classes), *map(str, sources)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main(stubs: Path, out: Path) -> int:
    sources = sorted(SHELL.rglob("*.java"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    words = {*re.findall(r"\w+", text), "close"}  # which try calls
    found = Stubs(stubs, words, set(re.findall(r"protected \w+ (\w+)\(", text)))
    for name in re.findall(r"^import ([\w.]+);", text, re.MULTILINE):
        found.want(name)
    for outer, inner in re.findall(r"\b([A-Z]\w+)\.([A-Z]\w+)\b", text):
        for name in list(found.wanted):
            if name.endswith(f".{outer}"):
                found.want(f"{name}.{inner}")
    count = found.write(out / "stubs")
    for name, source in CHAQUOPY.items():
        path = out / "stubs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    others, classes = sorted((out / "stubs").rglob("*.java")), out / "classes"
    done = javac(classes, ["-nowarn"], others)
    if done.returncode == 0:
        done = javac(classes, ["-Xlint:all,-serial,-options", "-Werror"], sources)
    print(done.stdout + done.stderr, end="")
    print(f"{len(sources)} files of the app against {count} classes of Android: {'compiled' if done.returncode == 0 else 'refused'}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
