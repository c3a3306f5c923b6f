"""Algorithm 2: replay from a generator (GEN), and of what the coming step would damage (GEN-MIR)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...batch import Batch, Step, Tree, tree_map, unchanged
from ...checks import alike, check, check_not_negative, check_positive, check_second, check_switches, count, optional
from ...errors import CheckpointError, InvalidInput
from ...heads import Growth
from ...latent import Elbo, LatentSearch, View
from ...network import NamedGradient, Network, Tensors
from ...network.states import copied, copied_frozen, load_network_state, network_state
from ...random import RandomState, borrowed
from ...undo import Operations, all_or_nothing, assign, run
from ..base import Learner
from .descent import Descended, descend
from .objectives import Objective, classifier_objective, generator_objective, soft_cross_entropy
from .retrieval import Imagined, LatentRetrieval, check_generator, check_retrievals, naming_the_search


class Previous(NamedTuple):
    """Both networks as they were: θ′, and φ′ with γ′. Parameters and buffers by name; they never change."""

    classifier: Tensors
    generator: Tensors


class Past(NamedTuple):
    """What a learner holds of its past; replaced as a whole, so that an undo needs no copy."""

    previous: Previous | None = None
    """None before the first snapshot."""
    batches: int = 0
    """Batches since the snapshot."""
    samples: int = 0
    """Samples of the present task."""
    gradients: tuple[NamedGradient | None, ...] = (None, None)
    """Of the last steps of both networks, for retrievals with ``gradient="stale"``."""


class GenerativeReplay(Learner):
    """Generative replay (GEN; Shin et al. 2017), and with a `LatentRetrieval` GEN-MIR (Algorithm 2 of the paper).

        θ′, φ′, γ′ ← θ, φ, γ                      at the end of a task; without tasks every ``snapshot_every`` batches
        θᵛ, φᵛ, γᵛ ← θ, φ, γ − α ∇ℓ(B_n)           the virtual update, for the retrievals alone; ℓ of φ, γ is −ELBO
        B_C ← Retrieve samples as per Eq. 2        for the classifier; without a retrieval plain samples
        B_G ← Retrieve samples as per Eq. 3        for the generator; likewise
        θ    ← SGD(B_n ∪ B_C, α)                   ∇ mean ℓ(B_n) + replay_weight · ∇ mean ℓ(B_C)
        φ, γ ← SGD(B_n ∪ B_G, α)                   likewise of −ELBO with its KL part weighted by β

    No sample is stored. ``memories`` samples per incoming sample are decoded by the previous generator and labeled with
    the previous classifier's probabilities; there is no replay before the first snapshot. ``updates`` steps are taken
    on each incoming batch, with one retrieval for all of them (``reuse``) or a new one for each. β grows with the
    samples of the task, samples / ``warmup``, up to ``beta``.

    Any classifier can be used, and any generator that implements `rehearse.latent.Generator`. Incoming and replayed
    samples pass together. In the search every network is in eval mode: the noise of dropout is not interference.

    Differs from the reference implementation: the virtual step is that of the incoming batch (there it repeats the
    last step on the previous one: ``gradient="stale"``); all points of a search are one batch, and the diversity term
    is over all their pairs (there it compares points of the same position in successive rounds); labels are learned by
    cross-entropy without a floor of 1e-5 for small probabilities. ``forward_passes`` counts samples through the
    classifier or the generator.
    """

    classes_only = True

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
        """Build a learner around a classifier and a generator.

        Args:
            classifier: Any classifier; see `Network`.
            optimizer: Of the classifier.
            generator: A module with ``latent``, ``encode``, ``decode`` and ``loss``; see `latent.Generator`.
            generator_optimizer: Of the generator.
            classifier_retrieval: How B_C is found; None draws from the prior.
            generator_retrieval: How B_G is found; None draws from the prior.
            memories: Samples to imagine per incoming sample.
            updates: Steps per incoming batch.
            replay_weight: The weight of the imagined samples' mean loss.
            reuse: Whether one retrieval serves all updates; if not, each has its own.
            beta: The largest weight β of the KL part.
            warmup: β grows with the samples of a task, as samples / ``warmup``.
            snapshot_every: Batches between snapshots if tasks are unknown.
            prepare: Turns inputs into those of both networks.
            precision: See `precision`.
            clip: The largest norm of each gradient.
            seed: Of all random numbers.

        Raises:
            InvalidInput: If a number is out of range.
            InvalidType: If an argument is of the wrong type.
        """
        shared: dict[str, Any] = {"precision": precision, "clip": clip, "random": RandomState(seed)}
        super().__init__(Network(classifier, optimizer, prepare=prepare, **shared), None, updates=updates)
        self.generator_network = Network(generator, generator_optimizer, name="generator", **shared)
        check_second(generator, "generator", ("latent", "encode", "decode", "loss"))
        check_retrievals(classifier_retrieval, generator_retrieval)
        check_switches(reuse=reuse)
        check_positive(memories=memories, warmup=warmup, snapshot_every=snapshot_every, latent=generator.latent)
        check_not_negative(replay_weight=replay_weight, beta=beta)
        self.latent: int = generator.latent  # type: ignore[assignment]
        self.classifier_retrieval, self.generator_retrieval = classifier_retrieval, generator_retrieval
        self.memories, self.replay_weight, self.reuse = memories, replay_weight, reuse
        self.beta, self.warmup, self.snapshot_every = beta, warmup, snapshot_every
        self.past = Past()
        self.plain.prepare = unchanged  # inputs are prepared here

    @property
    def generator(self) -> nn.Module:
        """The generator."""
        return self.generator_network.model

    @property
    def generator_optimizer(self) -> torch.optim.Optimizer:
        """The generator's optimizer; another one may be assigned."""
        return self.generator_network.optimizer

    @generator_optimizer.setter
    def generator_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        with self.lock:
            self.generator_network.optimizer = optimizer

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None, weight: Any = None, **columns: Any) -> Step:
        """Learn from an incoming batch and from what the previous generator imagines; see `Learner.observe`."""
        incoming = self._accept(x, y, task, id=id, weight=weight, **columns)
        with self.lock, all_or_nothing(*self._networks(), *self._searches()) as commit:
            operations: Operations = ()
            with self.network.training(self.updates), self.generator_network.training(self.updates):
                batch = self._prepared(incoming)
                past = self._entered(incoming)  # θ′, φ′, γ′ ← θ, φ, γ
                for updates in [self.updates] if self.reuse else [1] * self.updates:
                    run(operations)
                    for_classifier = self._retrieve(batch, past, labeled=True)  # B_C, Eq. 2
                    for_generator = self._retrieve(batch, past, labeled=False)  # B_G, Eq. 3
                    with naming_the_search(past.previous is not None and bool(self._searches())):
                        first = self._update_classifier(batch, for_classifier, updates)  # θ ← SGD(B_n ∪ B_C, α)
                        second = self._update_generator(batch, for_generator, updates, past)  # φ, γ ← SGD(B_n ∪ B_G, α)
                    operations = chain(first.operations, second.operations)
                    past = past._replace(gradients=self._stale(first, second))
            past = past._replace(batches=past.batches + 1)
            commit(operations, assign(self, progress=self.progress.after(incoming, self.updates), past=past))
        if for_classifier is None:
            return Step(first.losses[0])
        _, loss, replayed_loss = first.losses
        x, probabilities, interference = for_classifier.ranked()
        replayed = Batch(x, probabilities.argmax(1), columns={"probabilities": probabilities})
        return Step(loss, replayed_loss, replayed, interference)

    def end_task(self) -> None:
        """Take a snapshot: θ′, φ′, γ′ ← θ, φ, γ."""
        with self.lock:
            self.past = self._taken(self.past)

    def _accept(self, x: Tree, y: Any, task: Any, **columns: Any) -> Batch:
        """Check a batch, and with the first one the generator; changes nothing."""
        incoming = super()._accept(x, y, task, **columns)
        if not self.progress.samples:
            with self._read_only(), borrowed(self.network.random):
                first = self._inputs(tree_map(lambda leaf: leaf[:2], incoming.x))
                check_generator(self.generator_network, first, self.latent, searched=bool(self._searches()))
        return incoming

    def _prepared(self, incoming: Batch) -> Batch:
        return Batch(self._inputs(incoming.x), incoming.y.to(self.network.device))

    # --------------------------------------------------------------------------------------------------- the past

    def _entered(self, incoming: Batch) -> Past:
        """Return the past as this batch finds it: with a new snapshot if one is due."""
        past, known = self.past, isinstance(incoming.task, int)
        begins = known and incoming.task != self.progress.task
        due = begins and self.progress.task is not None if known else past.batches >= self.snapshot_every
        past = self._taken(past) if due else past
        return past._replace(samples=len(incoming) + (0 if begins else past.samples))

    def _taken(self, past: Past) -> Past:
        if not past.batches:
            return past  # nothing has been learned since
        return past._replace(previous=Previous(self.network.frozen(), self.generator_network.frozen()), batches=0)

    def _bounds(self, past: Past, found: Any) -> Tensor:
        """Return reconstruction + β · KL of what the generator's ``loss`` found, one value per sample."""
        return Elbo(*found).total(min(past.samples / self.warmup, self.beta))

    def _stale(self, *done: Descended) -> tuple[NamedGradient | None, ...]:
        """Return the last steps' gradients, if a retrieval asks for them."""
        both = zip(done, (self.classifier_retrieval, self.generator_retrieval), strict=True)
        return tuple(one.gradient() if own is not None and own.gradient == "stale" else None for one, own in both)

    # --------------------------------------------------------------------------------------------------- retrieval

    def _for_classifier(self, retrieval: LatentRetrieval, batch: Batch, past: Past, previous: Previous) -> Objective:
        """Return Eq. 2: how far θᵛ departs from θ′."""
        network = self.network
        losses = partial(self.loss, batch=batch, replayed=False)
        gradient = past.gradients[0] or network.virtual_gradient("forward", batch.x, losses)
        tensors = previous.classifier if retrieval.reference == "snapshot" else network.twin.tensors()
        decoder, before = View.scoring(self.generator_network, previous.generator), View.scoring(network, tensors)
        return classifier_objective(retrieval.coefficients, decoder, before, retrieval.view_ahead(network, gradient))

    def _for_generator(self, retrieval: LatentRetrieval, batch: Batch, past: Past, previous: Previous) -> Objective:
        """Return Eq. 3: how far φᵛ, γᵛ depart from φ′, γ′."""
        network = self.generator_network
        gradient = past.gradients[1] or network.virtual_gradient("loss", batch.x, partial(self._bounds, past))
        if retrieval.reference == "current":
            previous = Previous(self.network.twin.tensors(), network.twin.tensors())
        classifier, before = View.scoring(self.network, previous.classifier), View.scoring(network, previous.generator)
        ahead = retrieval.view_ahead(network, gradient)
        return generator_objective(retrieval.coefficients, classifier, before, ahead, retrieval.decode)

    def _retrieve(self, batch: Batch, past: Past, *, labeled: bool) -> Imagined | None:
        """Return X′ = g_γ′(z) with y_pre = f_θ′(X′), for points z of high objective or of the prior."""
        previous = past.previous
        if previous is None:
            return None
        retrieval = self.classifier_retrieval if labeled else self.generator_retrieval
        count, interference = self.memories * len(batch), None
        with self.network.looking("evaluation"), self.generator_network.looking("evaluation"):
            if retrieval is None:
                z = self._prior(count)
            else:
                equation = self._for_classifier if labeled else self._for_generator
                start = self._prior if retrieval.init == "prior" else partial(self._codes, previous, batch.x)
                z, interference = retrieval(equation(retrieval, batch, past, previous), count, start, self._prior)
                if not labeled and not retrieval.coefficients.reconstruction:
                    for times in (1, 1, retrieval.ranking, retrieval.ranking):  # draws kept by decision 0021
                        self._prior(times * count)
            x = View(self.generator_network, previous.generator).decode(z)
            labels = View(self.network, previous.classifier).classify(x).exp() if labeled else x.new_empty(len(x), 0)
        return Imagined(x, labels, interference)

    def _codes(self, previous: Previous, x: Tensor, points: int) -> Tensor:
        """Draw z ~ q_φ′(x), over and over the incoming samples."""
        mean, log_variance = View(self.generator_network, previous.generator).encode(x)
        turns = points // len(x)
        return mean.repeat(turns, 1) + (0.5 * log_variance).exp().repeat(turns, 1) * self._prior(points)

    def _prior(self, points: int) -> Tensor:
        like = next(self.generator_network.model.parameters())
        return torch.randn(points, self.latent, device=like.device, dtype=like.dtype)

    # ----------------------------------------------------------------------------------------------------- updates

    def _update_classifier(self, batch: Batch, replayed: Imagined | None, updates: int) -> Descended:
        """Descend mean ℓ(B_n) + replay_weight · mean ℓ(B_C); the losses are this sum and its parts."""
        n = len(batch)

        def objective(logits: Tensor) -> list[Tensor]:
            first = self.loss(logits[:n], batch, False).mean()
            if replayed is None:
                return [first]
            second = soft_cross_entropy(logits[n:], replayed.probabilities).mean()
            return [first + self.replay_weight * second, first, second]

        return descend(self.network, _joined(batch, replayed), objective, updates)

    def _update_generator(self, batch: Batch, replayed: Imagined | None, updates: int, past: Past) -> Descended:
        """Descend the same of −ELBO for B_n and B_G."""
        n = len(batch)

        def objective(bound: Any) -> list[Tensor]:
            each = self._bounds(past, bound)
            first = each[:n].mean()
            return [first if replayed is None else first + self.replay_weight * each[n:].mean()]

        return descend(self.generator_network, _joined(batch, replayed), objective, updates, method="loss")

    def diagnostics(self) -> dict[str, Any]:
        """Return searches, fallbacks, and mean interference and entropy around a search, for both networks."""
        with self.lock:
            reports = {name: retrieval.report() for name, retrieval in self._retrievals().items()}
        return {"search": reports} if reports else {}

    # --------------------------------------------------------------------------------------------------------- state

    def _grow_with(self, grown: Growth) -> Operations:
        """A stale gradient of the head before does not fit any more."""
        past = self.past._replace(gradients=(None, self.past.gradients[1])) if grown.added else self.past
        return assign(self, past=past)

    def _networks(self) -> list[Network]:
        return [self.network, self.generator_network]

    def _retrievals(self) -> dict[str, LatentRetrieval]:
        both = {"classifier": self.classifier_retrieval, "generator": self.generator_retrieval}
        return {name: retrieval for name, retrieval in both.items() if retrieval is not None}

    def _searches(self) -> list[LatentSearch]:
        return [retrieval.search for retrieval in self._retrievals().values()]

    def _own_state(self) -> dict[str, Any]:
        previous, *rest, gradients = self.past
        return {
            "generator": network_state(self.generator_network),
            "previous": None if previous is None else [dict(tensors) for tensors in previous],
            "counts": rest,
            "gradients": [None if gradient is None else dict(gradient) for gradient in gradients],
            "retrievals": {name: retrieval.search.state_dict() for name, retrieval in self._retrievals().items()},
        }

    def _load_own_state(self, state: dict[str, Any]) -> None:
        form = {"generator": dict, "previous": optional([dict, dict]), "counts": [count, count]}
        form |= {"gradients": [optional(dict)] * 2, "retrievals": dict}
        check(state, form, "what GenerativeReplay knows of its past")
        if state["retrievals"].keys() != self._retrievals().keys():
            searched, own = (" and ".join(names) or "nothing" for names in (state["retrievals"], self._retrievals()))
            raise CheckpointError(f"the saved learner searches for its {searched}, this one for its {own}")
        load_network_state(self.generator_network, state["generator"])
        for network, gradient in zip(self._networks(), state["gradients"], strict=True):
            held = {name: one for name, (one, _) in network.trainable().items() if name in (gradient or ())}
            check(gradient, optional(alike(held)), "the last gradient")
        old = state["previous"]
        previous = None if old is None else Previous(*map(copied_frozen, self._networks(), old))
        gradients = [None if one is None else NamedGradient(copied(one, self.device)) for one in state["gradients"]]
        batches, samples = state["counts"]
        self.past = Past(previous, batches, samples, tuple(gradients))
        for name, retrieval in self._retrievals().items():
            retrieval.search.load_state_dict(state["retrievals"][name])


def _joined(batch: Batch, replayed: Imagined | None) -> Tensor:
    x: Tensor = batch.x
    if replayed is None:
        return x
    if x.shape[1:] != replayed.x.shape[1:]:
        own, imagined = tuple(x.shape[1:]), tuple(replayed.x.shape[1:])
        raise InvalidInput(f"inputs of this batch have shape {own} per sample, those of the generator {imagined}")
    return torch.cat([x, replayed.x])
