"""The page about our own results, docs/what-makes-it-work.md: questions, claims and figures of the controls.

Everything is computed from results/. This package is not part of the distribution; `make reproduction` runs it from the
repository's root.
"""
