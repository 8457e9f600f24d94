"""Where a bundle is filled: a folder beside its place that becomes it when all went well, and disappears otherwise."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from edgespec.errors import ExportError
from edgespec.files import advice, take_place
from edgespec.manifest import MANIFEST_NAME


def check_output(output: Path, force: bool) -> None:
    """Refuse a place that is taken or cannot be written, before any work.

    Raises:
        ExportError: something is there and ``force`` is not set or it is no bundle, or its parent cannot be written.
    """
    if output.exists() and not force:
        raise ExportError(f"{output}: exists already; choose another folder or pass --force")
    if output.exists() and not (output / MANIFEST_NAME).is_file() and (not output.is_dir() or any(output.iterdir())):
        raise ExportError(f"{output}: is not a bundle, so --force will not replace it")
    above = next(parent for parent in output.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ExportError(f"{output}: cannot be written, since {above} is not a folder that you may write to")


@contextlib.contextmanager
def staged(output: Path, force: bool) -> Iterator[Path]:
    """Yields the folder to fill; on leaving it takes ``output``'s place, an older bundle staying until then.

    Raises:
        ExportError: the disk is full, or the place cannot be written.
    """
    with _made_parents(output.absolute().parent):
        try:
            stage = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
        except OSError as error:
            raise ExportError(f"{output.parent}: cannot be written: {error.strerror}") from error
        try:
            yield stage
            stage.chmod(0o755)
            check_output(output, force)
            take_place(stage, output)
        except OSError as error:
            raise ExportError(f"{output}: writing the bundle failed: {error.strerror or error}{advice(error)}") from error
        finally:
            shutil.rmtree(stage, ignore_errors=True)


@contextlib.contextmanager
def _made_parents(folder: Path) -> Iterator[None]:
    """Make the folders above the bundle, and remove those again when the export fails."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ExportError(f"{folder}: cannot be made: {error.strerror}") from error
    except BaseException:
        for parent in missing:
            with contextlib.suppress(OSError):  # somebody else has put something there
                parent.rmdir()
        raise
