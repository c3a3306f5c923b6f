"""A Hugging Face language model, built and trained here, learns two new topics in a row with LoRA, for 5 seeds."""

import copy
import sys
from itertools import product

import torch
from peft import LoraConfig, get_peft_model  # pip install transformers peft
from transformers import GPT2Config, GPT2LMHeadModel

from rehearse import Finetune, Padding, Replay, ReservoirMemory, Uniform
from rehearse.losses import as_loss

TOPICS, WORDS, LONGEST = 8, 20, 16  # token 0 is padding, 1 to TOPICS begin a text, the others are words
seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
follows = torch.stack([torch.randperm(WORDS, generator=torch.Generator().manual_seed(t)) for t in range(TOPICS)])


def texts(topic: torch.Tensor, generator: torch.Generator, longest: int) -> tuple[dict, torch.Tensor]:
    """Texts of some topics, each word the one that follows in its topic; the targets are the next tokens, or −100."""
    words = [torch.randint(WORDS, topic.shape, generator=generator)]
    for _ in range(longest - 1):
        words.append(follows[topic, words[-1]])
    tokens = torch.cat([topic[:, None] + 1, torch.stack(words, 1) + TOPICS + 1], 1)
    place, ends = torch.arange(longest), torch.randint(3, longest + 1, (len(topic), 1), generator=generator)
    targets = tokens[:, 1:].masked_fill((place >= ends) | (place == 0), -100)  # the first word follows from nothing
    return {"input_ids": tokens[:, :-1] * (place < ends), "attention_mask": (place < ends).long()}, targets


def learn(learner: Replay | Finetune, topics: tuple[int, int], batches: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        longest = int(torch.randint(4, LONGEST + 1, (), generator=generator))  # every batch has a length of its own
        learner.observe(*texts(torch.randint(*topics, (10,), generator=generator), generator, longest))


torch.manual_seed(0)
size = {"vocab_size": 1 + TOPICS + WORDS, "n_positions": LONGEST, "n_embd": 64, "n_layer": 2, "n_head": 4}
off = {"use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
base = GPT2LMHeadModel(GPT2Config(**size, **off, bos_token_id=0, eos_token_id=0))
loss, padding = as_loss(torch.nn.CrossEntropyLoss(), dim=-1), Padding(LONGEST, y=-100)
learn(Finetune(base, torch.optim.AdamW(base.parameters(), 0.002), loss=loss), (0, TOPICS - 2), 1500, seed=0)
lora = LoraConfig(r=16, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True, task_type="CAUSAL_LM")
first: dict[str, list[float]] = {"fine-tuning": [], "replay": []}
for seed, (name, found) in product(range(seeds), first.items()):
    torch.manual_seed(seed)
    model = get_peft_model(copy.deepcopy(base), lora)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.005)
    learner = Finetune(model, optimizer, loss=loss)
    if name == "replay":
        learner = Replay(model, optimizer, ReservoirMemory(100, seed=seed), Uniform(), loss=loss, pad=padding)
    for topic in (TOPICS - 2, TOPICS - 1):  # two new topics, one after the other
        learn(learner, (topic, topic + 1), 150, seed)
    x, y = texts(torch.arange(TOPICS - 2, TOPICS).repeat(200), torch.Generator().manual_seed(99), LONGEST)
    right = 100 * (learner.predict(x) == y).double().where(y != -100, torch.nan)
    found.append(right[::2].nanmean().item())
    print(f"seed {seed}, {name}: {found[-1]:.0f}% of the first topic, {right[1::2].nanmean():.0f}% of the second")
gains = [after - before for before, after in zip(*first.values(), strict=True)]
print(f"first topic, replay − fine-tuning: {sum(gains) / seeds:+.1f} points ({min(gains):+.1f} to {max(gains):+.1f})")
