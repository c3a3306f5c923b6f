"""The paper that this package reproduces, Aljundi et al. 2019: its numbers, and what to run for them."""
