"""The controls in a few questions, each answered by one comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rehearse.lab.report.reproduction import markdown_table

from .comparisons import Comparison, Verdict, difference_of


class Question(NamedTuple):
    """Plain words, and the comparison of which target and place answers them."""

    words: str
    target: str
    later: str
    earlier: str
    where: str


MNIST, PERMUTED, LOSSES = "controls-cost-mnist", "controls-learning-rate", "controls-losses"
FULL, SHORT, COST = "controls-batchnorm-full", "controls-batchnorm-2500", "controls-cost-cifar10"
GENERATIVE, HYBRID, CONTROL = "controls-generative", "controls-hybrid", "GEN at GEN-MIR's settings"
PASSED, TEN, RAW = "ER, candidates passed", "ten codes ten times", "ER, 416 raw images"
RANKING = "ranking of samples, no search"
QUESTIONS = (
    Question("Is it better to choose by interference? On Split MNIST", MNIST, "ER-MIR", "ER", "Split MNIST"),
    Question("On Permuted MNIST", PERMUTED, "ER-MIR", "ER", "Permuted, lr 0.05"),
    Question("On Split CIFAR-10, batch-norm's statistics as published", FULL, "ER-MIR", "ER", "published"),
    Question("… statistics re-estimated from the memory", FULL, "ER-MIR", "ER", "recalibrated"),
    Question("… group-norm, which has no statistics", FULL, "ER-MIR", "ER", "group-norm"),
    Question("… 2,500 samples a task, as published", SHORT, "ER-MIR", "ER", "published"),
    Question("… 2,500 samples a task, re-estimated", SHORT, "ER-MIR", "ER", "recalibrated"),
    Question("Is it better to let 50 candidates pass and replay ten of them at random? Split CIFAR-10, as published",
             FULL, PASSED, "ER", "published"),
    Question("… 2,500 samples a task", SHORT, PASSED, "ER", "published"),
    Question("With candidates that pass either way, is it better to choose? Split CIFAR-10, as published",
             FULL, "ER-MIR", PASSED, "published"),
    Question("… 2,500 samples a task", SHORT, "ER-MIR", PASSED, "published"),
    Question("Is it better than a second update of plain replay? On Split MNIST",
             MNIST, "ER-MIR", "ER, 2 updates", "Split MNIST"),
    Question("… on Split CIFAR-10, re-estimated", f"{COST}-full", "ER-MIR", "ER, 2 updates", "recalibrated"),
    Question("… 2,500 samples a task, re-estimated", f"{COST}-2500", "ER-MIR", "ER, 2 updates", "recalibrated"),
    Question("From a generator: is the search better, its gradient fresh?",
             GENERATIVE, "GEN-MIR", CONTROL, "MNIST Split"),
    Question("… its gradient stale, as published",
             GENERATIVE, "GEN-MIR, stale gradient as published", CONTROL, "MNIST Split"),
    Question("… its term for confidence alone",
             GENERATIVE, "GEN-MIR, confidence term alone", CONTROL, "MNIST Split"),
    Question("… its term for interference alone",
             GENERATIVE, "GEN-MIR, interference term alone", CONTROL, "MNIST Split"),
    Question("… weights under which interference rises",
             GENERATIVE, "GEN-MIR, interference made to rise", CONTROL, "MNIST Split"),
    Question("… no search, samples ranked by interference", GENERATIVE, RANKING, CONTROL, "MNIST Split"),
    Question("From codes: is the search better, with 100 codes replayed?", HYBRID, "AE-MIR", "AE", "equal bytes"),
    Question("… with ten codes replayed ten times", HYBRID, f"AE-MIR, {TEN}", f"AE, {TEN}", "equal bytes"),
    Question("… ten codes ten times against 100 at random, as in the reference implementation",
             HYBRID, f"AE-MIR, {TEN}", "AE", "equal bytes"),
    Question("From codes at random: are ten, ten times, better than 100?", HYBRID, f"AE, {TEN}", "AE", "equal bytes"),
    Question("At equal bytes: are codes better than raw images?", HYBRID, "AE", RAW, "equal bytes"),
    Question("With the asymmetric loss: is it better to choose? On Split MNIST",
             f"{LOSSES}-mnist", "er-ace-mir", "er-ace", "Split MNIST"),
    Question("… Split CIFAR-10, 2,500 samples a task, re-estimated",
             f"{LOSSES}-cifar10-2500", "er-ace-mir", "er-ace", "recalibrated"),
    Question("With stored logits as targets: is it better to choose? On Split MNIST",
             f"{LOSSES}-mnist", "der-mir", "der", "Split MNIST"),
    Question("… Split CIFAR-10, 2,500 samples a task, re-estimated",
             f"{LOSSES}-cifar10-2500", "der-mir", "der", "recalibrated"),
)  # fmt: skip
ANSWERS: dict[tuple[Verdict, Verdict], str] = {  # by accuracy, by forgetting
    ("ahead", "ahead"): "yes",
    ("ahead", "open"): "yes",
    ("ahead", "behind"): "yes, but it forgets more",
    ("open", "ahead"): "it forgets less; accuracy is open",
    ("open", "open"): "not settled",
    ("open", "behind"): "it forgets more; accuracy is open",
    ("behind", "ahead"): "no, but it forgets less",
    ("behind", "open"): "no",
    ("behind", "behind"): "no",
}


def in_short(compared: Sequence[Comparison]) -> str:
    """Each question with its difference in accuracy and forgetting, and what these settle."""
    known = {comparison.place: comparison for comparison in compared}
    rows = []
    for question in QUESTIONS:
        comparison = known.get(question[1:])
        if comparison is None:
            continue
        verdicts = comparison.verdict(), comparison.verdict("forgetting")
        answer = ANSWERS.get(verdicts, verdicts[0])
        pair = f"`{question.later} − {question.earlier}`"
        rows.append([question.words, answer, pair, *(difference_of(comparison, m) for m in ("accuracy", "forgetting"))])
    if not rows:
        return "None of the short questions is asked by these controls."
    return "\n\n".join(
        (
            "### In short",
            "Does it help to choose samples by how much the coming update interferes with them, and what else came "
            "with it? Differences in points, from the tables below. A *yes*, a *no*, a *less* or a *more* is settled "
            "by its interval; all else is open, whatever its mean.",
            markdown_table(["question", "answer", "difference", "accuracy", "forgetting"], rows, right=3),
        )
    )
