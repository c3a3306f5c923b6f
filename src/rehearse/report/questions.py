"""The controls in a few questions, each answered by one comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .comparisons import Comparison, Verdict, difference_of
from .reproduction import markdown_table


class Question(NamedTuple):
    """Plain words, and the comparison of which target and place answers them."""

    words: str
    target: str
    later: str
    earlier: str
    where: str


QUESTIONS = (
    Question("Split MNIST, the paper's settings: does it help to choose by interference?",
             "controls-cost-mnist", "ER-MIR", "ER", "Split MNIST"),
    Question("Permuted MNIST?",
             "controls-learning-rate", "ER-MIR", "ER", "Permuted, lr 0.05"),
    Question("Split CIFAR-10, the statistics of batch-norm as published?",
             "controls-batchnorm-full", "ER-MIR", "ER", "published"),
    Question("… of which: 50 candidates pass through batch-norm, whichever are recalled?",
             "controls-batchnorm-full", "ER, candidates passed", "ER", "published"),
    Question("… and: which of them are recalled?",
             "controls-batchnorm-full", "ER-MIR", "ER, candidates passed", "published"),
    Question("Split CIFAR-10, statistics re-estimated from the memory?",
             "controls-batchnorm-full", "ER-MIR", "ER", "recalibrated"),
    Question("Split CIFAR-10, group-norm, where there are no statistics?",
             "controls-batchnorm-full", "ER-MIR", "ER", "group-norm"),
    Question("Split CIFAR-10, 2,500 samples a task, statistics re-estimated?",
             "controls-batchnorm-2500", "ER-MIR", "ER", "recalibrated"),
    Question("Split MNIST, plain replay with two updates in its place?",
             "controls-cost-mnist", "ER-MIR", "ER, 2 updates", "Split MNIST"),
    Question("Split CIFAR-10, likewise, statistics re-estimated?",
             "controls-cost-cifar10-full", "ER-MIR", "ER, 2 updates", "recalibrated"),
    Question("Split CIFAR-10, likewise, 2,500 samples a task?",
             "controls-cost-cifar10-2500", "ER-MIR", "ER, 2 updates", "recalibrated"),
    Question("A generator: the published search, all else equal?",
             "controls-generative", "GEN-MIR", "GEN at GEN-MIR's settings", "MNIST Split"),
    Question("… its term for confidence alone?",
             "controls-generative", "GEN-MIR, confidence term alone", "GEN at GEN-MIR's settings", "MNIST Split"),
    Question("… its term for interference alone?",
             "controls-generative", "GEN-MIR, interference term alone", "GEN at GEN-MIR's settings", "MNIST Split"),
    Question("A memory of codes: the search, with 100 codes recalled by both?",
             "controls-hybrid", "AE-MIR", "AE", "equal bytes"),
    Question("… with ten codes recalled ten times by both?",
             "controls-hybrid", "AE-MIR, ten codes ten times", "AE, ten codes ten times", "equal bytes"),
    Question("… ten codes ten times, at random, in the place of 100?",
             "controls-hybrid", "AE, ten codes ten times", "AE", "equal bytes"),
    Question("On top of the asymmetric loss, Split MNIST?",
             "controls-losses-mnist", "er-ace-mir", "er-ace", "Split MNIST"),
    Question("On top of stored scores, Split MNIST?",
             "controls-losses-mnist", "der-mir", "der", "Split MNIST"),
    Question("On top of the asymmetric loss, Split CIFAR-10, 2,500 samples a task, statistics re-estimated?",
             "controls-losses-cifar10-2500", "er-ace-mir", "er-ace", "recalibrated"),
    Question("On top of stored scores, likewise?",
             "controls-losses-cifar10-2500", "der-mir", "der", "recalibrated"),
)  # fmt: skip
ANSWERS: dict[tuple[Verdict, Verdict], str] = {  # by accuracy, by forgetting
    ("ahead", "ahead"): "yes",
    ("ahead", "open"): "yes",
    ("ahead", "behind"): "better, and forgets more",
    ("open", "ahead"): "only against forgetting",
    ("open", "open"): "not settled",
    ("open", "behind"): "no, it forgets more",
    ("behind", "ahead"): "worse, and forgets less",
    ("behind", "open"): "no, it is worse",
    ("behind", "behind"): "no, it is worse",
}


def in_short(compared: Sequence[Comparison]) -> str:
    """Each question with its difference in accuracy and forgetting, and what these settle."""
    known = {(c.target, c.later, c.earlier, c.where): c for c in compared}
    rows = []
    for question in QUESTIONS:
        comparison = known.get(question[1:])
        if comparison is None:
            continue
        verdicts = comparison.verdict(), comparison.verdict("forgetting", better=-1)
        answer = ANSWERS.get(verdicts, verdicts[0])
        held = f"`{question.later} − {question.earlier}`"
        rows.append([question.words, *(difference_of(comparison, m) for m in ("accuracy", "forgetting")), answer, held])
    return "\n\n".join(
        (
            "### In short",
            "Does it help to choose memories by how much the coming update interferes with them, and what else came "
            "with it? Differences in points, from the tables below; every answer but *not settled* is settled by an "
            "interval.",
            markdown_table(["question", "accuracy", "forgetting", "answer", "held against each other"], rows, right=4),
        )
    )
