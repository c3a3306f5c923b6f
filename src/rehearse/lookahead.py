"""What would the next step do: the foreseen parameters, and the losses of a batch before and after.

Everything here is pure: no module is copied and no parameter, gradient, buffer, mode or random state is touched.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .batch import Batch, Tree, pick, tree_leaves
from .batchnorm import by_lines
from .chain import ChainPass, can_pass
from .compiled import compiled_or_none
from .compute import Computation, is_fixed, prepare_for_model, random_state_kept, scoring_mode
from .errors import InvalidInput
from .foreseen import Foreseen, pass_before_and_after
from .gradients import FactoredGradient, by_rate
from .gradients import Gradient as Gradient
from .heads import find_head, head_inputs
from .kernels import own_kernels
from .losses import CrossEntropy, as_loss
from .parts import Parts, Stepped, parts_of
from .parts import stepped_parameters as stepped_parameters


class _Taken(NamedTuple):
    """Rows that were taken from a scored batch: they, and which rows of which inputs and of which pass they are."""

    batch: Batch
    among: Tensor
    rows: Tensor
    passed: ChainPass


class Lookahead:
    """Foresees the coming update from the gradient of the incoming batch alone.

    θᵛ = θ − α ∇ℓ(B_n), with α the optimiser's own learning rate, per parameter group (``virtual_step="sgd"``, the
    paper), or θᵛ = what the optimiser would really make of that gradient, with its momentum, weight decay and all
    (``virtual_step="optimizer"``). With ``layers="head"`` only the last layer is foreseen, and the body is passed once.

    Losses are those of scoring: no dropout, batch-norm with the statistics of the scored batch. With ``compile_rows``,
    batches of that many rows are passed through torch.compile, smaller ones (at the start of a stream) are not.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Any = None,
        *,
        virtual_step: Literal["sgd", "optimizer"] = "sgd",
        layers: Literal["all", "head"] = "all",
        prepare: Callable[[Tree], Tree] | None = None,
        computation: Computation | None = None,
        parts: Callable[[], Parts] | None = None,
        compile_rows: int | None = None,
        clip: float | None = None,
    ) -> None:
        if virtual_step not in ("sgd", "optimizer"):
            raise InvalidInput(f"virtual_step is {virtual_step!r}; it must be 'sgd' or 'optimizer'")
        if layers not in ("all", "head"):
            raise InvalidInput(f"layers is {layers!r}; it must be 'all' or 'head'")
        if compile_rows is not None and layers == "head":
            raise InvalidInput("a look-ahead on the head alone is not compiled; leave compile out, or use layers='all'")
        self.model, self.optimizer, self.loss = model, optimizer, as_loss(loss)
        self._compiled = None if compile_rows is None else compiled_or_none(model)
        self._compile_rows = compile_rows
        self.virtual_step, self.layers, self.clip = virtual_step, layers, clip
        self.prepare = prepare or prepare_for_model(model)
        self.computation = computation or Computation(torch.float32, torch.float32, channels_last=False)
        self._parts = parts or functools.partial(parts_of, model, optimizer)
        self.statistics: dict[str, Tensor] = {}  # the buffers as the last pass under θ would leave them
        self.rows_passed = 0
        self._scored: tuple[Batch, ChainPass] | None = None
        self._taken: _Taken | None = None

    def foresee(self, gradient: Gradient) -> dict[str, Tensor]:
        """θᵛ by name; parameters that the step would not move are given as they are."""
        moved = self._moved(gradient, self._parts().stepped)
        return {name: moved.get(name, parameter.detach()) for name, parameter in self.model.named_parameters()}

    def _moved(self, gradient: Gradient, stepped: Stepped, but: Collection[str] = ()) -> dict[str, Tensor]:
        """The parameters that the step would move, where it would."""
        names = [name for name in stepped if name in gradient and name not in but]
        if self.layers == "head":
            own = {id(parameter) for parameter in find_head(self.model)[1].parameters()}
            names = [name for name in names if id(stepped[name][0]) in own]
        with torch.no_grad():
            step = self._sgd_step if self.virtual_step == "sgd" else self._optimizer_step
            return step({name: stepped[name] for name in names}, gradient)

    def losses(self, batch: Batch, gradient: Gradient) -> tuple[Tensor, Tensor]:
        """ℓ(f_θ(x), y) and ℓ(f_θᵛ(x), y), one value a row."""
        parts = self._parts()
        batch, x = self._ready(batch, parts)
        versions = _versions(x)
        factored = gradient if self._plain and isinstance(gradient, FactoredGradient) else None
        if factored is not None and parts.chain is not None and isinstance(x, Tensor) and can_pass(parts.chain, (x,)):
            return self._losses_of_chain(batch, x, factored, parts)
        linears = Foreseen(parts, factored.factors if factored is not None else {})
        foreseen = self._moved(gradient, parts.stepped, but=linears.weights)
        with self._scoring(parts):
            if self.layers == "head":
                before, after = self._scores_by_head(x, foreseen, parts)
            else:
                with linears.installed():  # without the loss: what it copies is to be as it was
                    before = self._scores(x, {}, parts)
                    statistics, x = self.statistics, self._unchanged(x, versions, batch, parts)
                    linears.step()
                    found = self._scores_by_factors(x, foreseen, linears, parts)
                    if found is None:  # a weight was used behind its layer's back: do it the plain way
                        linears.step(False)
                        found = self._scores(x, self.foresee(gradient), parts)
                    after = found
                self.statistics = statistics
            return self.loss(before, batch, True), self.loss(after, batch, True)

    def _scores_by_head(self, x: Tree, foreseen: Mapping[str, Tensor], parts: Parts) -> tuple[Tensor, Tensor]:
        """The scores before and after a step of the last layer alone: the body is passed once."""
        name, head = find_head(self.model)
        with head_inputs(head) as seen:
            before = self._scores(x, {}, parts)
        if not torch.equal(head(seen[-1]), before):
            raise InvalidInput(f"layers='head' needs a model whose output is that of {name!r}, its last layer")
        moved = {id(parts.stepped[name][0]): value for name, value in foreseen.items()}
        own = {key: moved[id(value)] for key, value in head.named_parameters() if id(value) in moved}
        return before, functional_call(head, own, (seen[-1],))

    def _scores_by_factors(
        self, x: Tree, foreseen: Mapping[str, Tensor], linears: Foreseen, parts: Parts
    ) -> Tensor | None:
        """The scores after the step, or None where the model did not use every weight through its layer alone."""
        try:
            after = self._scores(x, {**foreseen, **linears.absent}, parts)
        except (RuntimeError, TypeError, NotImplementedError):
            if not linears.absent:
                raise
            return None
        return None if after.is_meta or not linears.complete else after

    def _unchanged(self, x: Tree, versions: list[int | None], batch: Batch, parts: Parts) -> Tree:
        """The prepared rows for the second pass: made anew where the model wrote into them in the first."""
        if _versions(x) == versions:
            return x
        places = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(batch.x)}
        if not is_fixed(self.prepare) or any(leaf.untyped_storage().data_ptr() in places for leaf in tree_leaves(x)):
            raise InvalidInput(
                "the model changes its inputs in place, and they are needed again; let it work on a copy"
            )
        return self._ready(batch, parts)[1]

    def _losses_of_chain(
        self, batch: Batch, x: Tensor, gradient: FactoredGradient, parts: Parts
    ) -> tuple[Tensor, Tensor]:
        """Both sets of parameters in one pass: a chain has no modes or buffers to take care of."""
        assert parts.chain is not None
        with torch.no_grad():
            before, after = pass_before_and_after(parts.chain, gradient, parts.stepped, x)
            self.statistics, self._scored = {}, (batch, before)
            self.rows_passed += 2 * len(batch)
            scores = before.scores.detach()
            if type(self.loss) is CrossEntropy:
                return self.loss(scores, batch, True), self.loss(after, batch, True)
            with random_state_kept(parts.device):  # a loss may draw, and write into what it is given
                return self.loss(scores.clone(), batch, True), self.loss(after, batch, True)

    @property
    def _plain(self) -> bool:
        """Whether a step is one of plain SGD on the whole model in full precision, foreseeable by factors."""
        whole = self.virtual_step == "sgd" and self.layers == "all"
        return whole and self.computation.scoring == torch.float32 and self._compiled is None

    def take(self, candidates: Batch, rows: Tensor) -> Batch:
        """Rows of a batch that has just been scored; their pass is remembered, for `pass_of`."""
        chosen = candidates.take(rows.cpu())
        scored, self._scored = self._scored, None
        if scored is not None and scored[0] is candidates and is_fixed(self.prepare):
            self._taken = _Taken(chosen, candidates.x, rows, scored[1])
        return chosen

    def pass_of(self, batch: Batch) -> ChainPass | None:
        """The pass that scoring made of the rows of the last `take`, for training to go on from; asked for once.

        Only a chain's: it has neither dropout nor batch statistics, so training would make the same.
        """
        taken, self._taken = self._taken, None
        if taken is None or taken.batch is not batch or not taken.passed.current:
            return None  # rows may come from elsewhere
        same = torch.equal(batch.x, pick(taken.among, taken.rows))  # or have been changed on the way
        return taken.passed.rows(taken.rows) if same else None

    def clear(self) -> None:
        """Let go of all rows that were scored: they are no longer needed, or are to be forgotten."""
        self._scored = self._taken = None

    def pass_through(self, batch: Batch) -> None:
        """Pass a batch as scoring does, for the sake of the statistics that it leaves."""
        parts = self._parts()
        _, x = self._ready(batch, parts)
        with self._scoring(parts):
            self._scores(x, {}, parts)

    def _ready(self, batch: Batch, parts: Parts) -> tuple[Batch, Tree]:
        batch = batch.to(parts.device)
        return batch, self.computation.layout(self.prepare(batch.x))

    @contextlib.contextmanager
    def _scoring(self, parts: Parts) -> Iterator[None]:
        with (
            torch.no_grad(),
            scoring_mode(self.model, parts.modules),
            self.computation.autocast(parts.device, scoring=True),
            random_state_kept(parts.device),
        ):
            yield

    def _scores(self, x: Tree, parameters: Mapping[str, Tensor], parts: Parts) -> Tensor:
        self.statistics = parts.buffer_copies()
        arguments, keywords = call_arguments(x)
        replaced = {**parameters, **self.statistics}
        scores: Tensor
        if self._compiled is not None and len(tree_leaves(x)[0]) == self._compile_rows:
            everything = {name: parameter.detach() for name, parameter in self.model.named_parameters()} | replaced
            scores = self._compiled(everything, arguments, keywords)
        else:
            modules = parts.modules if self._compiled is None else ()
            reduced = self.computation.scoring == torch.bfloat16
            with own_kernels(self.model, modules) if reduced else by_lines(modules):
                if replaced:
                    scores = functional_call(self.model, replaced, arguments, keywords, tie_weights=parts.tied)
                else:
                    scores = self.model(*arguments, **keywords)
        self.rows_passed += len(scores)
        return scores

    @staticmethod
    def _sgd_step(stepped: Stepped, gradient: Gradient) -> dict[str, Tensor]:
        moved: dict[str, Tensor] = {}
        for alpha, names in by_rate(stepped).items():
            parameters = [stepped[name][0].detach() for name in names]
            values = torch._foreach_add(parameters, [gradient[name] for name in names], alpha=-alpha)
            moved.update(zip(names, values, strict=True))
        return moved

    def _optimizer_step(self, stepped: Stepped, gradient: Gradient) -> dict[str, Tensor]:
        """Let a copy of the optimiser, state and all, take the step on copies of the parameters."""
        memo: dict[int, Any] = {}
        shadow = copy.deepcopy(self.optimizer, memo)
        for group in shadow.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        scale = 1.0
        if self.clip is not None:
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([gradient[name] for name in gradient])))
            scale = min(1.0, self.clip / (float(norm) + 1e-12))
        for name, (parameter, _) in stepped.items():
            memo[id(parameter)].grad = gradient[name] * scale
        type(shadow).step(shadow)
        return {name: memo[id(parameter)].detach() for name, (parameter, _) in stepped.items()}


def call_arguments(x: Tree) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How a tree of inputs is handed to a model: a tuple as its arguments, a dict as keywords."""
    if isinstance(x, tuple):
        return x, {}
    if isinstance(x, dict):
        return (), x
    return (x,), {}


def _versions(x: Tree) -> list[int | None]:
    """By which it can be told whether somebody wrote into these."""
    return [None if leaf.is_inference() else leaf._version for leaf in tree_leaves(x)]
