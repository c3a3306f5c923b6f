"""What is reported of a run beside its numbers, in words: its memory, its searches, its alternative predictors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Result = Mapping[str, Any]
MEASURES = ("objective", "interference", "entropy")
SIZES = ("codes", "bytes", "bytes_as_inputs", "autoencoder_bytes")


def searches(result: Result) -> dict[str, Mapping[str, Any]]:
    """What for -> what the search for it reports; a run that searched for one thing only says so without a name.

    Methods of the user's own, and strangers, may report other things under that name: they are left out.
    """
    found = result.get("report", {}).get("search", {})
    named = {"": found} if has_numbers(found, "searches") or not isinstance(found, dict) else found
    return {name: one for name, one in named.items() if has_numbers(one, "searches", "fallbacks")}


def has_numbers(found: Any, *names: str) -> bool:
    """Return whether this is a table with numbers of these names."""
    return isinstance(found, dict) and all(isinstance(found.get(name), int | float) for name in names)


def sentences(result: Result) -> list[str]:
    """Return all of it, one sentence each."""
    return [*memory_sentences(result), *search_sentences(result), *treatment_sentences(result)]


def own_sentences(result: Result) -> Iterator[str]:
    """What the method measured of itself on the test sets, at the end."""
    measured = {name: value for name, value in (result.get("extra") or [{}])[-1].items() if value is not None}
    if measured:
        numbers = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in measured.items())
        yield f"on the tests of all tasks, at the end: {numbers}"


def memory_sentences(result: Result) -> Iterator[str]:
    """What a memory of codes takes, beside what the same number of raw inputs would."""
    found = result.get("report", {}).get("memory")
    if has_numbers(found, *SIZES):
        yield (
            f"memory: {found['codes']:,} codes in {found['bytes']:,} bytes; as many raw inputs would take "
            f"{found['bytes_as_inputs']:,}; the autoencoder that reads them takes {found['autoencoder_bytes']:,} more"
        )


def treatment_sentences(result: Result) -> Iterator[str]:
    """How the same training does when it is asked in another way."""
    for name, found in result.get("treatments", {}).items():
        numbers = [
            f"{what} {100 * found['metrics'][what]:.1f} %"
            for what in ("accuracy", "forgetting")
            if found["metrics"].get(what) is not None
        ]
        if numbers:
            yield f"the same training, predicting with {name!r}: {', '.join(numbers)}"


def search_sentences(result: Result) -> Iterator[str]:
    """One sentence for each search of a run, with the means before and after it."""
    for name, found in searches(result).items():
        moved = [
            f"{what} {found[f'{what}_before']:.3g} → {found[f'{what}_after']:.3g}"
            for what in MEASURES
            if has_numbers(found, f"{what}_before", f"{what}_after")
        ]
        counts = f"{found['searches']:,} searches, {found['fallbacks']:,} fell back to {_instead(name)}"
        some = has_numbers(found, "measured") and found["measured"] != found["searches"]
        means = f"of {found['measured']:,} of them {', '.join(moved)}" if some else ", ".join(moved)
        yield f"search{f' for the {name}' if name else ''}: " + "; ".join([counts, *([means] if moved else [])])


def fallback_sentences(results: Iterable[Result]) -> Iterator[str]:
    """A warning for each run with a search that ended in numbers that are not finite."""
    for result in results:
        for name, found in searches(result).items():
            if found["fallbacks"]:
                spec = result["spec"]
                yield (
                    f"{spec['method']}, seed {spec['seed']}: {found['fallbacks']:,} of {found['searches']:,} searches"
                    f"{f' for the {name}' if name else ''} ended in numbers that are not finite and fell back to "
                    f"{_instead(name)}; a smaller step_size may help"
                )


def _instead(name: str) -> str:
    return "plain samples" if name else "a random draw"
