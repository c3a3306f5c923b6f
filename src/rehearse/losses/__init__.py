"""Losses: how a batch is judged, one value per sample.

A loss is called ``loss(logits, batch, replayed)``: ``replayed`` is False for the incoming batch and True for stored
samples. Torch's loss modules and any callable ``(logits, y)`` with one value per sample are accepted too.
"""

from ..batch import Kind as Kind
from .ace import AsymmetricCrossEntropy as AsymmetricCrossEntropy
from .base import CrossEntropy as CrossEntropy
from .base import Loss as Loss
from .base import at_least_float32 as at_least_float32
from .base import class_logits as class_logits
from .base import class_targets as class_targets
from .convert import as_loss as as_loss
from .convert import per_sample as per_sample
from .der import DRAW as DRAW
from .der import DarkExperience as DarkExperience
from .distillation import AVERAGED as AVERAGED
from .distillation import AveragedDistillation as AveragedDistillation
from .distillation import reads_average as reads_average
