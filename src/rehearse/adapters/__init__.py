"""Other people's interfaces. Each is imported by its own name, because each needs its own extra."""
