"""Algorithm 2: replay from a generator (GEN), and of what the coming update would damage (GEN-MIR)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..batch import Batch, Tree, checked_inputs
from ..compute import RandomState, evaluation_mode, in_parts, training_mode
from ..errors import CheckpointError, InvalidInput
from ..gradients import Gradient
from ..latent import Elbo
from ..losses import CrossEntropy, soft_cross_entropy, soft_cross_entropy_with_gradient
from ..parts import buffer_copies
from .base import Learner
from .checks import check_not_negative, check_positive, check_second, check_switches, one_tensor
from .generative_objectives import classifier_objective, generator_objective
from .generative_parts import Imagined, Retrieved, asked, check_generator, naming_the_search
from .generative_retrieval import LatentRetrieval, check_retrievals
from .generator_training import GeneratorTraining, equal_weights
from .same_rows import SameRows, can_stay
from .snapshots import Snapshot, load_trained, restored, trained_state
from .step import Step, mean_loss
from .view import View

EVALUATION_SEED: Final = 0  # the noise of evaluation is the same for every learner and at every time


class GenerativeReplay(Learner):
    """Generative replay (GEN; Shin et al. 2017), and with a `LatentRetrieval` GEN-MIR (Algorithm 2 of the paper).

        θ′, φ′, γ′ ← θ, φ, γ                      at the end of a task; without tasks every ``snapshot_every`` batches
        B_C ← Retrieve samples as per Eq. 2        for the classifier; without a retrieval plain samples
        B_G ← Retrieve samples as per Eq. 3        for the generator; likewise
        θ    ← SGD(B_n ∪ B_C, α)                   ∇ mean ℓ(B_n) + replay_weight · ∇ mean ℓ(B_C)
        φ, γ ← SGD(B_n ∪ B_G, α)                   likewise of −ELBO with its KL part weighted by β

    No example is stored. ``memories`` rows per incoming row are decoded by the previous generator and labelled with
    the previous classifier's probabilities; there is no replay before the first snapshot. ``updates`` steps are taken
    on each incoming batch, with one retrieval for all of them (``reuse``) or a new one for each. β grows with the rows
    of the task, rows / ``warmup``, up to ``beta``.

    Any classifier fits, and any generator with the surface of `rehearse.latent.Generator`. Incoming and replayed rows
    pass together. In the search every network is in eval mode: interference is not to be the noise of dropout.

    Differs from the authors' program: the foreseen step is that of the incoming batch (theirs repeats the last step
    on the previous one: ``gradient="stale"``); all points of a search are one batch, and the diversity term is over
    all their pairs (theirs compares equal rows of successive rounds); labels are learned by cross-entropy without a
    floor of 1e-5 for small probabilities. ``forward_passes`` counts rows through the classifier or the generator.
    """

    def __init__(
        self,
        classifier: nn.Module,
        optimizer: torch.optim.Optimizer,
        generator: nn.Module,
        generator_optimizer: torch.optim.Optimizer,
        *,
        classifier_retrieval: LatentRetrieval | None = None,
        generator_retrieval: LatentRetrieval | None = None,
        memories: int = 4,
        updates: int = 1,
        replay_weight: float = 1.0,
        reuse: bool = True,
        beta: float = 1.0,
        warmup: int = 1000,
        snapshot_every: int = 100,
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(classifier, optimizer, prepare=prepare, precision=precision, clip=clip, seed=seed)
        check_second(generator, generator_optimizer, clip, "generator", ("latent", "encode", "decode", "loss"))
        check_retrievals(classifier_retrieval, generator_retrieval)
        check_switches(reuse=reuse)
        check_positive(memories=memories, updates=updates, warmup=warmup, snapshot_every=snapshot_every)
        check_not_negative(replay_weight=replay_weight, beta=beta)
        self.generator: nn.Module = generator
        self.generator_optimizer = generator_optimizer
        check_positive(latent=generator.latent)
        self.latent: int = generator.latent  # type: ignore[assignment]
        self.classifier_retrieval, self.generator_retrieval = classifier_retrieval, generator_retrieval
        self.memories, self.updates, self.replay_weight, self.reuse = memories, updates, replay_weight, reuse
        self.beta, self.warmup, self.snapshot_every = beta, warmup, snapshot_every
        self.previous: Snapshot | None = None
        self.last_retrieved: Retrieved | None = None
        self._generator_checked = False  # on rows of the stream, when the first are there
        self._batches_since_snapshot = 0
        self._rows_of_task = 0
        self._last_gradients: dict[str, Gradient] = {}  # of the last step, for the stale look-ahead alone

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None) -> Step:
        """Learn from the incoming batch and from what the previous generator makes of the past."""
        incoming = self._accept(x, y, task, id)
        with self._transaction(parameters=True), self._own_transaction():
            batch = self._enter(incoming)
            for updates in [self.updates] if self.reuse else [1] * self.updates:
                for_classifier = self._retrieve_for_classifier(batch)  # B_C, Eq. 2
                for_generator = self._retrieve_for_generator(batch)  # B_G, Eq. 3
                with naming_the_search(self.previous is not None and bool(self._retrievals())):
                    losses = self._update_classifier(batch, for_classifier, updates)  # θ ← SGD(B_n ∪ B_C, α)
                    self._update_generator(batch, for_generator, updates)  # φ, γ ← SGD(B_n ∪ B_G, α)
        self._settle(incoming)
        self._batches_since_snapshot += 1
        if for_classifier is None or for_generator is None:
            self.last_retrieved = Retrieved(batch.x, None, None)
            return Step(losses[0])
        inits = [None if one is None else one.init for one in (self.classifier_retrieval, self.generator_retrieval)]
        self.last_retrieved = Retrieved(batch.x, for_classifier.shown(inits[0]), for_generator.shown(inits[1]))
        return Step(*losses, for_classifier.batch(), for_classifier.scores())

    def end_task(self) -> None:
        """θ′, φ′, γ′ ← θ, φ, γ."""
        if self._batches_since_snapshot:
            self._take_snapshot()

    def generator_losses(self, x: Tree) -> Elbo:
        """−ELBO of each row in its two parts, in eval mode, with noise that is the same every time."""
        with self._evaluation():
            rows = self._prepared(checked_inputs(x))
            parts = [Elbo(*asked(self.generator, "loss", some)) for some in in_parts(rows)]
        return Elbo(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def evaluation_metrics(self, x: Tree, y: Tensor) -> dict[str, float]:
        """The generator's mean loss on a test set: its parts, their sum, and the sum with the KL weighted by β.

        The last is what Table 5 of the paper calls the negative ELBO.
        """
        losses = self.generator_losses(x)
        reconstruction, kl = losses.reconstruction.double().mean().item(), losses.kl.double().mean().item()
        return {
            "reconstruction": reconstruction,
            "kl": kl,
            "negative_elbo": reconstruction + kl,
            "generator-loss": reconstruction + self.beta * kl,
        }

    def search_report(self) -> dict[str, dict[str, Any]]:
        """For the classifier and the generator: searches, fallbacks, mean interference and entropy around a search."""
        return {name: retrieval.report() for name, retrieval in self._retrievals().items()}

    def report(self) -> dict[str, Any]:
        return {"search": self.search_report()} if self._retrievals() else {}

    def imagine(self, rows: int) -> Tensor:
        """Samples of the present generator, from the same points in latent space every time."""
        check_positive(rows=rows)
        with self._evaluation():
            return View(self.generator).decode(self._prior(rows))

    def reconstruct(self, x: Tree) -> Tensor:
        """What the present generator makes of inputs, through the mean of their code."""
        with self._evaluation():
            mean, _ = asked(self.generator, "encode", self._prepared(checked_inputs(x)))
            return View(self.generator).decode(mean)

    def to(self, device: torch.device | str) -> GenerativeReplay:
        super().to(device)
        self.generator.to(device)
        self.generator_optimizer.load_state_dict(self.generator_optimizer.state_dict())  # goes where the parameters are
        if self.previous is not None:
            self.previous.classifier.to(device), self.previous.generator.to(device)
        self._last_gradients = {
            network: {name: value.to(device) for name, value in gradient.items()}
            for network, gradient in self._last_gradients.items()
        }
        return self

    def grow(self, classes: int) -> int:
        added = super().grow(classes)
        if added:
            self._last_gradients.pop("classifier", None)
        return added

    # --------------------------------------------------------------------------------------------------- snapshots

    def _enter(self, incoming: Batch) -> Batch:
        """Note a task's beginning, take the snapshot if it is due, and give the rows as the networks see them."""
        begins = isinstance(incoming.task, int) and incoming.task != self.task
        known = isinstance(incoming.task, int)
        due = begins and self.task is not None if known else self._batches_since_snapshot >= self.snapshot_every
        if due and self._batches_since_snapshot:
            self._take_snapshot()
        self._rows_of_task = len(incoming) + (0 if begins else self._rows_of_task)
        return Batch(self._prepared(incoming.x), incoming.y.to(self.device))

    def _take_snapshot(self) -> None:
        self.previous = Snapshot.of(self.model, self.generator)
        self._batches_since_snapshot = 0

    @property
    def present_beta(self) -> float:
        """The weight of the KL part now: it grows from 0 in every task."""
        return min(self._rows_of_task / self.warmup, self.beta)

    # --------------------------------------------------------------------------------------------------- retrieval

    def _retrieve_for_classifier(self, batch: Batch) -> Imagined | None:
        if self.previous is None:
            return None
        if self.classifier_retrieval is None:
            return self._imagined(self._prior(self.memories * len(batch)))
        retrieval = self.classifier_retrieval
        gradient = self._stale_gradient("classifier", retrieval) or self._gradient_of(batch)
        foreseen = self._searched(self.model, retrieval.foresee(self.model, self.optimizer, gradient, self.clip))
        reference = self._searched(self.previous.classifier if retrieval.reference == "snapshot" else self.model)
        generator = self._searched(self.previous.generator)
        objective = classifier_objective(retrieval.coefficients, generator, reference, foreseen)
        with self._searching(foreseen, reference, generator):
            z, interference = retrieval(
                objective, self.memories * len(batch), lambda rows: self._start(retrieval, batch, rows), self._prior
            )
        return self._imagined(z, interference)

    def _retrieve_for_generator(self, batch: Batch) -> Imagined | None:
        if self.previous is None:
            return None
        if self.generator_retrieval is None:
            return self._imagined(self._prior(self.memories * len(batch)), labels=False)
        retrieval = self.generator_retrieval
        gradient = self._stale_gradient("generator", retrieval) or self._generator_gradient_of(batch)
        foreseen = self._searched(
            self.generator, retrieval.foresee(self.generator, self.generator_optimizer, gradient, self.clip)
        )
        snapshot = retrieval.reference == "snapshot"
        reference = self._searched(self.previous.generator if snapshot else self.generator)
        classifier = self._searched(self.previous.classifier if snapshot else self.model)
        objective = generator_objective(retrieval.coefficients, classifier, reference, foreseen, retrieval.decode)
        with self._searching(foreseen, reference, classifier):
            z, interference = retrieval(
                objective, self.memories * len(batch), lambda rows: self._start(retrieval, batch, rows), self._prior
            )
        if not retrieval.coefficients.reconstruction:
            for times in (1, 1, retrieval.ranking, retrieval.ranking):  # as many as measuring once drew (decision 0021)
                self._prior(times * len(z))
        return self._imagined(z, interference, labels=False)

    def _searched(self, network: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> View:
        """A network that a search passes through.

        In a lower precision its parameters are leaves that want a gradient: those autocast converts once for a whole
        search, others at every pass. Nobody asks for that gradient.
        """
        if self.computation.scoring == torch.float32:
            return View(network, tensors)
        held = {**dict(network.named_parameters()), **(tensors or {})}
        return View(network, {name: value.detach().requires_grad_() for name, value in held.items()})

    def _start(self, retrieval: LatentRetrieval, batch: Batch, rows: int) -> Tensor:
        """z ~ N(0, I), or z ~ q_φ′(X_t): the incoming rows over and over."""
        assert self.previous is not None
        if retrieval.init == "prior":
            return self._prior(rows)
        self._rows_passed += len(batch)
        with torch.no_grad():
            mean, log_variance = View(self.previous.generator).encode(batch.x)
            turns = rows // len(batch)
            return mean.repeat(turns, 1) + (0.5 * log_variance).exp().repeat(turns, 1) * self._prior(rows)

    def _prior(self, rows: int) -> Tensor:
        return torch.randn(rows, self.latent, device=self.device, dtype=next(self.generator.parameters()).dtype)

    def _imagined(self, z: Tensor, interference: Tensor | None = None, labels: bool = True) -> Imagined:
        """X′ = g_γ′(Z) with y_pre = f_θ′(X′); for the generator nobody needs the labels."""
        assert self.previous is not None
        with torch.no_grad():
            generator, classifier = View(self.previous.generator), View(self.previous.classifier)
            x = generator.decode(z)
            probabilities = classifier.classify(x).exp() if labels else torch.empty(len(x), 0)
        self._rows_passed += generator.rows + classifier.rows
        return Imagined(x, probabilities, interference)

    def _gradient_of(self, batch: Batch) -> Gradient:
        """∇ℓ(B_n) for the classifier's look-ahead; statistics stay."""
        scores = self._scores_of(batch.x, buffer_copies(self.model) or None)
        return self._gradient(mean_loss(self._losses(batch, False, scores)))

    def _generator_gradient_of(self, batch: Batch) -> Gradient:
        """The same for the generator, of −ELBO as it is trained."""
        self._rows_passed += len(batch)
        return self._training.gradient(batch.x, self.present_beta, buffer_copies(self.generator) or None)

    # ------------------------------------------------------------------------------------------------------ updates

    def _update_classifier(self, batch: Batch, replay: Imagined | None, updates: int) -> tuple[float, float | None]:
        rows = self._joined(batch, replay)
        steady = updates > 1 and self._plain_steps and can_stay(self.model, self.optimizer, rows)
        steps = SameRows(self.model, self.optimizer, rows) if steady else None
        for _ in range(updates):
            by_hand = steps.pass_by_hand() if steps is not None and type(self.loss) is CrossEntropy else None
            if steps is not None and by_hand is not None:
                incoming, recalled, of_scores = self._losses_with_gradient(by_hand.scores, batch, replay)
                gradient = steps.step_by_hand(by_hand, of_scores)
            else:
                scores = self._scores_of(rows) if steps is None else steps.forward()
                loss = incoming = mean_loss(self._losses(batch, recalled=False, scores=scores[: len(batch)]))
                recalled = None
                if replay is not None:
                    recalled = mean_loss(soft_cross_entropy(scores[len(batch) :], replay.probabilities))
                    loss = incoming + self.replay_weight * recalled
                gradient = self._gradient(loss) if steps is None else steps.step(loss)
            if steps is None:
                self._apply(gradient)
            else:
                self._rows_passed, self.moves = self._rows_passed + len(rows), self.moves + 1
        if steps is not None:
            steps.finish()
        self._keep_gradient("classifier", self.classifier_retrieval, gradient)
        return incoming.item(), None if recalled is None else recalled.item()

    def _losses_with_gradient(
        self, scores: Tensor, batch: Batch, replay: Imagined | None
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """The mean losses of both parts, and the gradient of their weighted sum by the scores."""
        assert isinstance(self.loss, CrossEntropy)
        n = len(batch)
        incoming, of_scores = self.loss.with_gradient(scores[:n], batch, recalled=False)
        if replay is None:
            return mean_loss(incoming), None, of_scores
        recalled, of_recalled = soft_cross_entropy_with_gradient(scores[n:], replay.probabilities)
        both = torch.cat([of_scores, of_recalled.mul_(self.replay_weight)])
        return mean_loss(incoming), mean_loss(recalled), both

    def _update_generator(self, batch: Batch, replay: Imagined | None, updates: int) -> None:
        rows = self._joined(batch, replay)
        weights = equal_weights(batch.x)
        if replay is not None:
            weights = torch.cat([weights, self.replay_weight * equal_weights(replay.x)])
        gradient = self._training.step(rows, weights, self.present_beta, updates)
        self._rows_passed += updates * len(rows)
        self._keep_gradient("generator", self.generator_retrieval, gradient)

    @property
    def _training(self) -> GeneratorTraining:
        return GeneratorTraining(self.generator, self.generator_optimizer, self.clip)

    def _joined(self, batch: Batch, replay: Imagined | None) -> Tensor:
        if replay is None:
            rows: Tensor = batch.x
            return rows
        if batch.x.shape[1:] != replay.x.shape[1:]:
            raise InvalidInput(
                f"inputs of this batch have shape {tuple(batch.x.shape[1:])} a row, "
                f"those that the generator makes have {tuple(replay.x.shape[1:])}"
            )
        return torch.cat([batch.x, replay.x])

    @property
    def _plain_steps(self) -> bool:
        """Whether a step is the gradient times the learning rate, in single precision, and no more."""
        return self.clip is None and self.computation.training == torch.float32

    def _stale_gradient(self, network: str, retrieval: LatentRetrieval) -> Gradient | None:
        """The last step's gradient where that is asked for; None before there is one, and after the head has grown."""
        return self._last_gradients.get(network) if retrieval.gradient == "stale" else None

    def _keep_gradient(self, network: str, retrieval: LatentRetrieval | None, gradient: Gradient) -> None:
        if retrieval is not None and retrieval.gradient == "stale":
            self._last_gradients[network] = dict(gradient)

    # ---------------------------------------------------------------------------------------------- modes and state

    def _accept(self, x: Tree, y: Any, task: Any, id: Any = None) -> Batch:
        incoming = super()._accept(x, y, task, id)
        with self.random.borrowed():
            rows = self._prepared(incoming.x[:2] if isinstance(incoming.x, Tensor) else incoming.x)
            if not self._generator_checked:
                with torch.no_grad(), evaluation_mode(self.generator):
                    check_generator(self.generator, rows, self.latent, searched=bool(self._retrievals()))
                self._generator_checked = True
        return incoming

    def _prepared(self, x: Tree) -> Tensor:
        return one_tensor(self.prepare(x.to(self.device)) if isinstance(x, Tensor) else None, "generator")

    @contextlib.contextmanager
    def _searching(self, *views: View) -> Iterator[None]:
        """Eval mode for the present networks too; what passes through them is counted."""
        precision = self.computation.autocast(self.device, scoring=True)
        with evaluation_mode(self.model), evaluation_mode(self.generator), precision:
            yield
        self._rows_passed += sum(view.rows for view in views)

    @contextlib.contextmanager
    def _evaluation(self) -> Iterator[None]:
        noise = RandomState(EVALUATION_SEED, "evaluation")
        with torch.no_grad(), evaluation_mode(self.generator), noise:
            yield

    @contextlib.contextmanager
    def _own_transaction(self) -> Iterator[None]:
        """The generator in train mode; after an error everything beyond the classifier is put back as it was."""
        kept = self.previous, self._batches_since_snapshot, self._rows_of_task, dict(self._last_gradients)
        reports = {name: retrieval.state_dict() for name, retrieval in self._retrievals().items()}
        try:
            with restored(self.generator, self.generator_optimizer), training_mode(self.generator):
                yield
        except BaseException:
            self.previous, self._batches_since_snapshot, self._rows_of_task, self._last_gradients = kept
            for name, retrieval in self._retrievals().items():
                retrieval.load_state_dict(reports[name])
            raise

    def _retrievals(self) -> dict[str, LatentRetrieval]:
        both = {"classifier": self.classifier_retrieval, "generator": self.generator_retrieval}
        return {name: retrieval for name, retrieval in both.items() if retrieval is not None}

    def _own_state(self) -> dict[str, Any]:
        return {
            "generator": trained_state(self.generator, self.generator_optimizer),
            "previous": None if self.previous is None else self.previous.state_dict(),
            "batches_since_snapshot": self._batches_since_snapshot,
            "rows_of_task": self._rows_of_task,
            "last_gradients": {name: dict(gradient) for name, gradient in self._last_gradients.items()},
            "retrievals": {name: retrieval.state_dict() for name, retrieval in self._retrievals().items()},
        }

    def _load_own_state(self, state: dict[str, Any]) -> None:
        if state["retrievals"].keys() != self._retrievals().keys():
            searched, own = (" and ".join(names) or "nothing" for names in (state["retrievals"], self._retrievals()))
            raise CheckpointError(f"the saved learner searches for its {searched}, this one for its {own}")
        load_trained(self.generator, self.generator_optimizer, state["generator"])
        self.previous = None
        if state["previous"] is not None:
            self.previous = Snapshot.of(self.model, self.generator)
            self.previous.load_state_dict(state["previous"])
        self._batches_since_snapshot = int(state["batches_since_snapshot"])
        self._rows_of_task = int(state["rows_of_task"])
        self._last_gradients = {name: dict(gradient) for name, gradient in state["last_gradients"].items()}
        for name, retrieval in self._retrievals().items():
            retrieval.load_state_dict(state["retrievals"][name])
        self.last_retrieved = None
