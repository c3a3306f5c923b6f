"""All labels change their meaning halfway through a stream in river: stored samples now teach what is wrong.

Three ways out: a detector of drift upon which the stored samples are forgotten and the model adapts; river's
DriftRetrainingClassifier, which begins with a new model; and a short ring, without a detector.
Needs the extra: rehearse-torch[river]
"""

import numpy as np
from river import drift, metrics

from rehearse.adapters.river import RehearsalClassifier

FLIP, LENGTH = 600, 1500


class ForgetsUponDrift(RehearsalClassifier):
    """Forgets all stored samples when its mistakes become more frequent."""

    def __post_init__(self):
        super().__post_init__()
        self.detector = drift.ADWIN()

    def learn_one(self, x, y, w=1.0):
        before, mistake = self.detector.estimation, self.predict_one(x) != y
        self.detector.update(mistake)
        if self.detector.drift_detected and self.detector.estimation > before and self.learner is not None:
            self.learner.forget(slots=self.learner.memory.slots())
        super().learn_one(x, y, w)


MODELS = {
    "as it is": RehearsalClassifier(seed=0),
    "forgets upon drift": ForgetsUponDrift(seed=0),
    "retrained upon drift": drift.DriftRetrainingClassifier(RehearsalClassifier(seed=0), drift.binary.DDM()),
    "ring of 200": RehearsalClassifier(memory="ring", memory_size=200, retrieval="uniform", seed=0),
}
points = np.random.default_rng(0).normal(size=(LENGTH, 5)) * [1, 10, 0.1, 1, 5] + [0, 100, 1, 0, -20]
weights = np.array([1, -0.1, 10, 1, 0.2])
above = points @ weights > np.median(points @ weights)

for name, model in MODELS.items():
    accuracies = [metrics.Accuracy(), metrics.Accuracy(), metrics.Accuracy()]
    for number, (values, label) in enumerate(zip(points.tolist(), above.tolist(), strict=True)):
        x, y = dict(enumerate(values)), label != (number >= FLIP)
        part = 0 if number < FLIP else 1 if number < FLIP + 200 else 2
        accuracies[part].update(y, model.predict_one(x))  # test first
        model.learn_one(x, y)  # then train
    before, soon, later = (f"{accuracy.get():.2f}" for accuracy in accuracies)
    print(f"{name}: before the flip {before}, in the 200 samples after it {soon}, then {later}")
