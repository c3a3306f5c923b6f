"""How the autoencoder is trained: on what arrives and on its own codes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..compute import RandomState, numpy_generator, resolve_precision, training_mode
from ..errors import InvalidInput, RehearseError
from ..gradients import gradient_of
from ..kernels import own_kernels
from ..losses import in_full
from ..parts import KeptBuffers, parts_of
from .hybrid_codec import check_codes, check_rebuilt
from .snapshots import load_trained, restored, trained_state
from .step import mean_loss, step_along


class AutoencoderTraining:
    """θ_ae ← Adam(∇ MSE(θ_ae(B), B)), the mean over everything in B: inputs that arrive, and inputs read from codes.

    It draws from generators of its own, and so does an autoencoder with dropout or noise inside `drawing`: with one
    seed, two learners that recall differently still train the same autoencoder.
    """

    def __init__(
        self,
        autoencoder: nn.Module,
        optimizer: torch.optim.Optimizer,
        precision: str,
        clip: float | None,
        seed: int,
    ) -> None:
        self.autoencoder, self.optimizer, self.clip = autoencoder, optimizer, clip
        device = next(autoencoder.parameters()).device
        self.computation = resolve_precision(precision, autoencoder, device)
        if self.computation.channels_last:
            autoencoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.seed = seed
        self.random = RandomState(seed, "autoencoder")
        self.steps = 0

    def order(self, rows: int, epoch: int, task: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """In which order a task's rows come in an epoch."""
        return numpy_generator(self.seed, f"autoencoder, task {task}, epoch {epoch}").permutation(rows)

    def draw(self, rows: int, count: int) -> Tensor:
        """Which of so many codes are rehearsed in the coming step; all where there are fewer."""
        generator = numpy_generator(self.seed, f"autoencoder, step {self.steps}")
        return torch.from_numpy(generator.choice(rows, min(count, rows), replace=False))

    def step(self, x: Tensor) -> None:
        """One step on these inputs. Refused, it leaves everything as it was."""
        autoencoder: Any = self.autoencoder
        parts = parts_of(autoencoder, self.optimizer)
        buffers = KeptBuffers(parts.modules)
        kernels = own_kernels(autoencoder, parts.modules, dtype=self.computation.training)
        try:
            with torch.enable_grad(), training_mode(autoencoder, parts.modules), kernels:
                with self.computation.autocast(x.device, scoring=False):
                    codes = autoencoder.encode(x)
                    check_codes(x, codes)
                    rebuilt = autoencoder.decode(codes)
                check_rebuilt(x, rebuilt)
                loss = mean_loss(F.mse_loss(in_full(rebuilt), x))
                gradient = gradient_of(loss, parts.stepped)
                step_along(gradient, autoencoder, self.optimizer, self.clip, parts.stepped)
        except BaseException as problem:
            buffers.put_back()
            if isinstance(problem, RuntimeError | ValueError | TypeError | IndexError) and not isinstance(
                problem, RehearseError
            ):
                raise InvalidInput(f"the autoencoder cannot take this batch: {problem}") from problem
            raise
        self.steps += 1

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """Random numbers are its own; after an error they are what they were."""
        before = self.random.get()
        try:
            with self.random:
                yield
        except BaseException:
            self.random.set(before)
            raise

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """After an error the autoencoder is as it was before the block, and its steps have not been counted."""
        steps, random = self.steps, self.random.get()
        try:
            with restored(self.autoencoder, self.optimizer):
                yield
        except BaseException:
            self.steps = steps
            self.random.set(random)
            raise

    def state_dict(self) -> dict[str, Any]:
        return {
            "autoencoder": trained_state(self.autoencoder, self.optimizer),
            "seed": self.seed,
            "random": dict(self.random.get()),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_trained(self.autoencoder, self.optimizer, state["autoencoder"])
        self.random.set(state["random"])
        self.seed, self.steps = int(state["seed"]), int(state["steps"])
