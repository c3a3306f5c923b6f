"""Where batches come from: named streams, and streams from the user's own data."""

from rehearse.lab.streams.base import Scaling, Stream
from rehearse.lab.streams.named import STREAMS, Definition, make_stream
from rehearse.lab.streams.own import from_arrays, from_iterable

__all__ = ["STREAMS", "Definition", "Scaling", "Stream", "from_arrays", "from_iterable", "make_stream"]
