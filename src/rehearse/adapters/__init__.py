"""The interfaces of other libraries. Each is imported by its own name, because each needs its own extra."""
