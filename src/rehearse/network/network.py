"""Network: a model with its optimizer. The only place where a model is called, differentiated, stepped and restored."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import repeat
from operator import call
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.nn.modules import module as hooks
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import optimizer as global_hooks

from ..batch import Tree, tree_leaves, tree_map, unchanged
from ..checks import check_model
from ..errors import InvalidInput, NotFinite, RehearseError
from ..heads import logits_of, outputs
from ..losses import at_least_float32
from ..precision import resolve_precision
from ..random import RandomState
from ..transforms import Observer
from ..undo import Operations, Restore, run
from .accelerate import kernels, offers
from .optimizers import copied_optimizer
from .twin import Mode, Twin

Parameter = tuple[Tensor, dict[str, Any]]  # a parameter and its optimizer group
Tensors = Mapping[str, Tensor]
VirtualStep = Literal["sgd", "optimizer"]
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = [getattr(hooks, f"_global{name}") for name in HOOKS]
FULL = contextlib.nullcontext()
# Without autocast's cache of weights: an interrupt could leave an old one in it.
reduced = partial(torch.autocast, cache_enabled=False)
TROUBLE = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, ZeroDivisionError)
"""What a user's module raises for inputs that it cannot take."""


class NamedGradient(dict[str, Tensor]):
    """The gradient of a loss by parameter name; a parameter that the loss does not depend on is missing."""

    def plus(self, other: NamedGradient, weight: float = 1.0) -> NamedGradient:
        """Return self + weight × other."""
        sums = {n: torch.add(self[n], g, alpha=weight) if n in self else weight * g for n, g in other.items()}
        return NamedGradient({**self, **sums})

    def norm(self) -> float:
        """Return the Euclidean norm."""
        return math.hypot(*torch.stack(torch._foreach_norm(list(self.values()))).tolist()) if self else 0.0


