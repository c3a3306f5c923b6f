"""Losses: how a batch is judged, one value per sample.

A loss is called ``loss(logits, batch, replayed)``: ``replayed`` is False for the incoming batch and True for stored
samples. Torch's loss modules and any callable ``(logits, y)`` with one value per sample are accepted too.
"""

from ..batch import Kind
from .ace import AsymmetricCrossEntropy
from .base import CrossEntropy, Loss, Remembering, at_least_float32, class_targets, columns_to_store, per_sample
from .convert import as_loss
from .der import DRAW, DarkExperience
from .soft import soft_cross_entropy

__all__ = [
    "DRAW",
    "AsymmetricCrossEntropy",
    "CrossEntropy",
    "DarkExperience",
    "Kind",
    "Loss",
    "Remembering",
    "as_loss",
    "at_least_float32",
    "class_targets",
    "columns_to_store",
    "per_sample",
    "soft_cross_entropy",
]
