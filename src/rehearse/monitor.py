"""Monitor: how well a learner does on its stream, what that costs, and whether the learner forgets."""

from __future__ import annotations

import copy
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .batch import Batch, Step, Tree, as_tensor, kind_of, pick, tree_leaves, tree_named
from .checks import check, check_not_negative, check_positive, count, needs_two_samples, numbers, optional
from .described import Described
from .errors import InvalidInput, InvalidType
from .learners import Learner
from .memory import ReservoirMemory
from .memory.columns import ID, checked_samples, no_ids, one_id_per_sample
from .random import numpy_generator
from .serving import decided
from .undo import all_or_nothing, assign

LOG: Final = logging.getLogger("rehearse.monitor")
RECENT: Final = 1000  # predictions and steps that recent accuracy and times are of
UNSEEN: Final[dict[str, Any]] = {"heldout_accuracy": None, "forgetting": None, "p_value": None, "groups": {}}
Correct = Callable[[Tree, Tree], Tensor]
Array = NDArray[np.float64]


class Tally(NamedTuple):
    """What a monitor has counted; ``looked`` is the number of samples at its last look."""

    samples: int = 0
    correct: int = 0
    looks: int = 0
    looked: int = 0
    alarm: bool = False
    alarms: int = 0
    drifts: int = 0


