"""The example of a service, with clients at once, under SIGTERM, and started again."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rehearse

SERVICE = Path(__file__).parent.parent / "examples" / "service.py"
LEARNED, ROWS = 60, 10  # requests to learn of each of two clients, and their samples
PROBES = torch.randn(3, 4, generator=torch.Generator().manual_seed(7))


class Running:
    """The service in a process of its own."""

    def __init__(self, folder: Path, seconds: float = 0.2) -> None:
        command = [sys.executable, "-W", "error", str(SERVICE), "0", str(folder / "checkpoint"), str(seconds)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        found = re.match(r"serving on port (\d+) after (\d+) samples", self.process.stdout.readline())
        assert found, self.process.communicate(timeout=30)[1]
        self.port, self.learned = int(found[1]), int(found[2])

    def ask(self, page: str, **request: Any) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", page, json.dumps(request))
        response = connection.getresponse()
        answer = response.status, json.loads(response.read())
        connection.close()
        return answer

    def stop(self) -> int:
        """Stop as a system does; returns after how many samples the service says that it stopped."""
        self.process.send_signal(signal.SIGTERM)
        said, complaints = self.process.communicate(timeout=60)
        assert (self.process.returncode, complaints) == (0, "")
        return int(re.findall(r"stopped after (\d+) samples", said)[0])


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Any]:
    running = list[Running]()

    def start(**options: Any) -> Running:
        running.append(Running(tmp_path, **options))
        return running[-1]

    yield start
    for one in running:
        one.process.kill()
        one.process.communicate()


def batch(number: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(number)
    y = torch.randint(3, (ROWS,), generator=generator)
    x = torch.randn(ROWS, 4, generator=generator) + y[:, None]
    return {"x": x.tolist(), "y": y.tolist(), "id": [number] * ROWS}


def new_learner() -> rehearse.Replay:
    spec = importlib.util.spec_from_file_location("service_example", SERVICE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: rehearse.Replay = module.new_learner()
    return made


@pytest.mark.xdist_group("examples")
def test_many_clients_at_once(started: Any, tmp_path: Path) -> None:
    """No request fails, and every prediction is that of the version it names: learned again, in the same order."""
    service = started()
    order, answers, problems, seconds = dict[int, int](), list[Any](), list[Any](), list[float]()
    done = threading.Event()

    def learn(numbers: range) -> None:
        for number in numbers:
            status, answer = service.ask("/learn", **batch(number))
            assert status == 200, answer
            order[answer["version"]] = number

    def predict(row: int) -> None:
        while not done.is_set():
            start = time.perf_counter()
            status, answer = service.ask("/predict", x=PROBES[row : row + 1].tolist())
            seconds.append(time.perf_counter() - start)
            assert status == 200, answer
            answers.append((row, answer))

    def guarded(call: Any, *arguments: Any) -> threading.Thread:
        def work() -> None:
            try:
                call(*arguments)
            except BaseException as problem:
                problems.append(problem)

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    learners = [guarded(learn, range(client * LEARNED, (client + 1) * LEARNED)) for client in range(2)]
    clients = [guarded(predict, row) for row in range(3)]
    for thread in learners:
        thread.join()
    done.set()
    for thread in clients:
        thread.join()
    assert problems == []
    assert service.stop() == 2 * LEARNED * ROWS
    assert sorted(order) == list(range(ROWS, 2 * LEARNED * ROWS + 1, ROWS))

    reference = new_learner()
    versions = {0: reference.predictor()}
    for version in sorted(order):
        reference.observe(**{name: torch.tensor(value) for name, value in batch(order[version]).items()})
        versions[version] = reference.predictor()
    for row, answer in answers:
        expected = versions[answer["version"]].predict_proba(PROBES[row : row + 1])
        assert torch.equal(torch.tensor(answer["probabilities"]), expected)
    assert len({answer["version"] for _, answer in answers}) > 10
    seconds.sort()
    print(f"{len(answers)} predictions: p50 {seconds[len(seconds) // 2] * 1e3:.1f} ms, "
          f"p99 {seconds[len(seconds) * 99 // 100] * 1e3:.1f} ms")  # fmt: skip

    saved = new_learner()
    rehearse.load(tmp_path / "checkpoint", into=saved)
    assert torch.equal(saved.logits(PROBES), reference.logits(PROBES))


@pytest.mark.xdist_group("examples")
def test_it_resumes_where_it_stopped_and_after_a_kill_where_it_saved_last(started: Any, tmp_path: Path) -> None:
    first = started(seconds=1000)
    for number in range(5):
        assert first.ask("/learn", **batch(number))[0] == 200
    _, before = first.ask("/predict", x=PROBES.tolist())
    assert first.stop() == 5 * ROWS
    second = started(seconds=0.05)
    assert second.learned == 5 * ROWS
    assert second.ask("/predict", x=PROBES.tolist()) == (200, before)
    second.ask("/learn", **batch(5))
    until = time.monotonic() + 30
    while time.monotonic() < until:
        saved = new_learner()
        rehearse.load(tmp_path / "checkpoint", into=saved)
        if saved.samples_observed == 6 * ROWS:
            break
    second.process.kill()
    second.process.communicate()
    assert started().learned == 6 * ROWS


@pytest.mark.xdist_group("examples")
def test_what_a_client_did_wrong_is_said_and_changes_nothing(started: Any) -> None:
    service = started()
    service.ask("/learn", **batch(0))
    good = batch(1)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("/learn", {}),
        ("/learn", {**good, "y": good["y"][:3]}),
        ("/learn", {**good, "y": [99] * ROWS}),
        ("/learn", {**good, "x": [[1.0, 2.0]] * ROWS}),
        ("/learn", {**good, "x": "text"}),
        ("/learn", {**good, "x": [[float("nan")] * 4] * ROWS}),
        ("/predict", {"x": [[1.0]]}),
        ("/predict", {"x": [[1.0, 2.0], [1.0]]}),
        ("/forget", {"x": [[1.0] * 4]}),
    ]
    for page, request in wrong:
        status, answer = service.ask(page, **request)
        assert status == 400
        assert answer["error"]
    assert service.ask("/predict", x=PROBES.tolist())[1]["version"] == ROWS
    assert service.stop() == ROWS
