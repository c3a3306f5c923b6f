"""Losses: how a batch is judged, one value per sample.

A loss is called ``loss(logits, batch, replayed)``: ``replayed`` is False for the incoming batch and True for stored
samples. Torch's loss modules and any callable ``(logits, y)`` with one value per sample are accepted too.
"""

from ..batch import Kind as Kind
from .ace import AsymmetricCrossEntropy as AsymmetricCrossEntropy
from .base import CrossEntropy as CrossEntropy
from .base import Loss as Loss
from .base import at_least_float32 as at_least_float32
from .base import class_targets as class_targets
from .base import columns_to_store as columns_to_store
from .base import mean_loss as mean_loss
from .base import per_sample as per_sample
from .base import weighted_losses as weighted_losses
from .convert import as_loss as as_loss
from .der import DRAW as DRAW
from .der import DarkExperience as DarkExperience
from .distillation import AVERAGED as AVERAGED
from .distillation import AveragedDistillation as AveragedDistillation
from .distillation import reads_average as reads_average
