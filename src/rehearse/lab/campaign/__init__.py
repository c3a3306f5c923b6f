"""Many runs: where their results live, and what carries them out."""