class Network:
    """A model with its optimizer, precision, gradient clipping and random numbers.

    Training calls the model itself. Scoring, prediction and diagnosis call its private `Twin`, with the tensors to
    use: looking never changes the model.
    """

    _leaves_inputs = False  # whether a pass has shown that it does not change them in place

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        random: RandomState | int = 0,
        name: str = "model",
    ) -> None:
        """Wrap a model.

        Args:
            model: Called with a tensor, with the items of a tuple, or with the keywords of a dict.
            optimizer: Any optimizer of the model's parameters that needs no closure.
            prepare: Turns stored inputs into the model's; by default bytes become floats in [0, 1]. An `Observer`
                such as `RunningScaler` learns from incoming inputs.
            precision: ``auto``, ``float32``, ``bfloat16`` or ``bfloat16-scoring``; see `precision`.
            clip: The largest norm of a gradient, or None.
            random: What the model draws from in training, or its seed.
            name: What errors call the model.
        """
        check_model(model, optimizer, clip, prepare, name)
        self.model, self.optimizer, self.clip, self.name = model, optimizer, clip, name
        self.precision = resolve_precision(precision, model, self.device)
        if self.precision.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        dtypes = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
        self.prepare = prepare or partial(prepare_unit, dtype=next(dtypes, torch.float32))
        self.observer = prepare if isinstance(prepare, Observer) else None
        # Shows incoming inputs to a ``prepare`` that learns from them; inside `all_or_nothing`.
        self.observe: Callable[[Tree], object] = unchanged if self.observer is None else self.observer.observe
        self.random = random if isinstance(random, RandomState) else RandomState(random)
        self.samples_passed = 0
        install = kernels()
        self.twin, trains = Twin(model, install), install is not None and torch.bfloat16 in self.precision
        # In bfloat16 compiled kernels train this copy.
        self._trained = Twin(model, install, shared=True) if trains else None
        self._saved: list[Restore] = []
        self.descents = offers("DESCENTS", model)
        self.least_outputs = outputs(model)

    def __getstate__(self) -> dict[str, Any]:
        """A copy or a pickle takes no undo along."""
        return {**vars(self), "_saved": []}

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        parameters = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
        device: torch.device = next(parameters).device  # the model's own take far longer to find
        return device

    # ------------------------------------------------------------------------------------------------------ passes

    def ready(self, x: Tree) -> Tree:
        """Return inputs as the model takes them."""
        device = self.device
        if isinstance(x, Tensor) and x.device == device:  # saves a tenth of a prediction
            return self.prepare(x)
        return self.prepare(tree_map(lambda leaf: leaf if leaf.device == device else leaf.to(device), x))

    def logits(self, x: Tree, tensors: Tensors | None = None) -> Tree:
        """Return the logits of inputs that are not prepared yet."""
        return tree_map(at_least_float32, self(self.ready(x), tensors))

    def __call__(self, x: Tree, tensors: Tensors | None = None, dtype: torch.dtype | None = None) -> Tree:
        """Return the logits of prepared inputs: what ``ask("forward", ...)`` returns, checked.

        Of an output with an attribute or a key ``logits`` (that of a Hugging Face model) these are taken. A model with
        several heads returns a tuple or dict of tensors.

        Raises:
            InvalidInput: If the model cannot take these inputs, or returns another number of entries than of samples.
            InvalidType: If it returns anything but tensors.
        """
        logits = self.ask("forward", x, tensors, dtype)
        if not isinstance(logits, Tensor):
            logits = logits_of(logits, self.name)
        samples = tree_leaves(x)[0].shape[0]
        for leaf in tree_leaves(logits):
            if leaf.shape[:1] != (samples,):
                what = f"shape {tuple(leaf.shape)} for {samples} samples; its first dimension must be {samples}"
                raise InvalidInput(f"the {self.name} returned an output of {what}")
        return logits

    def ask(self, method: str, x: Tree, tensors: Tensors | None = None, dtype: torch.dtype | None = None) -> Any:
        """Call a method of the model with prepared inputs.

        Args:
            method: ``forward``, or for a generator ``encode``, ``decode`` or ``loss``.
            x: A tensor, or a tuple or dict of tensors.
            tensors: All parameters and buffers, in place of the model's own, which then stay as they are.
            dtype: float32 or bfloat16; by default that of training.

        Raises:
            InvalidInput: If the model cannot take these inputs.
        """
        module = self.model if tensors is None else self.twin.module
        own = self.twin.own_tensors() if tensors is not None and module is self.model else None
        try:
            if tensors is not None:
                self.twin.place(tensors)
            elif self._trained is not None and (dtype or self.precision.training) == torch.bfloat16:
                module = self._trained.in_mode("training")
            found = self.call(module, method, x, dtype)
        finally:
            if own is not None:
                self.twin.put_back(own)
        self.samples_passed += tree_leaves(x)[0].shape[0]
        return found

    def call(self, module: nn.Module, method: str, x: Tree, dtype: torch.dtype | None = None) -> Any:
        """Call a method of this module, which is the model or a copy of it, in the network's layout and precision."""
        if self.precision.channels_last:
            x = tree_map(lambda leaf: leaf.contiguous(memory_format=torch.channels_last) if leaf.ndim == 4 else leaf, x)
        if not self._leaves_inputs:  # the first pass shows it, on a copy
            x = tree_map(torch.clone, x)
        versions = [0 if leaf.is_inference() else leaf._version for leaf in tree_leaves(x)]
        arguments, keywords = (x, {}) if isinstance(x, tuple) else ((), x) if isinstance(x, dict) else ((x,), {})
        dtype = dtype or self.precision.training
        try:
            with FULL if dtype == torch.float32 else reduced(tree_leaves(x)[0].device.type, dtype):
                found = (module if method == "forward" else getattr(module, method))(*arguments, **keywords)
        except (RehearseError, torch.OutOfMemoryError):
            raise
        except TROUBLE as problem:
            what = f"the {self.name}" if method == "forward" else f"the {self.name}'s {method}"
            raise InvalidInput(f"{what} cannot take this batch: {problem}") from problem
        if [0 if leaf.is_inference() else leaf._version for leaf in tree_leaves(x)] != versions:
            raise InvalidInput(f"the {self.name} changes its inputs in place; let it work on a copy")
        self._leaves_inputs = True
        return found

    @contextlib.contextmanager
    def training(self, steps: int = 1, incoming: Tree = None) -> Iterator[None]:
        """Train mode, gradients and the network's own random numbers; inside `all_or_nothing`.

        ``incoming`` inputs are observed first.

        Of several ``steps`` only the last is left to the commit: what the others change is saved for the undo. After an
        exception nothing is done here: `snapshot` restores all of it.
        """
        if incoming is not None:
            self.observe(incoming)
        if steps > 1:
            self.save_parameters()
        modes = [] if self.model.training else [(module, module.training) for module in self.model.modules()]
        if modes:
            self.model.train()
        grad = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        self.random.__enter__()
        yield
        self.random.__exit__()
        torch.set_grad_enabled(grad)
        for module, training in modes:
            module.training = training

    @contextlib.contextmanager
    def looking(self, mode: Mode) -> Iterator[None]:
        """Set the twin to a mode (see `Twin.set_mode`), for calls with ``tensors``."""
        self.twin.follow()
        held = [vars(module) for module in self.twin.modules]
        grad, modes = torch.is_grad_enabled(), [own["training"] for own in held]
        try:
            self.twin.set_mode(mode)
            torch.set_grad_enabled(mode == "training")
            yield
        finally:  # the twin may be the model itself, or be used by an outer block
            run(map(dict.__setitem__, held, repeat("training"), modes))
            torch.set_grad_enabled(grad)
            if mode == "scoring" and self.twin.module is not self.model:
                self.twin.place({})  # frees θᵛ

    @property
    def has_batchnorm(self) -> bool:
        """Whether the model has batch-norm layers."""
        self.twin.follow()
        return self.twin.has_batchnorm

    def frozen(self) -> dict[str, Tensor]:
        """Return copies of all parameters and buffers, by name: the network as it is now, for later `ask`."""
        self.twin.follow()
        return {name: tensor.detach().clone() for name, tensor in self.twin.tensors().items()}

    def logits_and_features(
        self, x: Tree, tensors: Tensors, name: str, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the logits, and what entered the module called ``name``; inside `looking`."""
        seen, head = deque[Tensor](maxlen=1), self.twin.module.get_submodule(name)
        with head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
            return self(x, tensors, dtype), seen[-1]

    # --------------------------------------------------------------------------------------------- gradient and step

    def trainable(self) -> dict[str, Parameter]:
        """Return the parameters that a step moves, with their optimizer groups, by name."""
        groups = {id(parameter): group for group in self.optimizer.param_groups for parameter in group["params"]}
        named = self.model.named_parameters()
        return {name: (p, groups[id(p)]) for name, p in named if p.requires_grad and id(p) in groups}

    def gradient(self, loss: Tensor) -> NamedGradient:
        """Return the gradient of a loss, which is a scalar; ``.grad`` is not touched."""
        names = self.trainable()
        if not loss.requires_grad:
            raise InvalidInput(f"the loss does not depend on the {self.name}'s parameters: there is no gradient")
        found = torch.autograd.grad(loss, [parameter for parameter, _ in names.values()], allow_unused=True)
        dense = (value.to_dense() if value is not None and value.is_sparse else value for value in found)
        return NamedGradient({name: value for name, value in zip(names, dense, strict=True) if value is not None})

    def virtual_gradient(self, method: str, x: Tree, losses: Callable[[Any], Tensor]) -> NamedGradient:
        """Return the gradient of the mean loss of a training pass that leaves the model's buffers as they are."""
        with self.looking("training"):
            loss = losses(self.ask(method, x, self.twin.tensors())).mean()
            finite(loss)
            return self.gradient(loss)

    @torch.no_grad()
    def look_ahead(
        self, gradient: NamedGradient, virtual_step: VirtualStep = "sgd", alpha: float | None = None
    ) -> dict[str, Tensor]:
        """Return the look-ahead parameters θᵛ, as far as they differ from θ.

        Args:
            gradient: Of the incoming batch.
            virtual_step: ``sgd`` is θ − α∇ℓ with the learning rate of each group; ``optimizer`` is the optimizer's own
                next step, clipped as the real one.
            alpha: α of ``sgd``, in place of the learning rates.
        """
        names = self.trainable()
        if virtual_step == "sgd":
            rates = {name: rate(names[name][1]) if alpha is None else alpha for name in gradient}
            return {name: torch.add(names[name][0], g, alpha=-rates[name]) for name, g in gradient.items()}
        memo: dict[int, Any] = {}
        shadow = copied_optimizer(self.optimizer, memo)
        shadow.zero_grad(set_to_none=True)
        for name, value in self._clipped(gradient).items():
            memo[id(names[name][0])].grad = value
        type(shadow).step(shadow)  # the class's own: a scheduler replaces the one of the object
        return {name: memo[id(parameter)].detach() for name, (parameter, _) in names.items()}

    def step(self, gradient: NamedGradient) -> Operations:
        """Prepare the optimizer's step along a gradient; what remains to be done is returned.

        Plain SGD is left to the caller's commit as a few calls into C. Any other optimizer steps here, after its
        parameters and its state have been saved for the undo.

        Raises:
            NotFinite: If the gradient is not finite. Nothing has changed then.
        """
        norms = (module for module in self.model.modules() if isinstance(module, _BatchNorm))
        variances = [norm.running_var for norm in norms if norm.running_var is not None]
        if variances and not bool(torch.stack(torch._foreach_norm(variances, torch.inf)).isfinite().all()):
            raise InvalidInput("these inputs are too large for the model's running statistics; scale them down first")
        gradient, names = self._clipped(gradient), self.trainable()
        if is_plain_sgd(self.optimizer):
            alphas = {name: rate(names[name][1]) for name in gradient}
            return map(call, [partial(names[n][0].detach().add_, g, alpha=-alphas[n]) for n, g in gradient.items()])
        self.save_parameters()
        stepped = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        users, values = [parameter.grad for parameter in stepped], {id(names[n][0]): g for n, g in gradient.items()}
        run(map(setattr, stepped, repeat("grad"), [values.get(id(parameter)) for parameter in stepped]))
        self.optimizer.step()
        run(map(setattr, stepped, repeat("grad"), users))
        # A fused optimizer does not, and caches would be used as if no step was made.
        run(map(increment_version, stepped))
        return ()

    def _clipped(self, gradient: NamedGradient) -> NamedGradient:
        norm = gradient.norm()
        if not math.isfinite(norm):
            raise NotFinite("the gradient is not finite: the learning rate may be too high for this batch")
        if self.clip is None or norm <= self.clip:
            return gradient
        return NamedGradient({name: value * (self.clip / (norm + 1e-12)) for name, value in gradient.items()})

    # ----------------------------------------------------------------------------------------------------- undo

    def snapshot(self) -> Restore:
        """Return a function that restores buffers, modes, random state and, if `save_parameters` was called, the rest.

        It also restores what torch keeps for the thread: its random state, grad mode and autocast.
        """
        self._saved = saved = list[Restore]()
        modules = list(self.model.modules())
        modes = [module.training for module in modules]
        # A pass may create or replace some buffers; a look at a model that cannot be copied replaces parameters.
        dicts: list[dict[str, Any]] = [vars(one)[part] for one in modules for part in ("_buffers", "_parameters")]
        held = [(own, dict(own)) for own in dicts]
        buffers = [buffer for module in modules for buffer in module._buffers.values() if buffer is not None]
        copies, passed = [buffer.clone() for buffer in buffers], self.samples_passed
        parts = [part.snapshot() for part in (self.random, self.observer) if part is not None]
        grad, autocast = torch.is_grad_enabled(), torch.is_autocast_enabled(self.device.type)

        def restore() -> None:
            for undo in (*saved, *parts):
                undo()
            for own, before in held:
                own.clear()
                own.update(before)
            for buffer, copied in zip(buffers, copies, strict=True):
                buffer.detach().copy_(copied)
            run(map(setattr, modules, repeat("training"), modes))
            self.samples_passed = passed
            torch.set_grad_enabled(grad)
            torch.set_autocast_enabled(self.device.type, autocast)

        return restore

    def save_parameters(self) -> None:
        """Save parameters, ``.grad`` and optimizer state for the undo: needed before any step that is not a commit."""
        if self._saved:
            return
        groups = self.optimizer.param_groups
        parameters = [parameter for group in groups for parameter in group["params"]]
        copies, grads = [parameter.detach().clone() for parameter in parameters], [p.grad for p in parameters]
        own, settings = self.optimizer.state, [dict(group) for group in groups]
        state = {p: {k: v.clone() if torch.is_tensor(v) else v for k, v in held.items()} for p, held in own.items()}

        def restore() -> None:
            torch._foreach_copy_([parameter.detach() for parameter in parameters], copies)
            run(map(setattr, parameters, repeat("grad"), grads))
            own.clear()
            own.update(state)
            run(map(dict.update, groups, settings))

        self._saved.append(restore)


def prepare_unit(x: Tree, dtype: torch.dtype = torch.float32) -> Tree:
    """Turn bytes into floats in [0, 1], and floats and booleans into ``dtype``; other integers (token ids) stay."""
    x = tree_map(lambda leaf: leaf.to(dtype).div_(255) if leaf.dtype == torch.uint8 else leaf, x)
    return tree_map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() or leaf.dtype == torch.bool else leaf, x)


def finite(loss: Tensor) -> float:
    """Return a loss as a number, or raise `NotFinite`."""
    value = loss.item()
    if not math.isfinite(value):
        raise NotFinite(f"the loss is {value} for finite input; the model or the learning rate is off")
    return value


def rate(group: Mapping[str, Any]) -> float:
    """Return α of a parameter group, negative if it maximizes."""
    return float(group["lr"]) * (-1 if group.get("maximize") else 1)


def is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a step is θ − α∇ℓ and nothing else: no momentum, weight decay, hooks or replaced ``step``."""
    return (
        type(optimizer) is torch.optim.SGD
        and "step" not in vars(optimizer)
        and not (optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
        and not (global_hooks._global_optimizer_pre_hooks or global_hooks._global_optimizer_post_hooks)
        and not any(g["momentum"] or g["weight_decay"] or g["differentiable"] for g in optimizer.param_groups)
    )


def watched(modules: Iterable[nn.Module]) -> bool:
    """Return whether hooks or a replaced ``forward`` see, or change, what one of the modules computes."""
    held = [vars(module) for module in modules]
    return any(GLOBAL_HOOKS) or any("forward" in own or any(map(own.get, HOOKS)) for own in held)
