"""CPU time of one step of this version against another commit of the repository.

    python benchmarks/versions.py 3a0e9c7
    python benchmarks/versions.py HEAD~20 --only MLP --blocks 41

Each version runs in a process of its own with one thread and the installed dependencies; its sources are taken from
git (uncommitted changes of this version are included). The subjects take turns in blocks; a ratio is the median of the
ratios of blocks, with the quartiles. Below 1 this version is faster.

Kernels: `with` uses the compiled kernels. Earlier versions compile their own when first used; versions with
rehearse-kernels as a distribution use the one that is installed. `without` does without them. `plain` also disables
the folder fast/ of this version (REHEARSE_FAST=0).

Predictions of one sample are also compared with the bare model in eval mode, in this version and in the other.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import subjects
from elsewhere import SOURCE, Elsewhere, Timed
from measuring import Times, has_bfloat16, interleaved

KERNELS: dict[str, dict[str, Any]] = {
    "with": {},
    "without": {"without": ["rehearse_kernels"], "environment": {"REHEARSE_KERNELS": "torch"}},
    "plain": {"without": ["rehearse_kernels"], "environment": {"REHEARSE_KERNELS": "torch", "REHEARSE_FAST": "0"}},
}


@dataclass(frozen=True)
class Subject:
    """A step to compare: a function of `subjects` with its arguments, and how many steps a block has."""

    name: str
    steps: int
    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    def made(self, process: Elsewhere) -> Timed:
        """Return the subject in a process."""
        return process.make(self.function, *self.arguments, **self.keywords)


def subject(name: str, steps: int, function: Any, *arguments: Any, **keywords: Any) -> Subject:
    """Return a subject."""
    return Subject(name, steps, function, arguments, keywords)


def all_subjects() -> Iterator[Subject]:
    """Yield what this processor can compare."""
    yield subject("ER, MLP", 40, subjects.replay, "mlp", mir=False)
    yield subject("ER-MIR, MLP", 40, subjects.replay, "mlp", mir=True)
    for precision in ("float32", *(["auto", "bfloat16"] if has_bfloat16() else [])):
        for name, mir in (("ER", False), ("ER-MIR", True)):
            yield subject(f"{name}, ResNet, {precision}", 1, subjects.replay, "resnet", mir=mir, precision=precision)
    for precision in ("float32", *(["bfloat16-scoring"] if has_bfloat16() else [])):
        layer = {"precision": precision}
        yield subject(f"GEN-MIR, {precision}", 1, subjects.generative, "gen-mir", layer, replaying=True)
    for precision in ("float32", *(["bfloat16"] if has_bfloat16() else [])):
        arguments: Any = ("ae-mir", precision)
        yield subject(f"AE-MIR, classifier, {precision}", 1, subjects.coded_classifier, *arguments, full=True)
        yield subject(f"AE-MIR, autoencoder, {precision}", 4, subjects.CodedAutoencoder, *arguments, full=True)
    for name, kind in (("MLP", "mlp"), ("LayerNorm", "layer-norm")):
        for what, bare in (("predict", False), ("bare model", True)):
            yield subject(f"{what}, one sample, {name}", 400, subjects.predict, kind, bare=bare)


def sources(commit: str, folder: Path) -> Path:
    """Extract the sources of a commit and return where they are."""
    command = ["git", "-C", str(SOURCE.parent), "archive", commit, "src"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"there is no commit {commit!r} here: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def measured(chosen: list[Subject], kernels: list[str], other: Path, blocks: int) -> Times:
    """Return the times of all subjects, by subject, kernels and version."""
    with ExitStack() as processes:
        made: dict[str, Timed] = {}
        steps: dict[str, int] = {}
        own = {
            (mode, version): processes.enter_context(Elsewhere(source, **KERNELS[mode]))
            for mode in kernels
            for version, source in (("this", SOURCE), ("other", other))
        }
        for one in chosen:
            for (mode, version), process in own.items():
                name = f"{one.name} {mode} {version}"
                made[name], steps[name] = one.made(process), one.steps
        print("measuring", file=sys.stderr, flush=True)
        return interleaved(made, repeats=blocks, steps=steps)


def table(chosen: list[Subject], kernels: list[str], times: Times, commit: str) -> Iterator[str]:
    """Yield the rows of the result."""
    yield f"| one step, ms | kernels | {commit} | this version | this / {commit} |"
    yield "|---|---|--:|--:|--:|"
    for one in chosen:
        for mode in kernels:
            this, other = (f"{one.name} {mode} {version}" for version in ("this", "other"))
            cells = f"{times.median(other):.3f} | {times.median(this):.3f} | {times.ratio(this, other)}"
            yield f"| {one.name} | {mode} | {cells} |"
    for one in chosen:
        if one.name.startswith("predict"):
            for mode in kernels:
                both = [
                    str(times.ratio(name, name.replace("predict", "bare model")))
                    for name in (f"{one.name} {mode} {version}" for version in ("other", "this"))
                ]
                yield f"| {one.name} / bare model | {mode} | {' | '.join(both)} | |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the version to compare with: anything that git can resolve")
    parser.add_argument("--blocks", type=int, default=21, help="turns of each subject (default: %(default)s)")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only subjects whose name contains one of these")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=["with", "without"], help="see above")
    parser.add_argument("--quick", action="store_true", help="two steps of the MLP, to see that the script works")
    arguments = parser.parse_args()
    chosen, blocks, kernels = list(all_subjects()), arguments.blocks, arguments.kernels
    if arguments.only:
        chosen = [one for one in chosen if any(text in one.name for text in arguments.only)]
    if arguments.quick:
        chosen, blocks, kernels = [replace(one, steps=1) for one in chosen if "MLP" in one.name], 2, ["with"]
    if not chosen:
        raise SystemExit(f"no subject has {' or '.join(arguments.only)} in its name")
    with tempfile.TemporaryDirectory() as folder:
        times = measured(chosen, kernels, sources(arguments.commit, Path(folder)), blocks)
    print("\n".join(table(chosen, kernels, times, arguments.commit)))


if __name__ == "__main__":
    main()
