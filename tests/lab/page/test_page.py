"""The page in a real browser: Debian's Chromium, driven by selenium."""

import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from page_results import put, some_runs
from test_page_made import HOSTILE, hostile_runs

from rehearse import metrics
from rehearse.lab.report import page
from rehearse.lab.report.runs import find_runs
from rehearse.lab.spec import Spec

pytestmark = pytest.mark.xdist_group("browser")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run", "--no-default-browser-check",
)  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: no browser can be driven")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium and chromedriver here, and tests/lab/page/install-chromium could not install them")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The page of nine runs, and of what is hardest to show, served from this machine."""
    folder = tmp_path_factory.mktemp("page")
    some_runs(folder / "runs")
    page.write(find_runs([], folder / "runs"), folder / "report.html")
    hostile_runs(folder / "hostile")
    page.write(find_runs([], folder / "hostile"), folder / "hostile.html", HOSTILE[0])
    return folder


def open_page(browser, path, *, width=1280, dark=False):
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    calm = {"name": "prefers-reduced-motion", "value": "reduce"}  # so that what is clicked stands still
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, calm]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # what earlier pages left
    browser.get(path.as_uri())


def run(browser, script, *arguments):
    return browser.execute_script(script, *arguments)


def labels(browser, table):
    return run(
        browser, f"return [...document.querySelectorAll('{table} tbody th')].map(each => each.textContent.trim())"
    )


def press(browser, *keys):
    for key in keys:
        browser.switch_to.active_element.send_keys(key)


def chart_values(browser, kind, label):
    """The numbers and places of a series, as the browser holds them."""
    marks = run(
        browser,
        "return [...document.querySelectorAll(`svg[data-chart='${arguments[0]}'] .series`)]"
        ".filter(each => each.dataset.series === arguments[1])"
        ".flatMap(each => [...each.querySelectorAll('.mark')])"
        ".map(mark => [Number(mark.dataset.value), mark.getBoundingClientRect().top])",
        kind,
        label,
    )
    return np.array(marks)


def matrices(place, method):
    return [
        np.array(each.result["matrices"]["test"], dtype=float)
        for each in find_runs([], place / "runs")
        if each.spec.method == method
    ]


# ------------------------------------------------------------------------------------------------------------------


def test_it_loads_without_errors_and_asks_for_nothing(browser, place):
    requested = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self):
            requested.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write((place / "report.html").read_bytes())

        def log_message(self, *_):
            pass

    open_page(browser, place / "report.html")
    assert browser.get_log("browser") == []
    assert (
        run(browser, "return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:'))") == []
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            browser.get(f"http://127.0.0.1:{server.server_address[1]}/page")
            assert browser.title == page.TITLE
            # What the page is not allowed to ask for, it does not get, even when told to.
            probe = "const done = arguments[0]; fetch('/other').then(() => done('loaded'), () => done('refused'))"
            assert browser.execute_async_script(probe) == "refused"
        finally:
            server.shutdown()
            thread.join()
    assert requested == ["/page"]


@pytest.mark.parametrize("method", ["finetune", "er", "er-mir"])
def test_the_charts_have_the_data(browser, place, method):
    open_page(browser, place / "report.html")
    measured = matrices(place, method)
    seen = chart_values(browser, "seen", method)
    assert seen[:, 0] == pytest.approx(100 * np.mean([metrics.accuracy_seen(m) for m in measured], axis=0), abs=1e-3)
    lost = chart_values(browser, "forgetting", method)
    drops = [[m[task:, task].max() - m[-1, task] for task in range(3)] for m in measured]
    assert lost[:, 0] == pytest.approx(100 * np.mean(drops, axis=0), abs=1e-3)
    final = 100 * np.mean([metrics.average_accuracy(m) for m in measured])
    for kind in ("cost-cpu_seconds", "cost-forward_passes"):
        assert chart_values(browser, kind, method)[:, 0] == pytest.approx([final], abs=1e-3)
    for numbers in (seen, lost):  # higher numbers stand higher, in proportion
        slope, _ = np.polyfit(numbers[:, 0], numbers[:, 1], 1)
        assert slope < 0
        assert np.corrcoef(numbers.T)[0, 1] == pytest.approx(-1, abs=1e-3)


def test_the_heat_maps_have_the_data(browser, place):
    open_page(browser, place / "report.html")
    maps = run(
        browser,
        "return [...document.querySelectorAll('.heats figure')].map(each => [each.querySelector('h4').textContent,"
        "[...each.querySelectorAll('.mark')].map(mark => Number(mark.dataset.value)),"
        "[...each.querySelectorAll('.mark text')].map(text => Number(text.textContent)),"
        "[...each.querySelectorAll('.mark[data-value] rect')].map(r => Number(getComputedStyle(r).fillOpacity))])",
    )
    assert [name for name, *_ in maps] == ["finetune", "er", "er-mir"]
    for name, values, texts, opacities in maps:
        expected = np.mean(matrices(place, name), axis=0).ravel()
        known = np.isfinite(expected)
        assert [value is not None for value in values] == known.tolist(), "tasks to come were not measured"
        for shown, wanted, within in (
            ([value for value in values if value is not None], expected, 1e-4),
            (texts, 100 * expected, 0.51),
            (opacities, 0.03 + 0.97 * expected, 2e-3),
        ):
            assert shown == pytest.approx(wanted[known], abs=within)


def test_headings_sort_both_ways_by_mouse_and_by_keyboard(browser, place):
    open_page(browser, place / "report.html")
    assert labels(browser, ".comparison") == ["finetune", "er", "er-mir"]
    heading = "document.querySelectorAll('.comparison thead th')[arguments[0]]"
    for column, orders in {
        1: (["er-mir", "er", "finetune"], ["finetune", "er", "er-mir"]),  # accuracy
        3: (["finetune", "er", "er-mir"], ["er-mir", "er", "finetune"]),  # forgetting
        0: (["er", "er-mir", "finetune"], ["finetune", "er-mir", "er"]),  # name
    }.items():
        button = run(browser, f"return {heading}.querySelector('button')", column)
        button.click()
        assert labels(browser, ".comparison") == orders[0]
        run(browser, "arguments[0].focus()", button)
        press(browser, "\n")
        assert labels(browser, ".comparison") == orders[1]
        said = run(browser, "return [...document.querySelectorAll('.comparison [aria-sort]')].map(e => e.ariaSort)")
        assert said == ["descending" if column == 0 else "ascending"]


def test_what_is_undefined_sorts_last_both_ways(browser, place):
    folder = place / "undefined"
    some_runs(folder)
    put(folder, Spec(method="iid-online", stream="split-mnist-5k"), [[None] * 4] * 3 + [[0.9, 0.8, 0.7, 0.6]])
    page.write(find_runs([], folder), place / "undefined.html")
    open_page(browser, place / "undefined.html")
    button = run(browser, "return document.querySelectorAll('.comparison thead th')[3].querySelector('button')")
    for _ in range(2):
        button.click()
        assert labels(browser, ".comparison")[-1] == "iid-online"


def test_hovering_shows_the_number_and_leaving_hides_it(browser, place):
    from selenium.webdriver import ActionChains

    open_page(browser, place / "report.html")
    mark = run(browser, "return document.querySelectorAll('svg[data-chart=seen] .series')[2].querySelector('.mark')")
    run(browser, "arguments[0].closest('svg').scrollIntoView({block: 'center', behavior: 'instant'})", mark)
    tip = browser.find_element("id", "tip")
    assert not tip.is_displayed()
    ActionChains(browser).move_to_element(mark).perform()
    assert tip.is_displayed()
    values = [metrics.accuracy_seen(m)[0] for m in matrices(place, "er-mir")]
    assert tip.text.startswith(f"er-mir, after task 1\n{100 * np.mean(values):.1f} % ± ")
    assert tip.text.endswith("mean of 3 runs")
    ActionChains(browser).move_to_element(browser.find_element("css selector", ".chapter h2")).perform()
    assert not tip.is_displayed()


def test_arrow_keys_walk_through_a_chart(browser, place):
    open_page(browser, place / "report.html")
    tip = browser.find_element("id", "tip")
    for selector, walk in {
        "svg[data-chart=seen]": [
            ("\ue014", "finetune, after task 1"),  # the first arrow enters the chart
            ("\ue014", "finetune, after task 2"),
            ("\ue015", "er, after task 2"),
            ("\ue012", "er, after task 1"),
            ("\ue012", "er, after task 1"),  # the end
            ("\ue013", "finetune, after task 1"),
        ],
        "svg[data-chart=matrix]": [
            ("\ue014", "finetune, after task 1, on task 1"),
            ("\ue015", "finetune, after task 2, on task 1"),
            ("\ue014", "finetune, after task 2, on task 2"),
        ],
    }.items():
        run(browser, f"document.querySelector('{selector}').focus()")
        for key, said in walk:
            press(browser, key)
            assert tip.text.splitlines()[0] == said
        press(browser, "\ue00c")
        assert not tip.is_displayed()


def test_a_series_is_hidden_in_all_charts_of_its_section(browser, place):
    open_page(browser, place / "report.html")
    shown = (
        "return [...document.querySelectorAll('.series')].filter(e => e.getBoundingClientRect().width > 0)"
        ".map(e => e.dataset.series)"
    )
    assert run(browser, shown).count("er") == 4
    button = run(browser, "return document.querySelectorAll('.legend button')[1]")
    button.click()
    assert "er" not in run(browser, shown)
    assert run(browser, shown).count("er-mir") == 4
    button.click()
    assert run(browser, shown).count("er") == 4


def background(browser):
    return run(browser, "return getComputedStyle(document.body).backgroundColor")


def test_light_and_dark_follow_the_system_and_the_button(browser, place):
    light, dark = "rgb(255, 255, 255)", "rgb(20, 23, 28)"
    open_page(browser, place / "report.html")
    run(browser, "localStorage.clear()")
    for system, first, second in ((False, light, dark), (True, dark, light)):
        open_page(browser, place / "report.html", dark=system)
        assert background(browser) == first
        browser.find_element("id", "theme").click()
        assert background(browser) == second
        browser.refresh()
        assert background(browser) == second  # kept
        run(browser, "localStorage.clear()")


def test_paper_is_white_and_nothing_runs_off_it(browser, place):
    open_page(browser, place / "report.html", width=690, dark=True)
    browser.find_element("id", "theme").click()
    browser.find_element("id", "theme").click()
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": features})
    try:
        assert background(browser) == "rgb(255, 255, 255)"
        assert not browser.find_element("id", "theme").is_displayed()
        assert run(browser, "return document.documentElement.scrollWidth") <= 690
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        run(browser, "localStorage.clear()")


@pytest.mark.parametrize("name", ["report.html", "hostile.html"])
@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_phone_scrolls_in_one_direction(browser, place, name, width):
    open_page(browser, place / name, width=width)
    run(browser, "document.querySelectorAll('details').forEach(each => each.open = true)")
    assert run(browser, "return document.documentElement.scrollWidth") <= width
    smallest = run(
        browser,
        "return Math.min(...[...document.querySelectorAll('svg.chart text')].map(each => "
        "parseFloat(getComputedStyle(each).fontSize) * each.getScreenCTM().a))",
    )
    assert smallest >= 9.5


def test_hostile_runs_run_nothing(browser, place):
    open_page(browser, place / "hostile.html")
    assert browser.title == HOSTILE[0]
    assert browser.get_log("browser") == []
    assert run(browser, "return document.scripts.length") == 1
    assert {label.removesuffix(" stale") for label in labels(browser, ".comparison")} == set(
        HOSTILE
    )  # nobody's methods
    assert run(browser, "return [...document.images].every(image => image.complete && image.naturalWidth === 1)")
    run(
        browser, "const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)"
    )
    assert run(browser, "return window.ran === undefined")  # the policy lets nothing but the page's own script run


def test_the_command_of_a_run_is_there_to_copy(browser, place):
    open_page(browser, place / "report.html")
    run(browser, "document.querySelectorAll('.run-group').forEach(each => each.open = true)")
    commands = [each.text for each in browser.find_elements("css selector", ".runs pre")]
    assert len(commands) == 9
    assert sum("er-mir" in command and "--candidates 50" in command for command in commands) == 3
    button = browser.find_element("css selector", "button.copy")
    button.click()
    wait = "return new Promise(done => setTimeout(() => done(arguments[0].textContent), 100))"
    assert run(browser, wait, button) in ("Copied", "Selected")
