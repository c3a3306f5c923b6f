"""Every claim of the summary, and every count of verdicts, recomputed from results/ without the code of the report.

Nothing here is from lab/paper, lab/report or lab/statistics: results are read as JSON, matched by the fields of their
specs, and compared by scipy. A claim of docs/results.md that is not known here fails.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rehearse.lab.methods import resolve
from rehearse.lab.spec import named_specs

ROOT = Path(__file__).resolve().parents[2]
PAPER = ROOT / "src" / "rehearse" / "lab" / "paper"
PRECISIONS = ("float32", "bfloat16-scoring", "bfloat16")
UNCOMPARED = ("seed", "precision")
Values = dict[tuple[str, int], dict[str, float]]  # (precision, seed) -> metrics
RESULTS = [json.loads(file.read_text("utf-8")) for file in sorted((ROOT / "results").glob("*.json"))]


def fields(spec: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in spec.items() if name not in UNCOMPARED}, sort_keys=True)


BY_FIELDS: dict[str, list[dict[str, Any]]] = {}
for one in RESULTS:
    BY_FIELDS.setdefault(fields(one["spec"]), []).append(one)


def found(method: str, stream: str, mode: str | None = None, spec: str | None = None, **settings: Any) -> Values:
    """The metrics of all runs of a setting; of a batch-norm mode where the training reported several."""
    base = named_specs()[spec] if spec else {}
    wanted = resolve(method, stream, base, settings).to_dict()
    values: Values = {}
    for result in BY_FIELDS.get(fields(wanted), []):
        scores = wanted["criterion"] is not None or wanted["candidates"] is not None
        scores = scores or "search_steps" in wanted["options"]
        precision = result["spec"]["precision"]
        precision = "float32" if precision == "bfloat16-scoring" and not scores else precision
        metrics = result["metrics"]
        if mode is not None:
            if mode not in result.get("treatments", {}):
                continue
            metrics = result["treatments"][mode]["metrics"]
        values[precision, result["spec"]["seed"]] = metrics
    return values


def one_a_seed(values: Values) -> dict[int, dict[str, float]]:
    kept: dict[int, dict[str, float]] = {}
    for precision in PRECISIONS:
        for (which, seed), metrics in values.items():
            if which == precision:
                kept.setdefault(seed, metrics)
    return kept


def paired(one: Values, other: Values, metric: str) -> list[float]:
    """One minus the other by seed: in one precision where both have it, else as they are."""
    a, b, differences = one_a_seed(one), one_a_seed(other), []
    for seed in sorted(a.keys() & b.keys()):
        shared = [p for p in PRECISIONS if (p, seed) in one and (p, seed) in other]
        pair = (one[shared[0], seed], other[shared[0], seed]) if shared else (a[seed], b[seed])
        differences.append(100 * (pair[0][metric] - pair[1][metric]))
    return differences


def interval(values: list[float]) -> tuple[float, float]:
    mean, error = np.mean(values), stats.sem(values)
    return tuple(stats.t.interval(0.95, len(values) - 1, mean, error))  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------- claims in sentences

SPLIT, PERMUTED, CIFAR = "split-mnist", "permuted-mnist", "split-cifar10"
SHORT = {"samples_per_task": 2500}
CODES = {**SHORT, "capacity": 1000}


def er(mode: str | None = None, **settings: Any) -> Values:
    return found("er", CIFAR, mode, **settings)


def mir(mode: str | None = None, **settings: Any) -> Values:
    return found("er-mir", CIFAR, mode, **settings)


def gen(spec: str) -> Values:
    return found("gen" if spec == "gen-control" else "gen-mir", SPLIT, spec=None if spec == "gen-mir" else spec)


def compared() -> dict[str, tuple[Values, Values]]:
    """What each number of the summary is: its label, and the runs of which it is the difference."""
    group = {"network": "resnet18-groupnorm", "memory": 100}
    passed = {"memory": 100, "candidates": 50}
    ten = found("ae-mir", CIFAR, spec="ae-mir-ten-times", **CODES)
    return {
        "Split MNIST": (found("er-mir", SPLIT), found("er", SPLIT)),
        "Permuted MNIST": (found("er-mir", PERMUTED), found("er", PERMUTED)),
        "500, published": (mir(memory=50), er(memory=50)),
        "1,000, published": (mir(), er()),
        "500, re-estimated": (mir("recalibrated", memory=50), er("recalibrated", memory=50)),
        "1,000, re-estimated": (mir("recalibrated"), er("recalibrated")),
        "1,000, candidates passed": (mir(), er(**passed)),
        "1,000, group-norm": (mir(**group), er(**group)),
        "passed − ER": (er(**passed, **SHORT), er(**SHORT)),
        "ER-MIR − passed": (mir(**SHORT), er(**passed, **SHORT)),
        "passed − ER, re-estimated": (er("recalibrated", **passed, **SHORT), er("recalibrated", **SHORT)),
        "ER-MIR − passed, re-estimated": (mir("recalibrated", **SHORT), er("recalibrated", **passed, **SHORT)),
        "ER-MIR − 2 updates": (mir("recalibrated", **SHORT), er("recalibrated", updates=2, **SHORT)),
        "Split MNIST, ER-MIR − 2 updates": (found("er-mir", SPLIT), found("er", SPLIT, updates=2)),
        "ER": (er("recalibrated", memory=50), er(memory=50)),
        "ER-MIR": (mir("recalibrated", memory=50), mir(memory=50)),
        "GEN-MIR": (gen("gen-mir"), gen("gen-control")),
        "confidence": (gen("gen-mir-confidence-alone"), gen("gen-control")),
        "interference": (gen("gen-mir-interference-alone"), gen("gen-control")),
        "ranking": (gen("gen-mir-ranking"), gen("gen-control")),
        "AE-MIR − AE": (found("ae-mir", CIFAR, **CODES), found("ae", CIFAR, **CODES)),
        "AE-MIR ten times − AE": (
            found("ae-mir", CIFAR, spec="ae-mir-ten-times", **CODES),
            found("ae", CIFAR, **CODES),
        ),
        "both ten times": (ten, found("ae", CIFAR, spec="ae-ten-times", **CODES)),
        "AE − raw images": (found("ae", CIFAR, **CODES), found("er", CIFAR, capacity=416, budget=100, **SHORT)),
    }


NUMBER = r"([+-]\d+\.\d) ± (\d+\.\d) \(n = (\d+)(?: ×)?\)"
PART = re.compile(rf"([^:;]+): {NUMBER}(?:, forgetting {NUMBER})?")
# claim -> on which side of zero each of its numbers must lie for the sentence to be true, in their order
SIGNS = {
    "On Split and Permuted MNIST, at the settings of the paper, ER-MIR is more accurate than ER": "++",
    "On Split CIFAR-10 with batch-norm statistics as published, ER-MIR is more accurate than ER with 500 stored "
    "samples": "+",
    "On Split CIFAR-10 with 1,000 stored samples and statistics as published, ER-MIR and ER do not differ "
    "significantly": "0",
    "On Split CIFAR-10 with 1,000 stored samples and statistics as published, ER-MIR is more accurate than ER": "+",
    "On Split CIFAR-10 with batch-norm statistics re-estimated from the memory, ER-MIR and ER do not differ "
    "significantly": "00",
    "On Split CIFAR-10 with statistics as published, ER-MIR does not differ significantly from plain replay that "
    "passes 50 candidates too and replays ten of them at random": "0",
    "On Split CIFAR-10 with group-norm, ER-MIR and ER do not differ significantly": "0",
    "On Split CIFAR-10 with 2,500 samples a task and statistics as published, passing candidates makes plain replay "
    "more accurate, and choosing among these candidates makes it less accurate": "+-",
    "On Split CIFAR-10 with 2,500 samples a task and statistics re-estimated, neither is significant": "00",
    "On Split CIFAR-10 with 2,500 samples a task and statistics re-estimated, a second update of plain replay is more "
    "accurate than the retrieval": "-",
    "On Split MNIST a second update of plain replay and the retrieval do not differ significantly in accuracy, and the "
    "retrieval forgets less": "0-",
    "On Split MNIST the retrieval is more accurate than a second update of plain replay and forgets less": "+-",
    "On Split CIFAR-10 with 500 stored samples, statistics re-estimated from the memory instead of those as published "
    "make both ER and ER-MIR more accurate": "++",
    "With a generator, the search is more accurate than none; so is its term for confidence alone": "+-+-",
    "With a generator, the search's term for interference alone makes no significant difference": "00",
    "With a generator, ranking ten times as many samples by interference, without a search, is more accurate than no "
    "retrieval": "+-",
    "Among 1,000 codes, with 2,500 samples a task, the search makes no significant difference": "00",
    "Among 1,000 codes as in the reference implementation, where AE-MIR replays ten codes ten times and AE 100 codes, "
    "AE-MIR forgets less, and accuracy does not differ significantly": "0-",
    "Among 1,000 codes with ten codes replayed ten times by both, neither differs significantly": "00",
    "At equal bytes, the autoencoder not counted, a memory of codes is more accurate than one of raw images": "+",
}


def bullets(file: Path) -> list[str]:
    text = file.read_text("utf-8")
    start = text.index("ER replays stored samples at random.")
    return re.findall(r"^- (.*)\.$", text[start : re.compile("^#|^<!--", re.M).search(text, start).start()], re.M)  # type: ignore[union-attr]


def test_every_claim_of_the_summary_follows_from_the_results() -> None:
    claims, runs = bullets(ROOT / "docs" / "results.md"), compared()
    assert len(claims) >= 8
    for claim in claims:
        sentence, _, numbers = claim.partition(" (")
        signs = iter(SIGNS[sentence])
        parts = PART.findall(numbers.removesuffix(")"))
        assert parts, claim
        for label, *printed in parts:
            for metric, (mean, half, n) in zip(("accuracy", "forgetting"), (printed[:3], printed[3:]), strict=True):
                if not mean:
                    continue
                values = paired(*runs[label.strip()], metric)
                low, high = interval(values)
                side = "+" if low > 0 else "-" if high < 0 else "0"
                assert len(values) == int(n), claim
                assert (float(mean), float(half)) == pytest.approx((np.mean(values), (high - low) / 2), abs=0.0501), (
                    claim
                )
                assert side == next(signs), claim
        assert next(signs, None) is None, claim


def test_the_page_of_the_controls_makes_the_same_claims() -> None:
    assert bullets(ROOT / "docs" / "what-makes-it-work.md") == bullets(ROOT / "docs" / "results.md")


# --------------------------------------------------------------------------------------------------- counts of verdicts

NAMED = {  # rows whose settings are named specs: (table, column's stream or "", row) -> spec
    ("table5", SPLIT, "GEN"): "gen-elbo",
    ("table5", SPLIT, "GEN-MIR"): "gen-mir-elbo",
    ("table5", PERMUTED, "GEN"): "permuted-gen-elbo",
    ("table5", PERMUTED, "GEN-MIR"): "permuted-gen-mir-elbo",
}


def cells() -> Iterator[tuple[str, str, str, tuple[float, float, int | None], Values]]:
    """Table, what is run, metric, published (mean, standard error, runs), and ours; in points, or nats."""
    for table, content in tomllib.loads((PAPER / "published.toml").read_text("utf-8")).items():
        for row in content["rows"]:
            for place, column in enumerate(content["columns"]):
                for metric in ("accuracy", "forgetting", "generator-loss"):
                    printed = re.fullmatch(r"([\d.]+)(?: ± ([\d.]+))?", row.get(metric, [""] * 9)[place])
                    if printed is None:
                        continue
                    method, stream, variant = row["method"], column["stream"], row.get("variant")
                    generative = method.startswith("gen") and method != "gem"
                    error = float(printed[2] or 0) / (1 if generative else 2)
                    settings: dict[str, Any] = {} if generative else {"updates": row.get("updates", column["updates"])}
                    if method in ("er", "er-mir", "gem", "icarl"):
                        settings["memory"] = column["memory"]
                    if table == "cifar10-1k":
                        settings["samples_per_task"] = column["samples_per_task"]
                    ablated = f"gen-mir-{variant}" if variant else None
                    spec = NAMED.get((table, stream, row["row"]), ablated)
                    ours = found(method, stream, spec=spec, **settings)
                    what = f"{method} {stream} {spec} {settings}"
                    measured = "validation_accuracy" if table == "table6" else metric
                    yield table, what, measured, (float(printed[1]), error, content.get("runs")), ours


def word(metric: str, published: tuple[float, float, int | None], ours: Values) -> str:
    unit = 1 if metric == "generator-loss" else 100
    values = [unit * metrics[metric] for metrics in one_a_seed(ours).values() if metrics.get(metric) is not None]
    if not values:
        return "not run"
    if len(values) == 1:
        return "inconclusive"
    mean, error, runs = published
    mine, theirs = stats.sem(values) ** 2, error**2
    freedom = (mine + theirs) ** 2 / (mine**2 / (len(values) - 1) + (theirs**2 / (runs - 1) if runs else 0))
    half = stats.t.ppf(0.975, freedom) * np.sqrt(mine + theirs)
    if abs(np.mean(values) - mean) > half:
        return "differs"
    return "agrees" if half <= 2 else "inconclusive"


def test_the_counts_of_verdicts_follow_from_the_results() -> None:
    judged: dict[str, dict[tuple[str, str, tuple[float, float, int | None]], str]] = {}
    for table, what, metric, published, ours in cells():
        verdict = word(metric, published, ours)
        for name in (table, "all tables"):
            judged.setdefault(name, {})[what, metric, published] = verdict
    text = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    rows = re.findall(
        r"^\| (?:\[|\*\*)([\w -]+)(?:\]\(#.*?\)|\*\*) \| .*? \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.M
    )
    assert {name for name, *_ in rows} == judged.keys()
    for name, *counts in rows:
        expected = Counter(judged[name].values())
        words = ("agrees", "differs", "inconclusive", "not run")
        assert dict(zip(words, map(int, counts), strict=True)) == {key: expected[key] for key in words}, name
