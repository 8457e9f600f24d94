"""A worker seen from outside: an engine in a process of its own, which answers one request at a time."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

from benchmarks.peers.environments import Unavailable, first_line, last_line


class Worker:
    """An engine in a process of its own, which Ctrl-C in the terminal does not reach.

    Raises:
        Unavailable: it ends, or says that it cannot do what it is asked; with the first line of its error, or the last one
            that it wrote.
    """

    def __init__(self, command: list[str], environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            start_new_session=True,
        )
        hello = self._read()
        self.engine, self.load_s, self.modes = hello["engine"], hello["load_s"], hello["modes"]
        self.peak_rss_bytes = 0

    def ask(self, mode: str, ids: list[int], new_tokens: int) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"mode": mode, "ids": ids, "new_tokens": new_tokens}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        answer = self._read()
        self.peak_rss_bytes = answer["peak_rss_bytes"]
        return answer

    def close(self) -> None:
        """End the process, in the middle of an answer if there is one."""
        self._process.kill()
        self._process.wait(30)
        for file in (self._process.stdin, self._process.stdout, self._errors):
            assert file is not None
            with contextlib.suppress(BrokenPipeError):  # a request that it did not live to read
                file.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Unavailable(first_line(answer["error"]))
        return answer

    def _ended(self) -> Unavailable:
        status = self._process.wait(30)
        self._errors.seek(0)
        return Unavailable(f"its process ended with status {status}: {last_line(self._errors.read())}")
