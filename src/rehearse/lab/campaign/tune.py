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
        study = _open(optuna, search)
        _write_best(optuna, study, search)  # a call before this one may have been killed before it could
        while len(_tried(optuna, study)) < min(trials, _size(_space(search))):
            trial, chosen = _next(optuna, study, _space(search))
            yield from _try(optuna, study, trial, chosen, search, store, settings or Settings(), jobs)
            _write_best(optuna, study, search)


def _next(optuna: Any, study: Any, space: Space) -> tuple[Any, dict[str, Any]]:
    """A trial of a setting that was not tried: it depends on what was, and on nothing else."""
    tried = _tried(optuna, study)
    for attempt in count():
        kind = optuna.samplers.RandomSampler if attempt else partial(optuna.samplers.TPESampler, n_startup_trials=5)
        study.sampler = kind(seed=len(tried) + 1000 * attempt)
        trial = study.ask()
        chosen = {
            name: values.suggest(trial, name) if isinstance(values, Range) else trial.suggest_categorical(name, values)
            for name, values in space.items()
        }
        if all(trial.params != earlier.params for earlier in tried):
            return trial, chosen
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    raise AssertionError("unreachable: a space with an untried setting gives it in the end")


def _size(space: Space) -> float:
    """How many settings there are."""
    return prod(inf if isinstance(values, Range) else len(values) for values in space.values())


def _space(search: Search) -> Space:
    fixed = search.fixed.keys() | search.fixed.get("options", {}).keys()
    space = search.ranges or space_of(search.method)
    return {name: values for name, values in space.items() if name not in fixed}


def _open(optuna: Any, search: Search) -> Any:
    """The study in its journal; a trial that a killed process left is tried again."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    journal = optuna.storages.journal.JournalFileBackend(str(search.out / f"{search.name}.journal"))
    storage = optuna.storages.JournalStorage(journal)
    study = optuna.create_study(
        study_name=_identity(search), storage=storage, direction="maximize", load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
    )  # fmt: skip
    for trial in study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING]):
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if trial.params:
            study.enqueue_trial(trial.params, user_attrs=trial.user_attrs)
    return study


def _identity(search: Search) -> str:
    """Trials compare only where everything that is not searched is the same."""
    return f"{search.name} {json.dumps({'fixed': dict(search.fixed), 'seeds': search.seeds}, sort_keys=True)}"


def _tried(optuna: Any, study: Any) -> list[Any]:
    """The trials that were carried to an end of their own."""
    ended = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    return [t for t in study.get_trials(deepcopy=False) if t.state in ended or "error" in t.user_attrs]


def _try(
    optuna: Any,
    study: Any,
    trial: Any,
    chosen: Mapping[str, Any],
    search: Search,
    store: Store,
    settings: Settings,
    jobs: int,
) -> Iterator[Event | Tried]:
    specs, values = search.specs(chosen), dict[int, float]()
    while len(values) < len(specs):
        complete = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
        alone = not values and len(complete) >= STARTUP
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
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
                yield Tried(trial.number, chosen, None, "failed", event.error)
                return
            if isinstance(event, Finished):
                values[event.spec.seed] = _validation(event.result)
        for seeds in range(len(values) - len(handful) + 1, len(values) + 1):
            trial.report(fmean(values[seed] for seed in range(seeds)), seeds)
        if len(values) < len(specs) and trial.should_prune():
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            yield Tried(trial.number, chosen, fmean(values.values()), "pruned")
            return
    study.tell(trial, fmean(values.values()))
    yield Tried(trial.number, chosen, fmean(values.values()), "complete")


def _validation(result: Mapping[str, Any]) -> float:
    value = result["metrics"].get("validation_accuracy")
    if value is None:
        raise InvalidInput(f"{result['spec']['stream']} has no validation sets; there is nothing to choose by")
    return float(value)


def _write_best(optuna: Any, study: Any, search: Search) -> None:
    """The best setting so far as a spec for ``rehearse run --spec``."""
    complete = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])
    if not complete:
        return
    best = max(complete, key=lambda trial: (trial.value, -trial.number))
    layer = {**search.fixed, **as_layer(search.method, best.params)}
    options = {**search.fixed.get("options", {}), **layer.pop("options", {})}
    lines = [
        f"# The best of {len(_tried(optuna, study))} settings by validation accuracy: {best.value:.4f}, "
        f"the mean over {search.seeds} seed{'s' if search.seeds > 1 else ''} (trial {best.number}).",
        f"method = {json.dumps(search.method)}",
        f"stream = {json.dumps(search.stream)}",
        *(f"{name} = {json.dumps(value)}" for name, value in layer.items()),
        *(["", "[options]"] if options else []),
        *(f"{name} = {json.dumps(value)}" for name, value in options.items()),
    ]
    write_whole(search.best_file, "\n".join(lines) + "\n")
