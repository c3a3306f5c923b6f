"""A tabular stream with drift in river: a concept goes, another comes, and both return.

The labels contradict each other, so this is a choice: a reservoir keeps the concept that returns and is slow with
the new one; a short ring lets go of the past and follows.
Needs the extra: rehearse-torch[river]
"""

from itertools import islice

from river import metrics, preprocessing
from river.datasets import synth

from rehearse.adapters.river import RehearsalClassifier

PERIOD = 400

for memory, size in (("reservoir", 200), ("ring", 30)):
    model = preprocessing.StandardScaler() | RehearsalClassifier(memory=memory, memory_size=size, hidden=(32,), seed=0)
    for period, concept in enumerate([0, 1, 0, 1]):
        accuracy = metrics.Accuracy()
        for x, y in islice(synth.STAGGER(classification_function=concept, seed=period), PERIOD):
            accuracy.update(y, model.predict_one(x))  # test first
            model.learn_one(x, y)  # then train
        print(f"{memory}, period {period}, concept {concept}: {accuracy}")