@final
class Monitor(Described):
    """A learner with held-out samples, which show whether it forgets.

    `observe` predicts a batch, withholds a share of it, and lets the learner observe the rest. Withheld samples are in
    a reservoir of their own: a uniform sample of the stream that the learner never sees. A *look*, every ``every``
    samples, predicts all of them. Each sample remembers whether it was predicted correctly at its look 1, 2, 4, 8, …

    **The alarm** compares these looks with the present one. Of the held-out samples that had their first look earlier
    (their second, their fourth, …), some were correct then and are wrong now (*lost*), others the reverse (*gained*).
    A learner that does not forget gains at least as many as it loses. The one-sided sign test (McNemar's exact test)
    gives the probability that so many of them are lost if both are equally likely. The k-th look, with L such
    comparisons, raises the alarm if one of them is below ``false_alarms / (k (k + 1) L)``, and the accuracy fell by
    ``drop`` at least. Over all looks that adds up to ``false_alarms``, however long the stream is. No task is needed.

    A sample of which the loss ignores all targets is neither counted nor withheld.

    All methods hold the learner's lock. With ``share=0`` the learner learns what it would learn without a monitor.
    """

    def __init__(
        self, learner: Learner, *, share: float = 0.1, capacity: int = 500, every: int = 200, by: Collection[str] = (),
        correct: Correct | None = None, false_alarms: float = 0.01, drop: float = 0.05, detector: Any = None,
        notify: Callable[[str, Monitor], object] | None = None, writer: Any = None, seed: int = 0,
    ) -> None:  # fmt: skip
        """Watch a learner; from now on call the monitor's `observe` and `forget` instead of the learner's.

        Args:
            learner: The learner.
            share: The probability with which a sample is withheld while the reservoir has room.
            capacity: The largest number of held-out samples. Once it is reached, ever fewer samples are withheld.
            every: The number of samples between two looks; at least as many as are held out, so that looking costs no
                more than one prediction per sample.
            by: Names of columns (of integers) by which accuracy is reported, beside class and task.
            correct: Gets predictions and targets, returns booleans, all of which must hold for a sample; by default
                whether they are equal, in all heads and wherever the loss ignores nothing. Needed for real numbers.
            false_alarms: The probability of a false alarm over the whole stream, if held-out samples are independent.
            drop: The smallest fall of the accuracy that raises the alarm.
            detector: Gets each prediction's error, 1 or 0: a drift detector of river, or a function that returns
                whether there is a drift. Its state is not saved.
            notify: Called with ``alarm`` when the alarm is raised and with ``drift`` at each drift, and the monitor. A
                look comes before a step, a drift after it.
            writer: TensorBoard's `SummaryWriter`, which gets all numbers at each look.
            seed: Decides which samples are withheld.
        """
        if not isinstance(learner, Learner):
            raise InvalidType(f"a monitor watches a learner; this is a {type(learner).__name__}")
        check_positive(every=every)
        check_not_negative(share=share, drop=drop, false_alarms=false_alarms)
        if share >= 1 or isinstance(by, str):
            raise InvalidInput(f"share is {share!r} and by is {by!r}; they must be below 1, and a list of names")
        self.learner, self.share, self.every, self.by, self.seed = learner, share, every, tuple(by), seed
        self.correct, self.false_alarms, self.drop = correct, false_alarms, drop
        self.detector, self.notify, self.writer = detector, notify, writer
        self.held = ReservoirMemory(capacity, seed=seed)
        self.tally, self._seen, self._recent = Tally(), UNSEEN, torch.zeros(0, dtype=torch.bool)
        self._times = deque[tuple[float, float]](maxlen=RECENT)

    # ------------------------------------------------------------------------------------------------------- learning

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None, **columns: Any) -> Step | None:
        """Predict a batch, withhold some of it, and let the learner observe the rest.

        Args:
            x: Inputs.
            y: Targets.
            task: The task of the batch or of each sample, if it is known.
            id: An id for each sample, by which `forget` finds it.
            columns: Those named in ``by``; the learner gets the others.

        Returns:
            What the learner returned, or None if all samples were withheld.
        """
        if missing := [name for name in self.by if name not in columns]:
            raise InvalidInput(f"accuracy is reported by {missing[0]!r}: observe(x, y, {missing[0]}=...)")
        own = {name: as_tensor(columns.pop(name), name).cpu() for name in self.by}
        batch = checked_samples(x, y, task, {}, self.learner.collated)
        names = no_ids(len(batch)) if id is None else one_id_per_sample(id, len(batch))
        batch = replace(batch, columns={ID: names, **own})
        learn: Callable[..., Step] = self.learner.observe
        with self.learner.lock:
            self.held.check(filled := self.learner.filled(batch))
            start, last = time.perf_counter(), self.tally
            if last.samples - last.looked >= max(self.every, len(self.held)):
                self.look()
            correct, judged = self._correct(batch), self._judged(batch)
            with all_or_nothing(self.held) as commit:
                kept = self._withhold(filled, judged)
                some, ids = batch.take(kept), None if id is None else batch.columns[ID][kept]
                columns = {name: pick(as_tensor(values, name), kept) for name, values in columns.items()}
                learning = time.perf_counter()
                step = learn(some.x, some.y, some.task, ids, **columns) if len(kept) else None
                seconds = time.perf_counter() - learning
                correct = correct[judged]
                samples, right = last.samples + len(correct), last.correct + int(correct.sum())
                tally = self.tally._replace(samples=samples, correct=right)
                commit(assign(self, tally=tally, _recent=torch.cat([self._recent, correct])[-RECENT:]))
            self._times.append((seconds, time.perf_counter() - start - seconds))
            self._detect([] if self.detector is None else (~correct).int().tolist())
        return step

    def _withhold(self, batch: Batch, judged: Tensor) -> Tensor:
        """Hold samples out, and return the positions of the others.

        A sample that the reservoir does not keep is not withheld, nor one that cannot be judged.
        """
        held = numpy_generator(self.seed, f"withhold {self.tally.samples}").random(len(batch)) < self.share
        held &= judged.numpy()
        some = torch.from_numpy(np.flatnonzero(held))
        if len(batch) - len(some) < 2 and needs_two_samples(self.learner.model):
            held[:] = False
        elif len(some):
            candidates = batch.take(some)
            held[some[self.held.keep(candidates, self.held.check(candidates)) < 0]] = False
        return torch.from_numpy(np.flatnonzero(~held))

    def _correct(self, batch: Batch) -> Tensor:
        logits, y = self.learner.logits(batch.x), batch.to(self.learner.device).y
        predicted = decided(logits, kind_of(y, logits, self.learner.progress.kind))
        heads = (self.correct or self._equal)(predicted, y)
        return torch.cat([head.reshape(len(batch), -1) for head in tree_leaves(heads)], 1).all(1).cpu()

    def _judged(self, batch: Batch) -> Tensor:
        """Return which samples have a target that the loss does not ignore."""
        ignored = getattr(self.learner.loss, "ignored", None)
        if ignored is None:
            return torch.ones(len(batch), dtype=torch.bool)
        return torch.cat([(y != ignored).reshape(len(batch), -1) for y in tree_leaves(batch.y)], 1).any(1).cpu()

    def _equal(self, predicted: Tree, y: Tree) -> Tree:
        p, t, ignored = tree_named(predicted), tree_named(y), getattr(self.learner.loss, "ignored", None)
        if p.keys() != t.keys() or any(p[k].is_floating_point() or p[k].numel() != t[k].numel() for k in p):
            what = "these targets are real numbers, or differ in structure from the predictions"
            raise InvalidInput(f"{what}; say when a prediction is right: Monitor(correct=...)")
        return tuple((p[k].reshape(t[k].shape) == t[k]) | (t[k] == ignored) for k in p)

    def _detect(self, errors: list[int]) -> None:
        for error in errors:
            answer = getattr(self.detector, "update", self.detector)(error)
            if getattr(self.detector, "drift_detected", answer):
                self.tally = self.tally._replace(drifts=self.tally.drifts + 1)
                self._notify("drift")

    def _notify(self, what: str) -> None:
        LOG.warning("%s by sample %d", what, self.tally.samples)
        if self.notify is not None:
            self.notify(what, self)

    def forget(self, *, ids: Any = None, predicate: Callable[[Batch], Tensor] | None = None) -> int:
        """Remove samples for good, held-out ones and the learner's; return how many. See `Learner.forget`."""
        with self.learner.lock:
            count = self.held.forget(ids=ids, predicate=predicate)
            return count + (0 if self.learner.memory is None else self.learner.forget(ids=ids, predicate=predicate))

    # -------------------------------------------------------------------------------------------------------- looking

    def look(self) -> None:
        """Predict all held-out samples now; `observe` does it from time to time."""
        with self.learner.lock:
            with all_or_nothing(self.held) as commit:
                before, seen, alarm, looks = self.tally, UNSEEN, False, self.tally.looks + 1
                if len(self.held):
                    seen, alarm = self._look(looks)
                alarms, looked = before.alarms + (alarm > before.alarm), before.samples
                tally = before._replace(looks=looks, looked=looked, alarm=alarm, alarms=alarms)
                commit(assign(self, _seen=seen, tally=tally))
            report = self.report()
            LOG.info("%s", report)
            for name, labels, value in _numbers(report) if self.writer is not None else ():
                self.writer.add_scalar("/".join(["rehearse", name, *labels]), value, before.samples)
            if alarm > before.alarm:
                self._notify("alarm")

    def _look(self, number: int) -> tuple[dict[str, Any], bool]:
        """Return accuracy and forgetting of the held-out samples, over all and by group, and whether to raise alarm."""
        held, slots = self.held, self.held.slots()
        (samples,) = self.learner.plain.cut(held.get(slots))
        correct, looks = self._correct(samples), held.fact("looks", slots, 0.0) + 1
        held.note("looks", slots, looks)
        now, falls = correct.double().numpy(), list[Array]()
        for age in (2**level for level in range(int(looks.max()).bit_length())):
            then, due = held.fact(f"correct at look {age}", slots, 0.0), looks == age
            held.note(f"correct at look {age}", slots[due], correct[due])
            falls.append(np.where(looks > age, then.double().numpy() - now, np.nan))  # 1 lost, −1 gained, NaN too young
        looked = number * (number + 1) * len(falls)
        tests = [(fall, min(1.0, looked * chance)) for fall, chance in map(_sign_test, falls)]
        groups = {f"class{head}": y for head, y in tree_named(samples.y).items()}
        groups |= {"task": torch.as_tensor(samples.task)} | {name: samples.columns[name] for name in self.by}
        found = {
            name: {value: _accuracy(now, falls, (values == value).numpy()) for value in torch.unique(values).tolist()}
            for name, values in groups.items()
            if values.ndim == 1 and not values.is_floating_point() and (name != "task" or values.max() >= 0)
        }
        whole, alarm = _accuracy(now, falls), any(f >= self.drop and p <= self.false_alarms for f, p in tests)
        seen = {"heldout_accuracy": whole["accuracy"], "forgetting": whole["forgetting"]}
        return {**seen, "p_value": min(p for _, p in tests), "groups": found}, alarm

    # ------------------------------------------------------------------------------------------------------ reporting

    def report(self) -> dict[str, Any]:
        """Return everything as plain values, None where it is not known yet; held-out accuracy as of the last look.

        ``forgetting`` is the fall of the accuracy on older held-out samples, since whichever of their looks 1, 2, 4, …
        was best. ``p_value`` is that of the alarm, corrected for the number of looks. ``groups`` has the same by class,
        task and column. Recent accuracy and times are of the last 1,000 samples and calls.
        """
        with self.learner.lock:
            tally, memory, times = self.tally, self.learner.memory, np.array(self._times).reshape(-1, 2)
            step, own = times.mean(0).tolist() if len(times) else (None, None)
            return {
                **tally._asdict(),
                "accuracy": tally.correct / tally.samples if tally.samples else None,
                "recent_accuracy": self._recent.double().mean().item() if len(self._recent) else None,
                "heldout_samples": len(self.held), **copy.deepcopy(self._seen),
                "step_seconds": step, "step_seconds_p99": np.quantile(times[:, 0], 0.99).item() if step else None,
                "monitor_seconds": own,
                "memory_bytes": 0 if memory is None else memory.nbytes, "heldout_bytes": self.held.nbytes,
            }  # fmt: skip

    def prometheus(self) -> str:
        """Return the report in Prometheus' text format, all of it gauges."""
        lines: dict[str, list[str]] = {}
        for name, labels, value in _numbers(self.report()):
            group = '{{by="{}",group="{}"}}'.format(*labels) if labels else ""
            lines.setdefault(name, [f"# TYPE rehearse_{name} gauge"]).append(f"rehearse_{name}{group} {value}")
        return "".join(f"{line}\n" for some in lines.values() for line in some)

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything, the learner's state included, but the times and the detector."""
        with self.learner.lock:
            own = {"tally": tuple(self.tally), "recent": self._recent.clone(), "seen": self._seen, "by": self.by}
            held = {"held": self.held.state_dict(), "seed": self.seed}
            return {"learner": "Monitor", "monitored": self.learner.state_dict(), **own, **held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state`` that `state_dict` returned; one that does not fit is refused and changes nothing."""
        form = {"learner": "Monitor".__eq__, "by": self.by.__eq__, "monitored": dict, "held": dict, "seed": count}
        known = dict.fromkeys(UNSEEN, optional(float)) | {"groups": dict}
        counts = (count, count, count, count, bool, count, count)
        form |= {"tally": counts, "recent": numbers(torch.bool, 0, 2), "seen": known}
        check(state, form, "the state of this monitor")
        with self.learner.lock:
            held = ReservoirMemory(self.held.capacity)
            held.load_state_dict(state["held"])
            self.learner.load_state_dict(state["monitored"])
            self.held, self.tally, self._recent = held, Tally(*state["tally"]), state["recent"].clone()
            self._seen, self.seed = state["seen"], state["seed"]

    def confirm(self, state: dict[str, Any]) -> None:
        """Note that this ``state`` is safely on a disk (`rehearse.save`)."""
        self.learner.confirm(state["monitored"])


def _sign_test(falls: Array) -> tuple[float, float]:
    """Return the mean, and the probability of so many falls among the changes if rises were as likely."""
    falls = falls[np.isfinite(falls)]
    lost, n = int((falls > 0).sum()), int((falls != 0).sum())
    return float(falls.mean()) if n else 0.0, sum(math.comb(n, of) for of in range(lost, n + 1)) / 2**n


def _accuracy(now: Array, falls: list[Array], where: Any = slice(None)) -> dict[str, Any]:
    """Return number and accuracy of some samples, and how far it fell since the best of the earlier looks."""
    older = [fall[where][np.isfinite(fall[where])] for fall in falls]
    forgetting = max((float(some.mean()) for some in older if len(some)), default=None)
    return {"samples": len(now[where]), "accuracy": float(now[where].mean()), "forgetting": forgetting}


def _numbers(report: dict[str, Any]) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield names, labels (by what, which group) and values of all that is known."""
    found: list[tuple[str, tuple[str, ...], Any]] = [(name, (), report[name]) for name in report if name != "groups"]
    for by, groups in report["groups"].items():
        for group, values in groups.items():
            found += [(f"group_{name}", (by, str(group)), value) for name, value in values.items()]
    return ((name, labels, float(value)) for name, labels, value in found if value is not None)
