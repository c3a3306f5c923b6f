"""Every Python block of the README and of the site is run: those of a page in order, in one namespace."""

from __future__ import annotations

import inspect
import os
import pkgutil
import re
import subprocess
import sys
import types
from inspect import isabstract
from pathlib import Path

import pytest

import rehearse
from pages.claims import CLAIMS
from pages.comparisons import comparisons
from pages.controls import controls_page
from pages.front import FILLED, FRONT, USED, fill, front_parts
from rehearse import Learner, batchnorm, diagnose, latent, learners, losses, memory, nets, retrieval
from rehearse.lab.campaign.store import results_in
from rehearse.lab.methods import METHODS
from rehearse.lab.paper.outcome import Results, outcome
from rehearse.lab.paper.targets import find_targets
from rehearse.lab.report.reproduction import filled, outcome_markdown

ROOT = Path(__file__).parent.parent
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


def program(page: Path) -> str:
    """The page with everything but its Python blocks blanked, so that an error names the line of the page."""
    text = page.read_text()
    lines = [""] * (text.count("\n") + 1)
    for block in BLOCK.finditer(text):
        first, indent = text.count("\n", 0, block.start(2)), len(block[1])
        for number, line in enumerate(block[2].splitlines()):
            lines[first + number] = line[indent:]
    return "\n".join(lines)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if program(page).strip()], ids=name)
def test_the_code_of_a_page_runs(page, tmp_path):
    """In a process of its own and an empty directory, with every warning an error."""
    script = tmp_path / "the_page.py"  # a name that hides no module which the page imports
    script.write_text(program(page))
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", script],
        cwd=tmp_path / "empty",
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_prints_what_it_says(tmp_path):
    script = program(ROOT / "README.md")
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"It prints `{done.stdout.strip()}`" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", REFERENCE, ids=name)
def test_the_examples_of_a_reference_page_use_everything_on_it(page):
    """Each class and function that it documents, and of a module each function."""
    documented = re.findall(r"^::: (rehearse\.\S+)", page.read_text(), re.MULTILINE)
    found = {place: pkgutil.resolve_name(place) for place in documented}
    modules = [value for value in found.values() if inspect.ismodule(value)]
    names = {place.rpartition(".")[2] for place, value in found.items() if value not in modules}
    names |= {key for module in modules for key, value in vars(module).items() if own_function(value, module)}
    assert names - set(re.findall(r"\w+", program(page))) == set()


def own_function(value: object, module: types.ModuleType) -> bool:
    """Whether it is a public function of that module."""
    return inspect.isfunction(value) and value.__module__ == module.__name__ and not value.__name__.startswith("_")


def test_the_readmes_example_has_fifteen_lines():
    first = next(BLOCK.finditer((ROOT / "README.md").read_text()))[2]
    assert len(first.splitlines()) <= 15


def test_the_first_page_has_ten_lines():
    first = next(BLOCK.finditer((ROOT / "docs" / "index.md").read_text()))[2]
    assert len(first.splitlines()) <= 10


def test_the_site_builds_without_a_warning(tmp_path):
    """A broken anchor is one, and a parameter in a docstring that the function has not. (--quiet hides it.)"""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_file_that_the_readme_names_is_there():
    text = (ROOT / "README.md").read_text()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_nobody_is_told_to_install_the_other_project_of_that_name():
    """On PyPI `rehearse` is somebody else's; ours is installed from the checkout, as rehearse-torch."""
    other = re.compile(r"pip install (-\S+ )*rehearse(?!-torch)\b")
    assert [name(page) for page in PAGES if other.search(page.read_text())] == []


