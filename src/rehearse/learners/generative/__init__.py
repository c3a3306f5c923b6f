"""Algorithm 2: replay from a generator."""
