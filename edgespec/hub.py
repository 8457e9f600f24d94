"""The Hugging Face Hub: fetching checkpoints and bundles, and publishing a bundle. Needs huggingface_hub (``edgespec[hub]``).

Transfers are huggingface_hub's own: cached, resumed, with its progress bars, its token and its offline mode. What is here
is which files are asked for, and errors that say what to do.
"""

from __future__ import annotations

import errno
import importlib.util
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from edgespec import __version__
from edgespec.bundle import bundle_key, check_hashes, open_bundle
from edgespec.cache import cache_folder
from edgespec.errors import BundleError, CheckpointError, EdgespecError, UsageError
from edgespec.files import take_place
from edgespec.manifest import MANIFEST_NAME, Manifest, read_manifest

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")
CARD = "README.md"
# The same weights in the layouts of other libraries, which some repositories have besides transformers'.
OTHER_COPIES = ["consolidated*", "original/*"]


def is_hub_id(name: str) -> bool:
    """Whether ``name`` can be a repository on the Hub: ``owner/name`` or ``name``, and no path."""
    return bool(HUB_ID.fullmatch(name)) and not name.startswith((".", "~"))


def split_revision(name: str) -> tuple[str, str | None]:
    """``owner/name@revision`` as the name and the branch, tag or commit; None where there is none."""
    repo, _, revision = name.partition("@")
    return repo, revision or None


def download(repo: str, patterns: list[str], *, instead: str, revision: str | None = None, folder: Path | None = None) -> Path:
    """Files of a repository that match ``patterns``, in the Hub's cache or in ``folder``; what is there already is not fetched.

    ``instead`` says what the user can pass where the Hub cannot be reached.

    Raises:
        CheckpointError: no such repository or revision, access restricted, or the Hub out of reach.
    """
    hub = _huggingface_hub()
    errors = hub.errors
    try:
        return Path(hub.snapshot_download(repo, revision=revision, allow_patterns=patterns, ignore_patterns=OTHER_COPIES, local_dir=folder))
    except errors.GatedRepoError as error:
        raise CheckpointError(f"{repo}: access is restricted; accept its terms on the Hub and log in with: hf auth login") from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{repo}: has no revision {revision}") from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(f"{repo}: no such folder or file, and no such model on the Hub; if it is private: hf auth login") from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"{repo}: no such folder or file, and not a name on the Hub") from error
    except Exception as error:  # a failure of the network or the disk: httpx, OSError, offline mode
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        if isinstance(error, OSError) and (full or (error.errno is not None and error.filename is not None)):  # no error of a network
            raise CheckpointError(f"{repo}: cannot be stored in {error.filename or folder or 'the cache'}: {error.strerror}") from error
        raise HubUnreachable(f"{repo}: no such folder, and the Hub cannot be reached ({type(error).__name__}); pass {instead}") from error


class HubUnreachable(CheckpointError):
    """The network, not the answer, is the problem: a copy that was fetched earlier may still serve."""


def find_bundle(name: str | Path) -> Path:
    """The folder of a bundle: ``name`` itself if it is one, else fetched from the Hub, where it is ``owner/name`` or
    ``owner/name@revision``.

    Raises:
        BundleError: neither.
    """
    path = Path(name).expanduser()
    if path.exists() or isinstance(name, Path):
        return path
    repo, revision = split_revision(name)
    if not is_hub_id(repo) or "/" not in repo:
        return path
    if importlib.util.find_spec("huggingface_hub") is None:
        raise BundleError(f"{name}: no such bundle folder; to fetch it from the Hub by this name: pip install 'edgespec[hub]'")
    return fetch_bundle(repo, revision)


