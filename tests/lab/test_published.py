import pytest

from rehearse.errors import DataError
from rehearse.lab.paper.published import PUBLISHED, Cell, Setting, parse_number
from rehearse.lab.statistics import Published

# Copied by eye from the paper: table, row, column, metric, value and ± as printed, standard errors in that ±.
CELLS = [
    ("table1", "iid offline", "MNIST Split", "accuracy", 92.3, 0.5, 2),
    ("table1", "GEN", "MNIST Split", "forgetting", 19.5, 0.8, 1),
    ("table1", "GEN-MIR", "Permuted MNIST", "accuracy", 80.4, 0.2, 1),
    ("table1", "GEM", "Permuted MNIST", "forgetting", 3.1, 0.5, 2),
    ("table1", "ER", "MNIST Split", "accuracy", 82.1, 1.5, 2),
    ("table1", "ER-MIR", "MNIST Split", "forgetting", 7.0, 0.9, 2),
    ("table2", "GEM", "M=50", "forgetting", 70.7, 4.5, 2),
    ("table2", "iCarl (5 iter)", "M=20", "forgetting", 49, 2.4, 2),
    ("table2", "fine-tuning", "M=100", "accuracy", 18.4, 0.3, 2),
    ("table2", "ER", "M=100", "accuracy", 41.3, 1.9, 2),
    ("table2", "ER-MIR", "M=50", "forgetting", 30.2, 2.3, 2),
    ("table3", "ER-MIR", "5", "accuracy", 49.3, 0.1, 2),
    ("table4", "ER-MIR", "100 per class, 3 updates", "forgetting", 18.0, 0.8, 2),
    ("table7", "iid offline", "M=20", "accuracy", 86.8, 1.1, 2),
    ("table7", "ER-MIR", "M=100", "forgetting", 6.7, 1.4, 2),
    ("table8", "ER", "M=100", "forgetting", 2.48, 0.5, 2),
    ("cifar10-1k", "ER-res-MIR", "M=20", "forgetting", 44.2, 2.0, 2),
]


def cell_of(table: str, row: str, column: str, metric: str) -> Cell:
    (found,) = [c for c in PUBLISHED[table].cells if (c.row, c.column, c.metric) == (row, column, metric)]
    return found


def settings_of(table: str) -> set[Setting]:
    return {cell.setting for cell in PUBLISHED[table].cells}


@pytest.mark.parametrize(("table", "row", "column", "metric", "value", "plus_minus", "errors"), CELLS)
def test_cells_as_printed(table, row, column, metric, value, plus_minus, errors):
    number = cell_of(table, row, column, metric).number
    assert number.value == pytest.approx(value / 100)
    assert number.plus_minus == pytest.approx(plus_minus / 100)
    assert number.se == pytest.approx(plus_minus / 100 / errors)


def test_the_generators_loss_is_no_percentage():
    cell = cell_of("table5", "GEN-MIR", "Permuted MNIST", "generator-loss")
    assert cell.number == Published(193.7, 1.0, 1.0)


def test_the_ablation_has_no_uncertainty():
    cell = cell_of("table6", "ablate H(y_pre)", "Accuracy", "accuracy")
    assert cell.number == Published(0.783, None, None)
    assert len(settings_of("table6")) == 7


def test_all_tables_are_there_with_all_their_cells():
    cells = {name: len(table.cells) for name, table in PUBLISHED.items()}
    numbers = {name: sum(c.number is not None for c in table.cells) for name, table in PUBLISHED.items()}
    # Rows × columns × metrics; the numbers lack the N/A of the iid rows and the empty rows of the last table.
    assert cells == {
        "table1": 8 * 2 * 2,
        "table2": 7 * 3 * 2,
        "table3": 3 * 2,
        "table4": 2 * 2,
        "table5": 2 * 2,
        "table6": 7,
        "table7": 5 * 3 * 2,
        "table8": 5 * 3 * 2,
        "cifar10-1k": 6 * 3 * 2,
    }
    missing = {name: cells[name] - numbers[name] for name in cells if cells[name] != numbers[name]}
    assert missing == {"table1": 4, "table2": 6, "table7": 6, "table8": 6, "cifar10-1k": 24}


def test_names_within_a_table_are_unique():
    for table in PUBLISHED.values():
        keys = {(cell.row, cell.column, cell.metric) for cell in table.cells}
        assert len(keys) == len(table.cells)


def test_runs_and_print():
    assert {name: table.runs for name, table in PUBLISHED.items()} == {
        "table1": 20,
        "table2": 15,
        "table3": 15,
        "table4": 15,
        "table5": None,
        "table6": None,
        "table7": 20,
        "table8": 10,
        "cifar10-1k": 20,
    }


@pytest.mark.parametrize(
    ("table", "row", "column", "setting"),
    [
        ("table1", "ER", "Permuted MNIST", Setting("permuted-mnist", 1000, "er", None, 50, 1)),
        ("table1", "GEN", "MNIST Split", Setting("split-mnist", 1000, "gen", None, None, None)),
        ("table2", "iCarl (5 iter)", "M=50", Setting("split-cifar10", 9750, "icarl", None, 50, 5)),
        ("table2", "fine-tuning", "M=50", Setting("split-cifar10", 9750, "finetune", None, None, 1)),
        ("table3", "iid online", "5", Setting("split-cifar10", 9750, "iid-online", None, None, 5)),
        (
            "table4",
            "ER-MIR",
            "100 per class, 3 updates",
            Setting("split-miniimagenet", None, "er-mir", None, 100, 3),
        ),
        ("cifar10-1k", "AGEM", "M=20", Setting("split-cifar10", 1000, "agem", None, 20, 1)),
    ],
)
def test_settings_say_what_to_run(table, row, column, setting):
    assert cell_of(table, row, column, "accuracy").setting == setting


def test_a_method_without_memories_is_run_once_for_all_sizes():
    settings = settings_of("table2")
    assert len(settings) == 3 + 4 * 3  # three rows keep nothing, four have a run for each of three sizes
    # One training answers the same cell of different tables.
    assert settings_of("table3") & settings == {
        Setting("split-cifar10", 9750, method, None, memory, 1)
        for method, memory in [("iid-online", None), ("er", 100), ("er-mir", 100)]
    }


def test_the_papers_disagreements_are_kept():
    for table, row, accuracy, forgetting in [
        ("table7", "ER", 0.826, 0.14),
        ("table7", "ER-MIR", 0.874, 0.072),
        ("table8", "ER", 0.784, 0.037),
        ("table8", "ER-MIR", 0.801, 0.034),
    ]:
        cells = [cell_of(table, row, "M=50", metric) for metric in ("accuracy", "forgetting")]
        assert [cell.number.value for cell in cells] == [accuracy, forgetting]
        assert "Table 1 prints other numbers" in PUBLISHED[table].note


def test_parse_number():
    assert parse_number("2.48 ± 0.5", "forgetting", 2) == Published(0.0248, 0.005, 0.0025)
    assert parse_number("N/A", "forgetting", 2) is None
    assert parse_number("", "accuracy", 2) is None
    for wrong in ("87,6", "87.6 +- 0.7", "87.6 ± ", "-1.0", "n/a"):
        with pytest.raises(DataError, match="is not a number"):
            parse_number(wrong, "accuracy", 2)
