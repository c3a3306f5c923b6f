"""Choosing hyper-parameters on the validation split, with Optuna; extra ``rehearse-torch[tune]``.

A trial is a setting, tried over seeds; its value is the mean validation accuracy after the last task. The test sets
play no part. Trials are kept in a journal and runs in a store, both under ``out``: the same call resumes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import inf, prod
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from ...errors import DataError, InvalidInput, RehearseError
from ...files import write_whole
from ..experiment import Settings
from ..extras import needs
from ..methods import resolve
from ..spec import Spec
from .events import Event, Failed, Finished
from .local import cores, run_all
from .spaces import Range, Space, as_layer, space_of
from .store import Store
from .work import locked

SEEDS = 3  # a setting, as in the published search
INTERRUPTED = "interrupted"  # by what a setting was ended from outside before: the second time it has failed
STARTUP = 3  # settings that are tried to their end before any is given up


@dataclass(frozen=True)
class Tried:
    """A setting that was tried: the mean validation accuracy over the seeds that were run."""

    number: int
    chosen: Mapping[str, Any]
    value: float | None
    state: Literal["complete", "pruned", "failed"]
    error: str = ""


@dataclass(frozen=True)
class Search:
    """What is searched, and where it is kept."""

    method: str
    stream: str
    out: Path
    fixed: Mapping[str, Any]
    """Settings that are not searched, as a layer of a spec."""
    seeds: int = SEEDS
    ranges: Space = field(default_factory=dict)
    """What is searched instead of the method's own space, if anything."""

    @property
    def name(self) -> str:
        """Another for every search whose trials do not compare: what is fixed stands in it, at length or as a hash."""
        said = {**self.fixed, **({"seeds": self.seeds} if self.seeds != SEEDS else {})}
        said |= {"ranges": repr(self.ranges)} if self.ranges else {}
        words = [f"{name}-{value}" for name, value in sorted(said.items()) if isinstance(value, int)]
        if len(words) < len(said):
            words = [hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:8]]
        return "-".join([self.method, self.stream, *words])

    @property
    def best_file(self) -> Path:
        return self.out / f"{self.name}.toml"

    def specs(self, chosen: Mapping[str, Any]) -> list[Spec]:
        layer = as_layer(self.method, chosen)
        return [resolve(self.method, self.stream, self.fixed, layer, {"seed": seed}) for seed in range(self.seeds)]


def tune(
    search: Search, trials: int, settings: Settings | None = None, jobs: int | None = None
) -> Iterator[Event | Tried]:
    """Try settings until ``trials`` of them have been tried, those of earlier calls included; writes the best.

    A trial whose first seeds lie below the median of the others at that point is given up. Its first seed goes alone
    once there are others to hold it against, however many may run at a time.
    """
    with needs("optuna", "tune"):
        import optuna
    if trials < 1 or search.seeds < 1:
        raise InvalidInput(f"trials is {trials} and seeds {search.seeds}; at least one of each is needed")
    if jobs is not None and jobs < 1:
        raise InvalidInput(f"jobs is {jobs}; at least one run at a time is needed")
    store = Store(search.out)
    store.check_writable()
    jobs = cores() if jobs is None else jobs
    with locked(search.out / f"{search.name}.lock", patience=0):
        study = _Study(optuna, search)
        study.write_best()  # a call before this one may have been killed before it could
        while len(study.tried()) < min(trials, study.size):
            yield from study.try_next(store, settings or Settings(), jobs)
            study.write_best()


