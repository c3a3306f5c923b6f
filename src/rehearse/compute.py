"""How things are computed: precision, memory format, modes, and whose random numbers are drawn.

Nothing here decides *what* is computed; every function leaves the world as it found it.
"""

from __future__ import annotations

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .batch import Tree, tree_leaves, tree_map
from .errors import InvalidInput

PRECISIONS = ("auto", "float32", "bfloat16", "bfloat16-scoring")
PREDICTION_ROWS: Final = 1000  # passed at once in prediction, where they are small
PREDICTION_NUMBERS: Final = 800_000  # in them: the activations of more leave the caches, at 1.4 times the cost


# ---------------------------------------------------------------------------------------------- random numbers


def seed_sequence(seed: int, name: str) -> np.random.SeedSequence:
    """The root of the generator called ``name``: one seed, many generators that never share a draw."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInput(f"the seed is {seed!r}; it must be a whole number of at least 0")
    return np.random.SeedSequence([seed, zlib.crc32(name.encode())])


def numpy_generator(seed: int, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, name)))


def torch_generator(seed: int, name: str) -> torch.Generator:
    return torch.Generator().manual_seed(int(seed_sequence(seed, name).generate_state(1, np.uint64)[0]) >> 1)


class RandomState:
    """Torch's random numbers as one learner sees them.

    Inside ``with state:`` dropout and the like draw from this state; outside, torch's global state is what it was.
    """

    def __init__(self, seed: int, name: str = "torch") -> None:
        generator = torch_generator(seed, name)
        self._own = generator.get_state()
        self._cuda_seed = generator.initial_seed()
        self._own_cuda: dict[int, Tensor] = {}
        self._others: Tensor | None = None
        self._others_cuda: dict[int, Tensor] = {}

    def __enter__(self) -> RandomState:
        self._others = torch.get_rng_state()
        torch.set_rng_state(self._own)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            for device in range(torch.cuda.device_count()):
                self._others_cuda[device] = torch.cuda.get_rng_state(device)
                if device not in self._own_cuda:
                    generator = torch.Generator(f"cuda:{device}").manual_seed(self._cuda_seed)
                    self._own_cuda[device] = generator.get_state()
                torch.cuda.set_rng_state(self._own_cuda[device], device)
        return self

    def __exit__(self, *exception: object) -> None:
        self._own = torch.get_rng_state()
        assert self._others is not None
        torch.set_rng_state(self._others)
        for device, state in self._others_cuda.items():
            self._own_cuda[device] = torch.cuda.get_rng_state(device)
            torch.cuda.set_rng_state(state, device)
        self._others_cuda = {}

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[None]:
        """Draw from this state without moving it: what prediction and scoring use."""
        before = self.get()
        try:
            with self:
                yield
        finally:
            self.set(before)

    def get(self) -> dict[str, Tensor]:
        return {"cpu": self._own, **{f"cuda:{device}": state for device, state in self._own_cuda.items()}}

    def set(self, state: dict[str, Tensor]) -> None:
        own = state["cpu"].cpu().to(torch.uint8)
        torch.Generator().set_state(own)  # refuses what is no state
        self._own = own
        self._own_cuda = {
            int(name.removeprefix("cuda:")): value.cpu() for name, value in state.items() if name != "cpu"
        }


@contextlib.contextmanager
def random_state_kept(device: torch.device) -> Iterator[None]:
    """Afterwards torch's random state is what it was, also if a model draws noise even in eval mode."""
    before = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)


# ----------------------------------------------------------------------------------------------------------- memory


def keep_freed_memory() -> None:
    """Let the C library keep the memory of activations that were freed, for the next step's.

    glibc gives large blocks back to the system until it has seen one of that size freed, and every step would have
    its pages made anew: a tenth of a step. Freeing one untouched block, of the largest size that glibc learns from,
    teaches it; elsewhere this does nothing.
    """
    torch.empty((32 << 20) - (1 << 16), dtype=torch.uint8)


