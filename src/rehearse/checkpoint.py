"""Save and load: atomically, verified, and safe to read from anybody.

A file is a header (magic, format version, SHA-256 of everything but the digest itself) and a payload in torch's own
format, read with ``weights_only=True``: tensors and plain values, never code. The digest covers the whole file because
torch's loader silently accepts most single flipped bits.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import secrets
import struct
import sys
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from .distributed import Ranks, divided
from .distributed.ranks import hash_of
from .errors import CheckpointError, InvalidType, RankLost, RehearseError
from .files import check_regular, remove, replace_file
from .learners import Learner
from .monitor import Monitor
from .network.states import without_frozen

MAGIC: Final = b"REHEARSE"
VERSION: Final = 2
HEADER: Final = struct.Struct("<8sI32s")  # the same in every version, to tell another version from damage
LEARNER: Final = "learner"
FILES: Final = "files of ranks"
SHARED: Final = 100  # layers of a model, at most, that may share one tensor
OLDER: Final = "was written by an earlier version of rehearse, and this one cannot read it: load it with that version"


def save(learner: Learner | Monitor, path: str | os.PathLike[str], *, frozen: bool = True) -> None:
    """Write a learner to a file: model, optimizer, memory, random state, all that decides what it does.

    The file appears whole or not at all; an older one at the same place stays until the new one is safely written. A
    new file of a learner with a memory can be read by its owner alone: it may hold samples.

    Of a learner with ``distributed=True`` every rank must call this, with one ``path`` in a directory that all of them
    share. Each writes a file of its own beside it, and ``path`` names these files: it appears when all are written.

    Args:
        learner: The learner, or a `Monitor` with its learner and its held-out samples.
        path: The file.
        frozen: Whether the file holds the model's parameters that do not require gradients. Otherwise it has their
            digests, and loads into a learner whose model has the same ones already. Copies of the model that a method
            keeps (GDumb, iCaRL, CodeReplay, GenerativeReplay) stay whole.

    Raises:
        CheckpointError: If the file cannot be written.
        RankLost: If another rank does not save it too.
    """
    if not isinstance(learner, Learner | Monitor):
        raise InvalidType(f"save(learner, path) writes a learner; the first argument is a {type(learner).__name__}")
    watched = _learner_of(learner)
    ranks = watched.ranks
    with contextlib.nullcontext() if ranks is None else ranks.reporting():
        state = learner.state_dict()
        own = state["monitored"] if learner is not watched else state
        if not frozen:
            own["network"] = without_frozen(watched.network, own["network"])
        content = {"content": LEARNER, "package": sys.modules["rehearse"].__version__, "state": state}
        if ranks is None or ranks.count == 1:
            write_state(path, content, mode=0o600 if learner is not watched or watched.memory is not None else 0o666)
            _remove_earlier(Path(path), [])
        else:
            _write_by_ranks(ranks, Path(path), content, watched.model)
        learner.confirm(state)


def load(path: str | os.PathLike[str], into: Learner | Monitor) -> None:
    """Restore a saved learner; it resumes bit for bit.

    What several ranks have saved is loaded by as many ranks; or by any other number, or one process, among which the
    stored samples are then divided anew: a warning says so.

    Args:
        path: What `save` wrote.
        into: A learner built the way the saved one was.

    Raises:
        CheckpointError: If the file is damaged, foreign, of another version or made for another learner; the learner
            stays as it was.
        RankLost: If another rank does not load it too.
    """
    ranks = _learner_of(into).ranks
    number, count = (0, 1) if ranks is None else (ranks.rank, ranks.count)
    alone = contextlib.nullcontext()
    try:
        with alone if ranks is None else ranks.reporting():
            content = read_state(path)
            paths = _files_of(Path(path), content)
            if len(paths) == count:
                state = _state_in(paths[number], content)
            elif isinstance(into, Monitor):
                raise CheckpointError("held-out samples are not divided among another number of ranks")
            else:
                state = divided([_state_in(one, content) for one in paths], into.state_dict(), ranks)
            with alone if ranks is None else ranks.loading([one.name for one in paths], into):
                into.load_state_dict(state)
    except RankLost:
        raise
    except RehearseError as problem:
        raise CheckpointError(f"cannot load {path}: {problem}") from problem
    if len(paths) != count:
        now = "one process" if count == 1 else f"{count} ranks"
        what = "its samples are divided anew, and it does not resume bit for bit"
        warnings.warn(f"{path} was saved by {len(paths)} and is loaded by {now}: {what}", stacklevel=2)


def _learner_of(one: Learner | Monitor) -> Learner:
    return one.learner if isinstance(one, Monitor) else one


def _write_by_ranks(ranks: Ranks, path: Path, content: dict[str, Any], model: nn.Module) -> None:
    """Write the file of this rank; when all have, the first rank writes the file at ``path``, which names them."""
    token = int(ranks.agree("a save", secrets.randbits(32))[0, 0])
    names = [f"{path.name}.{token:08x}.{rank}" for rank in range(ranks.count)]
    write_state(path.with_name(names[ranks.rank]), content, mode=0o600)
    real = [tensor for tensor in model.buffers() if tensor.is_floating_point()]  # others count passes of this rank
    ranks.make_same({"weights or buffers (a hash of them)": hash_of([*model.parameters(), *real])})
    if ranks.rank == 0:
        if unseen := [name for name in names if not path.with_name(name).exists()]:
            raise CheckpointError(f"rank 0 does not find {unseen[0]} in {path.parent}: all ranks need one directory")
        write_state(path, {"content": FILES, "files": names}, mode=0o600)
    ranks.agree("a save")
    if ranks.rank == 0:
        _remove_earlier(path, names)


def _remove_earlier(path: Path, names: list[str]) -> None:
    """Remove the files of ranks that an earlier save at ``path`` named, and this one, with other ``names``, does not.

    The save is complete: what cannot be removed now is left to the next one.
    """
    earlier = re.compile(re.escape(path.name) + r"\.[0-9a-f]{8}\.\d+")
    with contextlib.suppress(OSError):
        for name in os.listdir(path.parent):
            if earlier.fullmatch(name) and name not in names:
                remove(path.with_name(name))


def _files_of(path: Path, content: dict[str, Any]) -> list[Path]:
    """Return the files that hold a saved learner, by the content of ``path``: one for each rank that has saved it."""
    if content.get("content") != FILES:
        return [path]
    names = content.get("files")
    if type(names) is not list or not all(type(name) is str and name == Path(name).name != "" for name in names):
        names = []
    if not 0 < len(names) == len(set(names)):
        raise CheckpointError(f"{path} does not name the files of the ranks")
    return [path.with_name(name) for name in names]


def _state_in(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """Return the learner's state that a file holds: in the ``content`` read already, unless that names other files."""
    content = read_state(path) if content.get("content") == FILES else content
    if content.get("content") != LEARNER or not isinstance(content.get("state"), dict):
        raise CheckpointError(f"{path} is a file of rehearse, but no saved learner")
    return dict(content["state"])


