"""Save and load: atomically, verified, and safe to read from anybody.

A file is a header (magic, format version, SHA-256 of everything but the digest itself) and a payload in torch's own
format, read with ``weights_only=True``: tensors and plain values, never code. The digest covers the whole file because
torch's loader silently accepts most single flipped bits.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from .errors import CheckpointError, InvalidType, RehearseError
from .files import check_regular, replace_file
from .learners import Learner
from .monitor import Monitor
from .network.states import without_frozen

MAGIC: Final = b"REHEARSE"
VERSION: Final = 2
HEADER: Final = struct.Struct("<8sI32s")  # the same in every version, to tell another version from damage
LEARNER: Final = "learner"
SHARED: Final = 100  # layers of a model, at most, that may share one tensor
OLDER: Final = "was written by an earlier version of rehearse, and this one cannot read it: load it with that version"


def save(learner: Learner | Monitor, path: str | os.PathLike[str], *, frozen: bool = True) -> None:
    """Write a learner to a file: model, optimizer, memory, random state, all that decides what it does.

    The file appears whole or not at all; an older one at the same place stays until the new one is safely written. A
    new file of a learner with a memory can be read by its owner alone: it may hold samples.

    Args:
        learner: The learner, or a `Monitor` with its learner and its held-out samples.
        path: The file.
        frozen: Whether the file holds the model's parameters that do not require gradients. Otherwise it has their
            digests, and loads into a learner whose model has the same ones already.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    if not isinstance(learner, Learner | Monitor):
        raise InvalidType(f"save(learner, path) writes a learner; the first argument is a {type(learner).__name__}")
    state, watched = learner.state_dict(), learner.learner if isinstance(learner, Monitor) else learner
    own = state["monitored"] if learner is not watched else state
    if not frozen:
        own["network"] = without_frozen(watched.network, own["network"])
    samples = learner is not watched or watched.memory is not None
    write_state(
        path,
        {"content": LEARNER, "package": sys.modules["rehearse"].__version__, "state": state},
        mode=0o600 if samples else 0o666,
    )
    learner.confirm(state)


def load(path: str | os.PathLike[str], into: Learner | Monitor) -> None:
    """Restore a saved learner; it resumes bit for bit.

    Args:
        path: What `save` wrote.
        into: A learner built the way the saved one was.

    Raises:
        CheckpointError: If the file is damaged, foreign, of another version or made for another learner; the learner
            stays as it was.
    """
    content = read_state(path)
    if content.get("content") != LEARNER or not isinstance(content.get("state"), dict):
        raise CheckpointError(f"{path} is a file of rehearse, but no saved learner")
    try:
        into.load_state_dict(content["state"])
    except RehearseError as problem:
        raise CheckpointError(f"cannot load {path}: {problem}") from problem


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