@pytest.mark.parametrize("page", FILLED)
def test_generated_parts_are_closed_and_named_after_what_fills_them(page):
    text = (ROOT / page).read_text()
    marks = re.findall(r"<!-- generated: (\S+) -->\n", text)
    assert marks
    assert len(marks) == text.count("<!-- end -->")
    assert set(marks) <= {"choose", "picture", "results", "claims", "peers", "peers-measured", "peers-made"}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_reference_has_every_public_class_of_learning():
    """What a person can build a learner from: learners, memories, retrievals, losses, networks."""
    lines = [line for page in PAGES for line in page.read_text().splitlines()]
    written = {line.split()[1].rpartition(".")[2] for line in lines if line.startswith("::: ")}
    public = set(rehearse.__all__) - {"__version__"}
    for module in (batchnorm, diagnose, latent, learners, losses, memory, nets, retrieval):
        classes = {name: value for name, value in vars(module).items() if isinstance(value, type)}
        public |= {name for name, value in classes.items() if value.__module__.startswith(module.__name__)}
    assert {name for name in public if not name.startswith("_")} - written == set()


def test_every_method_has_a_page_and_its_class_a_reference():
    """All that a new method needs beside its file and its entry in METHODS."""
    pages = {page.stem: page.read_text() for page in (ROOT / "docs" / "methods").glob("*.md")}
    described = "\n".join(text for name, text in pages.items() if name != "README")
    assert [method for method in METHODS if not re.search(rf"(?<![\w-]){method}(?![\w-])", described)] == []
    reference = "\n".join([described, *(page.read_text() for page in REFERENCE)])
    classes = {kind.__name__ for kind in all_subclasses(Learner) if not isabstract(kind)}
    assert [name for name in sorted(classes) if not re.search(rf"^::: rehearse\..*\b{name}$", reference, re.M)] == []


def all_subclasses(kind: type) -> set[type]:
    """Return the subclasses in the package, in however many steps they derive."""
    found = {one for child in kind.__subclasses__() for one in {child, *all_subclasses(child)}}
    return {one for one in found if one.__module__.startswith("rehearse.")}


def test_generated_pages_are_those_of_the_results():
    """Who adds a result makes the pages anew: `make reproduction`."""
    results = Results(results_in([ROOT / "results"], pytest.fail))
    figures = {path.stem: f"figures/{path.name}" for path in (ROOT / "docs" / "figures").glob("*.svg")}
    controls = [outcome(target, results) for target in find_targets(["controls"])]
    strong = [outcome(target, results) for target in find_targets(["strong"])]
    compared = [comparison for one in controls for comparison in comparisons(one)]
    parts = front_parts(outcome(FRONT, results), [outcome(target, results) for target in find_targets(USED)], compared)
    grounds = {ground[:4]: claim for claim, grounds in CLAIMS.items() for ground in grounds}
    told = {ground[:4] for claim, grounds in CLAIMS.items() if f"- {claim} (" in parts["claims"] for ground in grounds}
    assert [claim for place, claim in grounds.items() if place not in told] == [], "no claim fits these results"
    assert all(parts.values()), "a sentence of the front page no longer fits these results"
    for page in FILLED:
        text = (ROOT / page).read_text("utf-8")
        assert fill(text, parts) == text, f"{page} is not made from results/: `make reproduction`"
    assert controls_page([*strong, *controls], figures) == (ROOT / "docs" / "what-makes-it-work.md").read_text("utf-8")
    found = [outcome(target, results) for target in find_targets(["all"])]
    sections = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    for one in found:
        assert outcome_markdown(one) in sections, f"{one.target.name} in docs/reproduction.md: `make reproduction`"
    ae = (ROOT / "docs" / "methods" / "ae.md").read_text("utf-8")
    assert filled(ae, found) == ae, "docs/methods/ae.md is not made from results/: `make reproduction`"


def test_everything_that_the_pages_refer_to_exists():
    lines = [line.strip() for page in PAGES for line in page.read_text().splitlines()]
    named = {line.removeprefix("::: ") for line in lines if line.startswith("::: ")}
    assert "rehearse.Replay" in {name.replace(".learners", "") for name in named}
    missing = []
    for name in sorted(named):
        try:
            pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            missing.append(name)
    assert missing == []