def in_parts(x: Tree) -> list[Tree]:
    """Rows in parts that are passed at once where nothing is learned: enough to be fast, and no more. One at least."""
    leaves = tree_leaves(x)
    numbers = sum(leaf[:1].numel() for leaf in leaves)
    rows = min(PREDICTION_ROWS, max(PREDICTION_NUMBERS // max(numbers, 1), 1))
    starts = range(0, max(len(leaves[0]), 1), rows)
    return [tree_map(lambda leaf, start=start: leaf[start : start + rows], x) for start in starts]


# ------------------------------------------------------------------------------------------ precision and layout


@dataclass(frozen=True)
class Computation:
    """What ``precision`` resolved to: the dtype of the training passes, of the scoring passes, and the layout."""

    training: torch.dtype
    scoring: torch.dtype
    channels_last: bool

    @property
    def name(self) -> str:
        if self.training == torch.bfloat16:
            return "bfloat16"
        return "bfloat16-scoring" if self.scoring == torch.bfloat16 else "float32"

    def autocast(self, device: torch.device, *, scoring: bool) -> contextlib.AbstractContextManager[object]:
        dtype = self.scoring if scoring else self.training
        if dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(device.type, dtype=dtype)

    def layout(self, x: Tree) -> Tree:
        """Images in the layout that the model's convolutions are fastest in."""
        if not self.channels_last:
            return x
        return tree_map(lambda leaf: leaf.contiguous(memory_format=torch.channels_last) if leaf.ndim == 4 else leaf, x)


def native_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware. Emulated, it is nine times slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def resolve_precision(precision: str, model: nn.Module, device: torch.device) -> Computation:
    """A fixed rule, never a timing: the same spec on the same kind of processor gives the same digits.

    ``auto`` scores candidates in bfloat16 where the hardware has it and the model has convolutions, and trains in
    float32; everything else is float32. Convolutional models run channels-last if they say that they may, by an
    attribute ``channels_last = True``: a model that views its activations as flat rows cannot.
    """
    if precision not in PRECISIONS:
        raise InvalidInput(f"precision is {precision!r}; it must be one of {', '.join(PRECISIONS)}")
    convolutional = any(isinstance(module, nn.Conv2d) for module in model.modules())
    if precision == "auto":
        precision = "bfloat16-scoring" if convolutional and native_bfloat16(device) else "float32"
    return Computation(
        training=torch.bfloat16 if precision == "bfloat16" else torch.float32,
        scoring=torch.float32 if precision == "float32" else torch.bfloat16,
        channels_last=convolutional and bool(getattr(model, "channels_last", False)),
    )


# ------------------------------------------------------------------------------------------------------- inputs


def prepare_unit(x: Tree, dtype: torch.dtype = torch.float32) -> Tree:
    """Bytes become floats in [0, 1]; floats become the model's dtype; other integers (token ids) stay."""

    def leaf(values: Tensor) -> Tensor:
        if values.dtype == torch.uint8:
            return values.to(dtype).div_(255)
        return values.to(dtype) if values.is_floating_point() or values.dtype == torch.bool else values

    return tree_map(leaf, x)


def prepare_for_model(model: nn.Module) -> Callable[[Tree], Tree]:
    """`prepare_unit` in the model's own dtype: what is used where nothing else is asked for."""
    dtypes = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return functools.partial(prepare_unit, dtype=next(dtypes, torch.float32))


def prepare_symmetric(x: Tree, dtype: torch.dtype = torch.float32) -> Tree:
    """Bytes become floats in [−1, 1], the scaling of the CIFAR-10 and Mini-ImageNet experiments: 2x − 1."""

    def leaf(values: Tensor) -> Tensor:
        return values.to(dtype).mul_(2 / 255).sub_(1) if values.dtype == torch.uint8 else values

    return prepare_unit(tree_map(leaf, x), dtype)


def is_fixed(prepare: Callable[[Tree], Tree]) -> bool:
    """Whether this is known to make the same of the same rows: a user's own may draw at random."""
    return getattr(prepare, "func", prepare) in (prepare_unit, prepare_symmetric)


# -------------------------------------------------------------------------------------------------------- modes


def batchnorms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextlib.contextmanager
def _modes_restored(modules: Iterable[nn.Module]) -> Iterator[list[tuple[nn.Module, bool]]]:
    modes = [(module, module.training) for module in modules]
    try:
        yield modes
    finally:
        for module, training in modes:
            _set_mode(module, training)


def _set_mode(module: nn.Module, training: bool) -> None:
    if isinstance(module, torch.jit.ScriptModule):
        module.training = training
        return
    object.__setattr__(module, "training", training)  # past nn.Module's own, which looks for parameters first


@contextlib.contextmanager
def training_mode(model: nn.Module, modules: Iterable[nn.Module] | None = None) -> Iterator[None]:
    """Train mode. Parts that were put in eval mode inside a training model stay so: somebody froze them.

    ``modules`` are the model's, for those who know them already.
    """
    with _modes_restored(model.modules() if modules is None else modules), _asked_to(model, train=True):
        yield


@contextlib.contextmanager
def scoring_mode(model: nn.Module, modules: Iterable[nn.Module] | None = None) -> Iterator[None]:
    """Everything in eval mode (no dropout), batch-norm alone as in training: with the statistics of the batch."""
    with _modes_restored(model.modules() if modules is None else modules) as modes:
        frozen_parts = model.training
        for module, training in modes:
            _set_mode(module, isinstance(module, _BatchNorm) and (training or not frozen_parts))
        yield


@contextlib.contextmanager
def modes_of(model: nn.Module, copied: nn.Module) -> Iterator[None]:
    """The parts of a copy of the model in the modes of the model's own; what the model has no more stays as it is."""
    own = dict(model.named_modules())
    with _modes_restored(copied.modules()):
        for name, module in copied.named_modules():
            if name in own:
                _set_mode(module, own[name].training)
        yield


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    with _modes_restored(model.modules()), _asked_to(model, train=False):
        yield


@contextlib.contextmanager
def _asked_to(model: nn.Module, *, train: bool) -> Iterator[None]:
    """The model's own `train` is called on the way in and on the way out: one may do more there than set a flag."""
    training = model.training
    if not train or not training:
        model.train(train)
    try:
        yield
    finally:
        if model.training != training:
            model.train(training)