def write_state(path: str | os.PathLike[str], state: Mapping[str, Any], mode: int = 0o666) -> None:
    """Write tensors and plain values (numbers, strings, lists, tuples, dicts with plain keys) to one verified file.

    A new file gets ``mode``, less what the process masks.
    """
    buffer = io.BytesIO()
    torch.save(_plain(dict(state), "state"), buffer)
    payload = buffer.getbuffer()
    try:
        replace_file(Path(path), HEADER.pack(MAGIC, VERSION, _digest(VERSION, payload)), payload, mode=mode)
    except OSError as problem:
        raise CheckpointError(f"cannot write {path}: {problem.strerror or problem}") from problem


def read_state(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `write_state` wrote, on the CPU.

    Raises:
        CheckpointError: If there is something wrong with the file; the message says what.
    """
    try:
        check_regular(Path(path))
        content = Path(path).read_bytes()
    except (OSError, ValueError) as problem:
        raise CheckpointError(f"cannot read {path}: {getattr(problem, 'strerror', problem)}") from problem
    magic, version, digest = HEADER.unpack(content[: HEADER.size].ljust(HEADER.size, b"\0"))
    if magic != MAGIC:
        raise CheckpointError(f"{path} was not written by rehearse (or its first bytes are damaged)")
    payload = memoryview(content)[HEADER.size :]
    if _digest(version, payload) != digest:
        raise CheckpointError(f"{path} is damaged: its contents do not match its checksum (truncated or altered)")
    if version != VERSION:
        newer = f"has format version {version}, written by a newer rehearse; this one reads version {VERSION}"
        raise CheckpointError(f"{path} {newer if version > VERSION else OLDER}")
    try:
        _check_container(payload)
        state = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        _check_sizes(state, len(payload))
        read: dict[str, Any] = _plain(state, "it")
    except Exception as problem:  # what torch raises for a file that it cannot read is not documented
        raise CheckpointError(f"{path} holds more than tensors and plain values, or nothing: {problem}") from problem
    if not isinstance(read, dict):
        raise CheckpointError(f"{path} holds a {type(read).__name__}, not a state")
    return read


def _check_container(payload: memoryview) -> None:
    """Refuse what would be larger in memory than it is on the disk."""
    with zipfile.ZipFile(io.BytesIO(payload)) as container:
        records = container.infolist()
    stored = all(record.compress_type == zipfile.ZIP_STORED for record in records)
    if not stored or sum(record.file_size for record in records) > len(payload):
        raise CheckpointError("its records are compressed, or share their bytes")


def _check_sizes(state: Any, size: int) -> None:
    """Refuse tensors without the data that they declare, and parts that are repeated until they fill the memory."""
    parts, seen, declared = [state], 1, 0
    while parts:
        part = parts.pop()
        if isinstance(part, dict | list | tuple):
            seen += len(part)
            if seen > size:
                raise CheckpointError("it has more parts than bytes")
            parts.extend(part.values() if isinstance(part, dict) else part)
        elif isinstance(part, Tensor):
            if type(part) is not Tensor or part.is_nested or part.layout != torch.strided or part.device.type != "cpu":
                raise CheckpointError(f"it holds a tensor of another kind: {part.layout} on {part.device}")
            own = part.numel() * part.element_size()
            declared += own
            if part.is_quantized or part.untyped_storage().nbytes() < own or declared > SHARED * size:
                raise CheckpointError(f"a tensor of shape {tuple(part.shape)} is larger than the data that it has")


def _digest(version: int, payload: memoryview) -> bytes:
    hashed = hashlib.sha256(MAGIC + struct.pack("<I", version))
    hashed.update(payload)
    return hashed.digest()


def _plain(value: Any, where: str) -> Any:
    """Return the value as it can be read back safely; refusing here is better than refusing at loading."""
    if isinstance(value, Tensor):
        value = value.detach()
        # torch writes the storage behind a view: more, or of an expanded one less
        own = value.numel() * value.element_size()
        return value if value.untyped_storage().nbytes() == own else value.clone(memory_format=torch.contiguous_format)
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (bool, int, float, str):
                raise InvalidType(f"{where} has the key {key!r}; keys must be strings or numbers to be saved")
        return {key: _plain(part, f"{where}[{key!r}]") for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(part, f"{where}[{i}]") for i, part in enumerate(value))
    raise InvalidType(f"{where} is a {type(value).__name__}; only tensors and plain values can be saved")
