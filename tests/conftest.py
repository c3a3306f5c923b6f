"""What all tests share: one thread, so that they are as fast on a busy machine and the same everywhere."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
