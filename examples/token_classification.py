"""A class for every token: sentences of different lengths, an attention mask, and labels to ignore at padding."""

import torch
from torch import Tensor, nn

from rehearse import Finetune, Padding, Replay, ReservoirMemory, Uniform
from rehearse.losses import as_loss

# Each topic has words of its own, and a few that all share; a word's class is its part of speech.
TOPICS, WORDS, SHARED, PARTS, LONGEST = 4, 12, 6, 5, 16
generator = torch.Generator().manual_seed(0)
part_of_speech = torch.randint(PARTS, (1 + SHARED + TOPICS * WORDS,), generator=generator)


def sentences(topic: int, samples: int = 10) -> tuple[dict[str, Tensor], Tensor]:
    """Word ids with a mask, padded to the longest of these sentences; −100 stands where there is nothing to learn."""
    longest = int(torch.randint(4, LONGEST + 1, (), generator=generator))
    own = torch.randint(
        1 + SHARED + topic * WORDS, 1 + SHARED + (topic + 1) * WORDS, (samples, longest), generator=generator
    )
    shared = torch.randint(1, 1 + SHARED, (samples, longest), generator=generator)
    words = torch.where(torch.rand(samples, longest, generator=generator) < 0.2, shared, own)
    mask = torch.arange(longest) < torch.randint(3, longest + 1, (samples, 1), generator=generator)
    return {"words": words * mask, "mask": mask}, part_of_speech[words].masked_fill(~mask, -100)


class Tagger(nn.Module):
    """A small transformer that returns logits of shape (samples, tokens, classes)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(part_of_speech), 32, padding_idx=0)
        self.mix = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, PARTS)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:  # a mask arrives as 0 and 1
        return self.head(self.mix(self.embedding(words), src_key_padding_mask=mask == 0))


loss = as_loss(nn.CrossEntropyLoss(), dim=-1)  # the classes are in the last dimension; −100 is ignored
for name in ("fine-tuning", "replay"):
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    if name == "replay":
        padding = Padding(LONGEST, x={"words": 0, "mask": 0}, y=-100)
        learner = Replay(model, optimizer, ReservoirMemory(100), Uniform(), loss=loss, pad=padding)
    else:
        learner = Finetune(model, optimizer, loss=loss)
    for topic in range(TOPICS):  # one topic after the other
        for _ in range(60):
            learner.observe(*sentences(topic))
    x, y = sentences(0, 500)
    right = (learner.predict(x) == y)[x["mask"]].float().mean()
    print(f"{name}: {right:.0%} of the first topic's words")
