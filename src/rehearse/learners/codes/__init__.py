"""Algorithm 3: replay from a memory of compressed codes."""
