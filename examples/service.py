"""A service that learns: POST /learn and /predict. Predictions never wait for learning; SIGTERM saves and stops.

python service.py [port] [checkpoint] [seconds between saves]
"""

import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from torch import nn

import rehearse
from rehearse import MostInterfered, Replay, ReservoirMemory


def new_learner() -> Replay:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 3))
    return Replay(model, torch.optim.SGD(model.parameters(), lr=0.05), ReservoirMemory(500), MostInterfered())


class Service(ThreadingHTTPServer):
    daemon_threads = False  # `server_close` waits for requests that are being answered
    request_queue_size = 100

    def __init__(self, port: int, checkpoint: Path) -> None:
        self.learner, self.checkpoint, self.learning = new_learner(), checkpoint, threading.Lock()
        if checkpoint.exists():
            rehearse.load(checkpoint, into=self.learner)
        self.publish()
        super().__init__(("127.0.0.1", port), Handler)

    def publish(self) -> None:
        self.published = self.learner.samples_observed, self.learner.predictor()

    def learn(self, x: torch.Tensor, request: dict) -> dict:
        with self.learning:  # two requests may not publish in another order than they learned
            step = self.learner.observe(x, request["y"], id=request.get("id"))
            self.publish()
            return {"version": self.published[0], "loss": step.incoming_loss}

    def predict(self, x: torch.Tensor, request: dict) -> dict:
        version, predictor = self.published  # one assignment: the pair before or the pair after
        return {"version": version, "probabilities": predictor.predict_proba(x).tolist()}

    def save(self) -> None:
        try:
            rehearse.save(self.learner, self.checkpoint)  # copies under the learner's lock, writes without it
        except rehearse.RehearseError as problem:
            print(f"not saved, {problem}", file=sys.stderr)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        calls = {"/learn": self.server.learn, "/predict": self.server.predict}
        try:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)))
            x = torch.tensor(request["x"], dtype=torch.float32)
            status, answer = 200, calls[self.path](x, request)
        except (rehearse.RehearseError, ValueError, TypeError, KeyError) as problem:
            status, answer = 400, {"error": f"{type(problem).__name__}: {problem}"}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        """Print nothing."""


def main(port: str = "8000", checkpoint: str = "service.rehearse", seconds: str = "60") -> None:
    torch.set_num_threads(1)  # the requests have threads of their own
    service, stopping = Service(int(port), Path(checkpoint)), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    print(f"serving on port {service.server_port} after {service.published[0]} samples", flush=True)
    threading.Thread(target=service.serve_forever).start()
    while not stopping.wait(float(seconds)):
        service.save()
    service.shutdown()  # takes no more requests
    service.server_close()
    service.save()
    print(f"stopped after {service.published[0]} samples")


if __name__ == "__main__":
    main(*sys.argv[1:])
