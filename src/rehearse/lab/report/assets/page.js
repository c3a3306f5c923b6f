// Sorting, numbers on hover and by keyboard, series on and off, light and dark. Without it the page is still whole.
(() => {
  "use strict";
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];

  // ------------------------------------------------------------------------------------------- light and dark
  const system = matchMedia("(prefers-color-scheme: dark)");
  const recall = () => { try { return localStorage.getItem("rehearse-theme"); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem("rehearse-theme", theme); } catch { /* not allowed here */ } };
  const kept = recall();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
    root.dataset.theme = dark ? "light" : "dark";
    keep(root.dataset.theme);
  });

  // -------------------------------------------------------------------------------------------------- sorting
  const compare = (kind) => (a, b) => kind === "text" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
  function sort(heading) {
    const kind = heading.dataset.sort;
    const first = kind === "text" ? "ascending" : "descending";
    const other = kind === "text" ? "descending" : "ascending";
    const order = heading.getAttribute("aria-sort") === first ? other : first;
    all("th", heading.parentElement).forEach((each) => each.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", order);
    const body = heading.closest("table").tBodies[0];
    const value = (row) => row.cells[heading.cellIndex].dataset.value;
    const rows = [...body.rows];
    const known = rows.filter((row) => value(row) !== undefined).sort((a, b) => {
      const difference = compare(kind)(value(a), value(b));
      return order === "ascending" ? difference : -difference;
    });
    // What has no value comes last, whichever way.
    body.append(...known, ...rows.filter((row) => value(row) === undefined));
  }
  all("table.sortable th[data-sort] button").forEach((button) =>
    button.addEventListener("click", () => sort(button.parentElement)));

  // -------------------------------------------------------------------------------------------------- numbers
  const tip = document.getElementById("tip");
  let current = null;
  function show(mark) {
    hide();
    current = mark;
    mark.classList.add("current");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    place();
  }
  function place() {
    if (!current) return;
    const mark = current.getBoundingClientRect();
    const size = tip.getBoundingClientRect();
    const left = mark.left + mark.width / 2 - size.width / 2;
    const above = mark.top - size.height - 8;
    const limit = root.clientWidth - size.width - 8;
    tip.style.left = `${Math.max(8, Math.min(left, limit))}px`;
    tip.style.top = `${above > 8 ? above : mark.bottom + 8}px`;
  }
  function hide() {
    if (current) current.classList.remove("current");
    current = null;
    tip.hidden = true;
  }
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest("[data-tip]");
    if (mark) show(mark); else if (current && event.pointerType !== "touch") hide();
  });
  document.addEventListener("pointerdown", (event) => { if (!event.target.closest("[data-tip]")) hide(); });
  addEventListener("scroll", place, { passive: true });
  addEventListener("resize", place);

  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  function walk(chart, [down, right]) {
    const marks = all(".series:not(.off) .mark, .heat > .mark", chart.parentElement)
      .filter((mark) => chart.contains(mark));
    if (!marks.length) return;
    if (!current || !chart.contains(current)) return show(marks[0]);
    const at = (mark) => [Number(mark.dataset.row), Number(mark.dataset.column)];
    const [row, column] = at(current);
    // The nearest mark in that direction: along the line for sideways, the next series or row for up and down.
    const further = marks.filter((mark) => down ? (at(mark)[0] - row) * down > 0 : at(mark)[0] === row && (at(mark)[1] - column) * right > 0);
    const distance = (mark) => 1000 * Math.abs(at(mark)[0] - row) + Math.abs(at(mark)[1] - column);
    further.sort((a, b) => distance(a) - distance(b));
    if (further.length) show(further[0]);
  }
  all("svg[tabindex]").forEach((chart) => {
    chart.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return hide();
      if (!(event.key in steps)) return;
      event.preventDefault();
      walk(chart, steps[event.key]);
    });
    chart.addEventListener("blur", hide);
  });

  // --------------------------------------------------------------------------------------------------- series
  function turn(button) {
    const off = button.getAttribute("aria-pressed") === "true";
    all("[data-series]", button.closest("section"))
      .filter((each) => each.dataset.series === button.dataset.series)
      .forEach((each) => each.matches("button") ? each.setAttribute("aria-pressed", String(!off)) : each.classList.toggle("off", off));
  }
  all(".legend button").forEach((button) => button.addEventListener("click", () => turn(button)));
  // A crowded chart begins without its variants.
  all(".legend button[data-aside]").forEach((button) => { if (button.getAttribute("aria-pressed") === "true") turn(button); });

  // ------------------------------------------------------------------------------------------------- commands
  all("button.copy").forEach((button) => button.addEventListener("click", async () => {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  }));
})();
