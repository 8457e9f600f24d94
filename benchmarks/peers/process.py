"""A worker seen from outside: an engine in a process of its own, which answers one request at a time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.environments import Unavailable


class Worker:
    """An engine in a process of its own."""

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        hello = self._read()
        self.engine, self.load_s, self.modes = hello["engine"], hello["load_s"], hello["modes"]
        self.peak_rss_bytes = 0

    def ask(self, mode: str, ids: list[int], new_tokens: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"mode": mode, "ids": ids, "new_tokens": new_tokens}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        self.peak_rss_bytes = answer["peak_rss_bytes"]
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable(f"its worker ended with status {self._process.wait(30)}")
        answer: dict[str, Any] = json.loads(line)
        return answer