class _Study:
    """A search in Optuna's hands, kept in its journal; a trial that a killed process left is tried again."""

    def __init__(self, optuna: Any, search: Search) -> None:
        self.optuna, self.search, self.state = optuna, search, optuna.trial.TrialState
        fixed = search.fixed.keys() | search.fixed.get("options", {}).keys()
        space = search.ranges or space_of(search.method)
        self.space: Space = {name: values for name, values in space.items() if name not in fixed}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        journal = optuna.storages.journal.JournalFileBackend(str(search.out / f"{search.name}.journal"))
        # trials compare only where everything that is not searched is the same
        alike = json.dumps({"fixed": dict(search.fixed), "seeds": search.seeds}, sort_keys=True)
        self.study = optuna.create_study(
            study_name=f"{search.name} {alike}", storage=optuna.storages.JournalStorage(journal),
            direction="maximize", load_if_exists=True, pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
        )  # fmt: skip
        for trial in self._trials(self.state.RUNNING):
            self.study.tell(trial.number, state=self.state.FAIL)
            if trial.params:
                self.study.enqueue_trial(trial.params, user_attrs=trial.user_attrs)

    @property
    def size(self) -> float:
        """How many settings there are."""
        return prod(inf if isinstance(values, Range) else len(values) for values in self.space.values())

    def _trials(self, *states: Any) -> list[Any]:
        return list(self.study.get_trials(deepcopy=False, states=states or None))

    def tried(self) -> list[Any]:
        """The trials that were carried to an end of their own."""
        ended = (self.state.COMPLETE, self.state.PRUNED)
        return [trial for trial in self._trials() if trial.state in ended or "error" in trial.user_attrs]

    def _suggest(self, trial: Any) -> dict[str, Any]:
        return {
            name: values.suggest(trial, name) if isinstance(values, Range) else trial.suggest_categorical(name, values)
            for name, values in self.space.items()
        }

    def _next(self) -> tuple[Any, dict[str, Any]]:
        """A trial of a setting that was not tried: it depends on what was, and on nothing else."""
        tried, samplers = self.tried(), self.optuna.samplers
        for attempt in count():
            kind = samplers.RandomSampler if attempt else partial(samplers.TPESampler, n_startup_trials=5)
            self.study.sampler = kind(seed=len(tried) + 1000 * attempt)
            trial = self.study.ask()
            chosen = self._suggest(trial)
            if all(trial.params != earlier.params for earlier in tried):
                return trial, chosen
            self.study.tell(trial, state=self.state.FAIL)
        raise AssertionError("unreachable: a space with an untried setting gives it in the end")

    def try_next(self, store: Store, settings: Settings, jobs: int) -> Iterator[Event | Tried]:
        """Run a setting under its seeds, as far as it is worth it."""
        trial, chosen = self._next()
        specs, values = self.search.specs(chosen), dict[int, float]()
        while len(values) < len(specs):
            alone = not values and len(self._trials(self.state.COMPLETE)) >= STARTUP
            handful = specs[len(values) :][: 1 if alone else jobs]
            for event in run_all(handful, store, settings, jobs):
                yield event
                if isinstance(event, Failed) and event.damaged:
                    raise DataError(event.error)  # nothing was tried
                if isinstance(event, Failed) and event.interrupted and INTERRUPTED not in trial.user_attrs:
                    trial.set_user_attr(INTERRUPTED, event.error)
                    raise RehearseError(event.error)  # the trial stays open, and is tried again: once
                if isinstance(event, Failed):
                    trial.set_user_attr("error", event.error)
                    self.study.tell(trial, state=self.state.FAIL)
                    yield Tried(trial.number, chosen, None, "failed", event.error)
                    return
                if isinstance(event, Finished):
                    values[event.spec.seed] = _validation(event.result)
            for seeds in range(len(values) - len(handful) + 1, len(values) + 1):
                trial.report(fmean(values[seed] for seed in range(seeds)), seeds)
            if len(values) < len(specs) and trial.should_prune():
                self.study.tell(trial, state=self.state.PRUNED)
                yield Tried(trial.number, chosen, fmean(values.values()), "pruned")
                return
        self.study.tell(trial, fmean(values.values()))
        yield Tried(trial.number, chosen, fmean(values.values()), "complete")

    def write_best(self) -> None:
        """Write the best setting so far as a spec for ``rehearse run --spec``."""
        search, complete = self.search, self._trials(self.state.COMPLETE)
        if not complete:
            return
        best = max(complete, key=lambda trial: (trial.value, -trial.number))
        layer = {**search.fixed, **as_layer(search.method, best.params)}
        options = {**search.fixed.get("options", {}), **layer.pop("options", {})}
        lines = [
            f"# The best of {len(self.tried())} settings by validation accuracy: {best.value:.4f}, "
            f"the mean over {search.seeds} seed{'s' if search.seeds > 1 else ''} (trial {best.number}).",
            f"method = {json.dumps(search.method)}",
            f"stream = {json.dumps(search.stream)}",
            *(f"{name} = {json.dumps(value)}" for name, value in layer.items()),
            *(["", "[options]"] if options else []),
            *(f"{name} = {json.dumps(value)}" for name, value in options.items()),
        ]
        write_whole(search.best_file, "\n".join(lines) + "\n")


def _validation(result: Mapping[str, Any]) -> float:
    value = result["metrics"].get("validation_accuracy")
    if value is None:
        raise InvalidInput(f"{result['spec']['stream']} has no validation sets; there is nothing to choose by")
    return float(value)
