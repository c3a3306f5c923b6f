"""A Hugging Face language model, built and trained here, learns two new topics in a row with LoRA, for 5 seeds."""

import copy
import sys

import torch
from peft import LoraConfig, get_peft_model  # pip install transformers peft
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from rehearse import Finetune, Padding, Replay, ReservoirMemory, Uniform
from rehearse.losses import as_loss

TOPICS, WORDS, LONGEST = 8, 20, 16  # token 0 is padding, 1 to TOPICS begin a text, the others are words
seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
follows = torch.stack([torch.randperm(WORDS, generator=torch.Generator().manual_seed(t)) for t in range(TOPICS)])


def texts(topic: Tensor, generator: torch.Generator, longest: int) -> tuple[dict[str, Tensor], Tensor]:
    """Texts of some topics, each word the one that follows in its topic; the targets are the next tokens, or −100."""
    words = [torch.randint(WORDS, topic.shape, generator=generator)]
    for _ in range(longest - 1):
        words.append(follows[topic, words[-1]])
    tokens = torch.cat([topic[:, None] + 1, torch.stack(words, 1) + TOPICS + 1], 1)
    place, ends = torch.arange(longest), torch.randint(3, longest + 1, (len(topic), 1), generator=generator)
    targets = tokens[:, 1:].masked_fill((place >= ends) | (place == 0), -100)  # the first word follows from nothing
    return {"input_ids": tokens[:, :-1] * (place < ends), "attention_mask": (place < ends).long()}, targets


def learn(learner: Replay | Finetune, topics: range, batches: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(batches):
        longest = int(torch.randint(4, LONGEST + 1, (), generator=generator))  # every batch has a length of its own
        topic = torch.tensor(topics)[torch.randint(len(topics), (10,), generator=generator)]
        learner.observe(*texts(topic, generator, longest))


torch.manual_seed(0)
size = {"vocab_size": 1 + TOPICS + WORDS, "n_positions": LONGEST, "n_embd": 64, "n_layer": 2, "n_head": 4}
off = {"use_cache": False, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
base = GPT2LMHeadModel(GPT2Config(**size, **off, bos_token_id=0, eos_token_id=0))
loss = as_loss(nn.CrossEntropyLoss(), dim=-1)  # logits are (texts, tokens, vocabulary)
learn(Finetune(base, torch.optim.AdamW(base.parameters(), 0.002), loss=loss), range(TOPICS - 2), 1500, seed=0)
lora = LoraConfig(r=16, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True, task_type="CAUSAL_LM")
for seed in range(seeds):
    for name in ("fine-tuning", "replay"):
        torch.manual_seed(seed)
        model = get_peft_model(copy.deepcopy(base), lora)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.005)
        learner = Finetune(model, optimizer, loss=loss)
        if name == "replay":
            memory, padding = ReservoirMemory(100, seed=seed), Padding(LONGEST, y=-100)
            learner = Replay(model, optimizer, memory, Uniform(), loss=loss, pad=padding)
        for topic in (TOPICS - 2, TOPICS - 1):  # two new topics, one after the other
            learn(learner, range(topic, topic + 1), 150, seed)
        x, y = texts(torch.full((200,), TOPICS - 2), torch.Generator().manual_seed(99), LONGEST)
        right = (learner.predict(x) == y)[y != -100].float().mean()
        print(f"seed {seed}, {name}: {right:.0%} of the first topic's next words")
