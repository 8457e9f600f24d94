"""The command group, and the one place where an error becomes a line on stderr and an exit code.

0    done
1    `edgespec verify` found a difference
2    bad input or a limit of this machine: one line, `edgespec: error: ...`, and never a traceback
70   a bug in edgespec: one line that asks for a report
130  interrupted (Ctrl-C)
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

import click

from edgespec import __version__
from edgespec.cli.bench import bench
from edgespec.cli.chat import chat
from edgespec.cli.compile import compile_
from edgespec.cli.demo import demo
from edgespec.cli.distill import distill
from edgespec.cli.doctor import doctor
from edgespec.cli.export import export
from edgespec.cli.inspect import inspect
from edgespec.cli.plan import plan
from edgespec.cli.push import push
from edgespec.cli.quickstart import quickstart
from edgespec.cli.run import run
from edgespec.cli.tune import tune
from edgespec.cli.verify import verify
from edgespec.errors import EdgespecError

TRACEBACK_VARIABLE = "EDGESPEC_TRACEBACK"
BAD_INPUT, INTERNAL, INTERRUPTED = 2, 70, 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", prog_name="edgespec", message="%(prog)s %(version)s")
def cli() -> None:
    """Speculative decoding on your own device.

    Export a Hugging Face decoder with a draft to a bundle of ONNX graphs, and generate text from it.
    """


for command in (export, distill, run, chat, demo, inspect, plan, verify, bench, tune, compile_, doctor, push, quickstart):
    cli.add_command(command)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: ``argv`` without the program's name, None for ``sys.argv``."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A model may write any character; a terminal that cannot show one gets a question mark and not an error.
            stream.reconfigure(errors="replace")

    # A polite kill cleans up as Ctrl-C does: half-written bundles go.
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    def invoke() -> int:
        # Not cli.main(): that turns a closed pipe into exit code 1, which is verify's word for a difference.
        with cli.make_context("edgespec", list(sys.argv[1:] if argv is None else argv)) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0

    sys.exit(guarded(invoke))


def guarded(action: Callable[[], int]) -> int:
    """The exit code of ``action``; an error is reported on stderr in one line."""
    try:
        return action()
    except click.exceptions.Exit as signal:
        # --help and --version end this way, with their text still in the buffer.
        code = signal.exit_code
        return guarded(lambda: sys.stdout.flush() or code)
    except (click.Abort, KeyboardInterrupt):
        report("interrupted", prefix="")
        return INTERRUPTED
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "edgespec"
        return report(f"{error.format_message()} (see: {where} --help)")
    except EdgespecError as error:
        return report(str(error), error)
    except BrokenPipeError:
        # The reader of our output is gone, as in `edgespec run ... | head`: nobody to tell, and nothing wrong.
        abandon_stdout()
        return 0
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        code = report(f"{place}{error.strerror or error}", error)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            return code
        abandon_stdout()
        return code
    except MemoryError as error:
        return report("out of memory; close other programs, or take a smaller model, --context or --memory-budget", error)
    except Exception as error:
        report(
            f"unexpected {type(error).__name__}: {error}; this is a bug in edgespec: please report it with the output of the same "
            f"command under {TRACEBACK_VARIABLE}=1",
            error,
        )
        return INTERNAL


def abandon_stdout() -> None:
    """Python flushes stdout once more at exit, and complains if that fails: give it a place to flush to."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(message: str, error: BaseException | None = None, prefix: str = "error: ") -> int:
    """Print ``edgespec: error: message`` as one line and return the exit code for bad input."""
    if error is not None and os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    click.echo(f"edgespec: {prefix}{' '.join(message.split())}", err=True)
    return BAD_INPUT