def fetch_bundle(repo: str, revision: str | None = None) -> Path:
    """A bundle from the Hub, kept in the cache folder.

    Only files that its manifest lists are fetched, and each must have the hash that the manifest says (checked once).

    Raises:
        BundleError, CheckpointError: it cannot be had, or is no whole bundle.
    """
    folder = cache_folder() / "hub" / repo.replace("/", "--") / (revision or "main").replace("/", "--")
    instead = "a bundle's folder"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # The manifest alone first: it says what else to fetch, and whether the copy that is here is still the one.
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            fresh = download(repo, [MANIFEST_NAME], instead=instead, revision=revision, folder=Path(scratch) / "bundle")
            if not (fresh / MANIFEST_NAME).is_file():
                raise BundleError(f"{repo}: has no {MANIFEST_NAME}, so it is not a bundle; make one of it with: edgespec export {repo}")
            manifest = read_manifest(fresh)
            if folder.is_dir() and bundle_key(folder) == bundle_key(fresh):
                return folder
            download(repo, [entry.name for entry in manifest.files], instead=instead, revision=revision, folder=fresh)
            open_bundle(fresh)
            check_hashes(fresh, manifest)
            shutil.rmtree(fresh / ".cache", ignore_errors=True)  # huggingface_hub's notes
            take_place(fresh, folder)
    except HubUnreachable:
        if not folder.is_dir():
            raise
    except OSError as error:
        raise CheckpointError(f"{repo}: cannot be stored in {folder.parent}: {error.strerror}") from error
    return folder


def push_bundle(bundle: Path, repo: str, *, private: bool = False, revision: str | None = None, message: str | None = None) -> str:
    """Publish a bundle: its manifest, the files that this lists, and a model card. Makes the repository if there is none.

    Returns:
        The address of the commit.

    Raises:
        BundleError: the bundle is damaged. UsageError: not logged in, or no right to write there.
    """
    hub = _huggingface_hub()
    if not is_hub_id(repo) or "/" not in repo:
        raise UsageError(f"{repo}: is not a repository on the Hub; give it as owner/name")
    manifest = open_bundle(bundle)
    check_hashes(bundle, manifest)
    add = hub.CommitOperationAdd
    operations = [add(entry.name, str(bundle / entry.name)) for entry in manifest.files]
    operations += [add(MANIFEST_NAME, str(bundle / MANIFEST_NAME)), add(CARD, model_card(repo, manifest).encode())]
    api = hub.HfApi()
    try:
        api.create_repo(repo, private=private or None, exist_ok=True)
        commit = api.create_commit(repo, operations, commit_message=message or f"Bundle made by {manifest.created_by}", revision=revision)
    except hub.errors.RevisionNotFoundError as error:
        raise UsageError(f"{repo}: has no branch {revision}; make it on the Hub first") from error
    except hub.errors.HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else None
        if status in (401, 403):
            raise UsageError(f"{repo}: not allowed to write there; log in with a token that may: hf auth login") from error
        raise UsageError(f"{repo}: the Hub refused: {str(error).splitlines()[0]}") from error
    except Exception as error:  # a failure of the network: httpx, OSError, offline mode
        raise HubUnreachable(f"{repo}: the Hub cannot be reached ({type(error).__name__}); nothing was published") from error
    return str(commit.commit_url)


def model_card(repo: str, manifest: Manifest) -> str:
    """README.md of a bundle's repository: what it is, where it came from, how to run it."""
    target = manifest.target
    # Only what is a name on the Hub may claim to be a base model there.
    base = [f"base_model: {target.source.checkpoint}"] if is_hub_id(target.source.checkpoint) and "/" in target.source.checkpoint else []
    licence = [f"license: {target.source.licence}"] if target.source.licence else []
    lines = ["---", *licence, *base, "library_name: edgespec", "tags: [onnx, onnxruntime, speculative-decoding]", "---", ""]
    lines += [
        f"# {repo.split('/')[-1]}",
        "",
        f"An [edgespec](https://github.com/edgespec/edgespec) bundle, written by {manifest.created_by}.",
        "",
    ]
    for name, model in manifest.models.items():
        quantisation = model.quantisation
        weights = "float32" if quantisation.method == "none" else f"{quantisation.bits} bits, blocks of {quantisation.block_size}"
        source = model.source.derived or model.source.checkpoint
        fidelity = f"; KL {model.fidelity.kl:.4f} nats from the original" if model.fidelity else ""
        lines.append(f"* **{name}**: {model.architecture}, {weights}, from {source}{fidelity}")
    return "\n".join([*lines, "", f"    pip install 'edgespec[hub]=={__version__}'", f"    edgespec run {repo} 'Hello'", ""])


def _huggingface_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise EdgespecError("the Hub needs huggingface_hub: pip install 'edgespec[hub]'") from error
    return huggingface_hub
