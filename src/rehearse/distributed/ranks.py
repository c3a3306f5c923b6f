"""Ranks: the processes that train one model together, and what they exchange."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import InvalidInput, RankLost, RefusedElsewhere, RehearseError
from ..random import seed_sequence
from ..undo import Commit, Undoable, all_or_nothing, assign

Item = TypeVar("Item")
ACTS: Final = ("a comparison", "a next batch", "a gradient", "a step", "labels", "a commit", "a save", "a load")
REFUSED, ACT, STEPS, NUMBERS, WIDTH = 0, 1, 2, 3, 7  # columns of the table that is exchanged, and their number
SEED_BITS: Final = 63


class Ranks:
    """The processes of torch's default process group, seen from one of them.

    Every exchange begins with `agree`: a table with a row from each rank, the same for all. A rank that fails between
    two exchanges takes part in the next one with a row that says so, and then no rank completes its step: nobody waits
    for a rank that has given up. Whatever happens to a rank inside an exchange ends the wait of the others by the
    timeout of the group at the latest (``init_process_group(timeout=...)``).
    """

    def __init__(self) -> None:
        """Join the process group.

        Raises:
            InvalidInput: If there is none.
        """
        if not (dist.is_available() and dist.is_initialized()):
            start = "start the processes by torchrun, and call torch.distributed.init_process_group() in each"
            raise InvalidInput(f"distributed=True needs a process group: {start}")
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.steps = 0  # that all ranks have committed since they were built or loaded
        self.seed = 0  # that all were given
        self.lost: str | None = None  # why nothing can be exchanged any more
        gloo = "gloo" in dist.get_backend()
        self.device = torch.device("cpu" if gloo else "cuda")  # of what is exchanged beside gradients
        self.arriving: list[int] = []  # the number of samples that each rank learns in this step

    def own_seed(self, seed: int) -> int:
        """Return a seed for what each rank draws for itself, such as dropout; that of the first is the one given."""
        sequence = seed_sequence(seed, f"rank {self.rank}")  # checks the seed
        self.seed = seed
        return seed if self.rank == 0 else int(sequence.generate_state(2, "uint64")[0]) >> (64 - SEED_BITS)

    # ------------------------------------------------------------------------------------------------- exchanging

    def agree(self, act: str, *numbers: float, refused: bool = False) -> Tensor:
        """Exchange a few numbers: return one row for each rank.

        Args:
            act: What this rank does, one of `ACTS`; all must do the same.
            numbers: At most four, exact below 2⁵³.
            refused: Whether this rank has failed.

        Raises:
            RefusedElsewhere: If another rank has failed.
            RankLost: If a rank cannot be reached, does something else, or has made another number of steps.
        """
        row = [float(refused), ACTS.index(act), self.steps, *numbers, *[0.0] * (WIDTH - NUMBERS - len(numbers))]
        given = torch.tensor(row, dtype=torch.float64, device=self.device)
        table = torch.stack(self.gather(given)).cpu()
        if refused:
            return table
        if failed := table[:, REFUSED].nonzero().flatten().tolist():
            which = " and ".join(map(str, failed))
            raise RefusedElsewhere(f"nothing was done by any rank: see the error of rank {which}")
        for column, what in ((ACT, "takes part in {}"), (STEPS, "has made {} steps")):
            values = table[:, column].int().tolist()
            if len(set(values)) > 1:
                named = [ACTS[value] if column == ACT else value for value in values]
                said = ", ".join(f"rank {rank} {what.format(value)}" for rank, value in enumerate(named))
                raise RankLost(f"the ranks are not at the same point: {said}; load the last save in all of them")
        return table[:, NUMBERS:]

    def sum(self, values: Tensor) -> None:
        """Replace a tensor by the sum over all ranks, the same bits on each."""
        self._exchange(dist.all_reduce, values)

    def gather(self, values: Tensor) -> list[Tensor]:
        """Return the values of each rank; all have a tensor of the same shape."""
        gathered = [torch.empty_like(values) for _ in range(self.count)]
        self._exchange(dist.all_gather, gathered, values)
        return gathered

    def _exchange(self, collective: Callable[..., Any], *arguments: Any) -> None:
        if self.lost is not None:
            raise RankLost(self.lost)
        try:
            collective(*arguments)
        except RuntimeError as problem:
            self.lost = "another rank has stopped, or did not answer in time; restart all ranks from their last save"
            raise RankLost(f"{self.lost} ({problem})") from problem

    # ------------------------------------------------------------------------------------------- all ranks or none

    @contextlib.contextmanager
    def reporting(self) -> Iterator[None]:
        """Tell the other ranks of an error inside the block, so that they raise too."""
        try:
            yield
        except (RefusedElsewhere, RankLost):
            raise
        except Exception:
            if self.lost is None:
                self.agree(ACTS[0], refused=True)
            raise
        except BaseException as interrupt:  # perhaps between the parts of an exchange
            self.lost = f"{type(interrupt).__name__} came between exchanges; restart all ranks from their last save"
            raise

    @contextlib.contextmanager
    def all_or_nothing(self, *parts: Undoable) -> Iterator[Commit]:
        """Do the same as `undo.all_or_nothing`, on all ranks or on none: they agree just before the commit."""
        try:
            with self.reporting(), all_or_nothing(*parts) as commit:

                def agreed(*operations: Any) -> None:
                    self.agree("a commit")
                    commit(assign(self, steps=self.steps + 1), *operations)

                yield agreed
        finally:
            self.arriving = []

    @contextlib.contextmanager
    def loading(self, names: list[str], learner: Any) -> Iterator[None]:
        """Load a state in the block: all ranks one of the same save, or none."""
        steps, self.steps = self.steps, 0  # wherever each of them was
        try:
            self.make_same({"saves": names})
            before = learner.state_dict()
            yield
            try:
                self.agree("a load")
            except RehearseError:
                learner.load_state_dict(before)
                raise
        except BaseException:
            self.steps = steps
            raise

    def in_step(self, batches: Iterable[Item]) -> Iterator[Item]:
        """Yield batches as long as every rank has one; what is left of longer shares is not used."""
        iterator = iter(batches)
        while True:
            with self.reporting():
                batch = next(iterator, None)
            if not self.agree("a next batch", batch is not None)[:, 0].all() or batch is None:
                return
            yield batch

    @torch.no_grad()
    def make_same(self, values: dict[str, Any], tensors: Iterable[Tensor] = ()) -> None:
        """Refuse values that are not the same on all ranks; give these tensors the values of the first rank."""
        for name, value in values.items():
            if len(set(self.agree("a comparison", hash_of(value))[:, 0].tolist())) > 1:
                raise InvalidInput(f"the ranks have different {name}; build all of them alike (here: {value!s:.200})")
        for tensor in tensors if self.count > 1 else ():
            value = tensor.detach().clone(memory_format=torch.contiguous_format)
            self._exchange(dist.broadcast, value, 0)
            tensor.copy_(value)


def hash_of(value: Any) -> int:
    """Return 48 bits of a hash of a value's text; of tensors, of their bytes."""
    hashed = hashlib.sha256()
    for part in value if isinstance(value, list) else [value]:
        raw = part.detach().cpu().contiguous().view(-1).view(torch.uint8) if isinstance(part, Tensor) else None
        hashed.update(repr(part).encode() if raw is None else bytes(raw.numpy()))
    return int.from_bytes(hashed.digest()[:6], "little")
