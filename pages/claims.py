"""What the controls come to, in sentences with their numbers: each is shown only while the results support it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .comparisons import Comparison, Verdict, difference_of
from .questions import CONTROL, COST, FULL, GENERATIVE, HYBRID, MNIST, PASSED, PERMUTED, RANKING, RAW, SHORT, TEN


class Ground(NamedTuple):
    """A comparison, on which side of zero a claim needs it, and its name in the claim; less forgetting is ahead."""

    target: str
    later: str
    earlier: str
    where: str
    label: str
    accuracy: Verdict | None = None
    forgetting: Verdict | None = None

    def found(self, compared: Sequence[Comparison]) -> Comparison | None:
        """Return the comparison if it is on that side."""
        for comparison in compared:
            if (
                comparison.place == self[:4]
                and self.accuracy in (None, comparison.verdict())
                and self.forgetting in (None, comparison.verdict("forgetting"))
            ):
                return comparison
        return None


TERMS = (
    "ER replays stored samples at random. ER-MIR passes 50 candidates through the network, before and after a virtual "
    "step, and replays those whose loss rises most. GEN-MIR and AE-MIR search for such samples in the latent space of "
    "a generator, and among stored codes. Each number is a paired difference on the same seeds in points of accuracy, "
    "or of forgetting where it says so, with its 95 % interval; *not significant* means that the interval contains 0."
)
BY_MEMORY = "controls-batchnorm-memory"
CLAIMS: dict[str, tuple[Ground, ...]] = {
    "On Split and Permuted MNIST, at the settings of the paper, ER-MIR is more accurate than ER": (
        Ground(MNIST, "ER-MIR", "ER", "Split MNIST", "Split MNIST", "ahead"),
        Ground(PERMUTED, "ER-MIR", "ER", "Permuted, lr 0.05", "Permuted MNIST", "ahead"),
    ),
    "On Split CIFAR-10 with batch-norm statistics as published, ER-MIR is more accurate than ER with 500 stored "
    "samples": (Ground(BY_MEMORY, "ER-MIR", "ER", "M=50, published", "500, published", "ahead"),),
    "On Split CIFAR-10 with 1,000 stored samples and statistics as published, ER-MIR and ER do not differ "
    "significantly": (Ground(FULL, "ER-MIR", "ER", "published", "1,000, published", "open"),),
    "On Split CIFAR-10 with 1,000 stored samples and statistics as published, ER-MIR is more accurate than ER": (
        Ground(FULL, "ER-MIR", "ER", "published", "1,000, published", "ahead"),
    ),
    "On Split CIFAR-10 with batch-norm statistics re-estimated from the memory, ER-MIR and ER do not differ "
    "significantly": (
        Ground(BY_MEMORY, "ER-MIR", "ER", "M=50, recalibrated", "500, re-estimated", "open"),
        Ground(FULL, "ER-MIR", "ER", "recalibrated", "1,000, re-estimated", "open"),
    ),
    "On Split CIFAR-10 with statistics as published, ER-MIR does not differ significantly from plain replay that "
    "passes 50 candidates too and replays ten of them at random": (
        Ground(FULL, "ER-MIR", PASSED, "published", "1,000, candidates passed", "open"),
    ),
    "On Split CIFAR-10 with group-norm, ER-MIR and ER do not differ significantly": (
        Ground(FULL, "ER-MIR", "ER", "group-norm", "1,000, group-norm", "open"),
    ),
    "On Split CIFAR-10 with 2,500 samples a task and statistics as published, passing candidates makes plain replay "
    "more accurate, and choosing among these candidates makes it less accurate": (
        Ground(SHORT, PASSED, "ER", "published", "passed − ER", "ahead"),
        Ground(SHORT, "ER-MIR", PASSED, "published", "ER-MIR − passed", "behind"),
    ),
    "On Split CIFAR-10 with 2,500 samples a task and statistics re-estimated, neither is significant": (
        Ground(SHORT, PASSED, "ER", "recalibrated", "passed − ER, re-estimated", "open"),
        Ground(SHORT, "ER-MIR", PASSED, "recalibrated", "ER-MIR − passed, re-estimated", "open"),
    ),
    "On Split CIFAR-10 with 2,500 samples a task and statistics re-estimated, a second update of plain replay is more "
    "accurate than the retrieval": (
        Ground(f"{COST}-2500", "ER-MIR", "ER, 2 updates", "recalibrated", "ER-MIR − 2 updates", "behind"),
    ),
    "On Split MNIST a second update of plain replay and the retrieval do not differ significantly in accuracy, and the "
    "retrieval forgets less": (
        Ground(MNIST, "ER-MIR", "ER, 2 updates", "Split MNIST", "Split MNIST, ER-MIR − 2 updates", "open", "ahead"),
    ),
    "On Split MNIST the retrieval is more accurate than a second update of plain replay and forgets less": (
        Ground(MNIST, "ER-MIR", "ER, 2 updates", "Split MNIST", "Split MNIST, ER-MIR − 2 updates", "ahead", "ahead"),
    ),
    "On Split CIFAR-10 with 500 stored samples, statistics re-estimated from the memory instead of those as published "
    "make both ER and ER-MIR more accurate": (
        Ground(BY_MEMORY, "M=50, recalibrated", "M=50, published", "ER", "ER", "ahead"),
        Ground(BY_MEMORY, "M=50, recalibrated", "M=50, published", "ER-MIR", "ER-MIR", "ahead"),
    ),
    "With a generator, the search is more accurate than none; so is its term for confidence alone": (
        Ground(GENERATIVE, "GEN-MIR", CONTROL, "MNIST Split", "GEN-MIR", "ahead", "ahead"),
        Ground(GENERATIVE, "GEN-MIR, confidence term alone", CONTROL, "MNIST Split", "confidence", "ahead", "ahead"),
    ),
    "With a generator, the search's term for interference alone makes no significant difference": (
        Ground(GENERATIVE, "GEN-MIR, interference term alone", CONTROL, "MNIST Split", "interference", "open", "open"),
    ),
    "With a generator, ranking ten times as many samples by interference, without a search, is more accurate than no "
    "retrieval": (Ground(GENERATIVE, RANKING, CONTROL, "MNIST Split", "ranking", "ahead", "ahead"),),
    "Among 1,000 codes, with 2,500 samples a task, the search makes no significant difference": (
        Ground(HYBRID, "AE-MIR", "AE", "equal bytes", "AE-MIR − AE", "open", "open"),
    ),
    "Among 1,000 codes as in the reference implementation, where AE-MIR replays ten codes ten times and AE 100 codes, "
    "AE-MIR forgets less, and accuracy does not differ significantly": (
        Ground(HYBRID, f"AE-MIR, {TEN}", "AE", "equal bytes", "AE-MIR ten times − AE", "open", "ahead"),
    ),
    "Among 1,000 codes with ten codes replayed ten times by both, neither differs significantly": (
        Ground(HYBRID, f"AE-MIR, {TEN}", f"AE, {TEN}", "equal bytes", "both ten times", "open", "open"),
    ),
    "At equal bytes, the autoencoder not counted, a memory of codes is more accurate than one of raw images": (
        Ground(HYBRID, "AE", RAW, "equal bytes", "AE − raw images", "ahead"),
    ),
}


def supported(compared: Sequence[Comparison]) -> str:
    """Return the claims that hold as a list, each with the numbers that it rests on."""
    lines = []
    for claim, grounds in CLAIMS.items():
        found = {ground: ground.found(compared) for ground in grounds}
        numbers = "; ".join(_numbers(ground, one) for ground, one in found.items() if one is not None)
        lines += [f"- {claim} ({numbers})."] if None not in found.values() else []
    return "\n".join(lines)


def _numbers(ground: Ground, comparison: Comparison) -> str:
    named = {"": ground.accuracy, "forgetting ": ground.forgetting}
    metrics = [(words, words.strip() or "accuracy") for words, wanted in named.items() if wanted is not None]
    return f"{ground.label}: {', '.join(words + difference_of(comparison, metric) for words, metric in metrics)}"


def what_it_comes_to(compared: Sequence[Comparison]) -> list[str]:
    """The words that are used, and the claims that hold; nothing where none does."""
    held = supported(compared)
    return [TERMS, held] if held else []
