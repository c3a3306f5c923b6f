"""One model on several machines: `Replay(..., distributed=True)` in a process group of torch.distributed."""

from .engine import SharedEngine as SharedEngine
from .memory import share_memory as share_memory
from .memory import shareable as shareable
from .ranks import Ranks as Ranks
from .states import divided as divided
