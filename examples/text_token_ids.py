"""Text as token ids with a mask: the model takes a dict of tensors, so the stream and the memory hold dicts."""

import torch
from torch import Tensor, nn

from rehearse import Replay, ReservoirMemory

TOPICS = {
    "sport": "the team won a late match and every fan cheered the goal",
    "cooking": "stir the sauce with salt and bake a loaf of warm bread",
    "travel": "the train left for a quiet coast with an old harbour town",
    "money": "the bank raised a rate and each share fell in early trade",
}
vocabulary = {word: number for number, word in enumerate(sorted({w for t in TOPICS.values() for w in t.split()}), 1)}
generator = torch.Generator().manual_seed(0)


def sentences(topic: int, samples: int) -> tuple[dict[str, Tensor], Tensor]:
    """Some words of the topic in any order, filled up with token 0 to a length of 8."""
    words = torch.tensor([vocabulary[word] for word in list(TOPICS.values())[topic].split()])
    tokens = words[torch.randint(len(words), (samples, 8), generator=generator)]
    lengths = torch.randint(3, 9, (samples, 1), generator=generator)
    mask = torch.arange(8) < lengths
    return {"tokens": tokens * mask, "mask": mask}, torch.full((samples,), topic)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(vocabulary) + 1, 32, padding_idx=0)
        self.head = nn.Linear(32, len(TOPICS))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:  # the keys of the dict are its arguments
        return self.head(self.embedding(tokens).sum(1) / mask.sum(1, keepdim=True))


torch.manual_seed(0)
model = Classifier()
learner = Replay(model, torch.optim.Adam(model.parameters(), lr=0.01), ReservoirMemory(100))

for topic in range(len(TOPICS)):  # one topic after the other
    for _ in range(30):
        learner.observe(*sentences(topic, 10))

for topic, name in enumerate(TOPICS):
    x, y = sentences(topic, 200)
    print(f"{name}: {(learner.predict(x) == y).float().mean():.0%}")
