"use strict";
// The page works from file:// with nothing loaded. Names of the user's are only ever set as text.

const byId = (id) => document.getElementById(id);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

async function unpack(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// ---- theme -------------------------------------------------------------------------------------------------------
const root = document.documentElement;
const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null; // until the button is pressed the page follows the system

function setTheme(theme) {
  root.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  charts.forEach(draw);
}
const currentTheme = () => chosenTheme ?? (systemDark.matches ? "dark" : "light");
const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

// ---- switches: one value a name, shared by every chart and table that has it ---------------------------------------
const chosen = new Map(); // switch name -> value
const followers = []; // {switches: {name: [values]}, update()}

function follow(switches, update, place) {
  const selects = [];
  for (const [name, values] of Object.entries(switches)) {
    if (!chosen.has(name)) chosen.set(name, values[0]);
    if (values.length < 2 || !place) continue;
    const select = element("select", { "data-switch": name });
    for (const value of values) select.append(element("option", { value }, value));
    select.addEventListener("change", () => choose(name, select.value));
    place.append(element("label", {}, name, select));
    selects.push([name, values, select]);
  }
  const refresh = () => {
    for (const [name, values, select] of selects) {
      select.value = valueOf(name, values);
      select.parentElement.dataset.chosen = select.value;
    }
    update();
  };
  followers.push({ switches, refresh });
  refresh();
}
const valueOf = (name, values) => (values.includes(chosen.get(name)) ? chosen.get(name) : values[0]);

function choose(name, value) {
  chosen.set(name, value);
  for (const each of followers) if (name in each.switches) each.refresh();
}
const viewKey = (switches) =>
  Object.entries(switches).map(([name, values]) => values.indexOf(valueOf(name, values))).join("|");

// ---- charts --------------------------------------------------------------------------------------------------------
const charts = [];
const hidden = new Set(); // methods hidden by a click on a legend, in every chart

const THUMBNAIL = 1 / 16; // side of a image on a map, as a share of the map

function imagesOf(view) {
  const shown = view.traces.filter((trace) => trace.images && !hidden.has(trace.legendgroup));
  const spread = (axis) => {
    const values = view.traces.flatMap((trace) => trace[axis]);
    return THUMBNAIL * (Math.max(...values) - Math.min(...values));
  };
  const [sizex, sizey] = shown.length ? [spread("x"), spread("y")] : [0, 0];
  return shown.flatMap((trace) => trace.images.map((source, i) => ({
    source, x: trace.x[i], y: trace.y[i], sizex, sizey, xref: "x", yref: "y", xanchor: "center", yanchor: "middle", layer: "above",
  })));
}

// On a logarithmic axis plotly writes every digit where it has space for many labels; few labels are 1, 2, 5 or decades.
function logLabels(view) {
  const values = view.traces.flatMap((trace) => trace.y).filter((y) => y > 0);
  return Math.max(...values) / Math.min(...values) < 1000 ? 3 : 5;
}

function layoutOf(view, width) {
  const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--muted"), linecolor: colour("--line"), automargin: true };
  const narrow = width < 560;
  return {
    autosize: true,
    margin: { l: 8, r: 12, t: 8, b: 8 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: narrow ? 11 : 13, color: colour("--ink") },
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--ink"), size: 12 }, align: "left" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--muted"), activecolor: colour("--ink") },
    hovermode: "closest",
    showlegend: !view.bars,
    legend: { orientation: "h", x: 0, y: view.bare ? 1.02 : 1.04, yanchor: "bottom", itemsizing: "constant" },
    xaxis: { ...axis, title: { text: view.bare ? "" : view.x, standoff: 8, font: { size: narrow ? 11 : 13 } }, visible: !view.bare, zeroline: false, rangemode: view.bars ? "tozero" : "normal" },
    yaxis: { ...axis, title: { text: view.bars || view.bare ? "" : view.y, standoff: 8, font: { size: narrow ? 11 : 13 } }, visible: !view.bare, zeroline: !view.log, type: view.log ? "log" : "-", nticks: view.log ? logLabels(view) : 0, exponentformat: "none", ticks: view.bars ? "" : "outside", tickcolor: "rgba(0,0,0,0)" },
    images: imagesOf(view),
    bargap: 0.35, dragmode: narrow ? false : "zoom",
  };
}

function readableOn(hex) {
  const [red, green, blue] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  return 0.3 * red + 0.59 * green + 0.11 * blue > 140 ? "#14181c" : "#ffffff";
}

function tracesOf(view) {
  return view.traces.map((trace) => {
    const made = { ...trace, visible: hidden.has(trace.legendgroup) ? "legendonly" : true };
    if (trace.type === "bar") {
      made.text = trace.x.map((x) => (x === null ? "" : x.toFixed(1)));
      made.textposition = "inside"; made.insidetextanchor = "start"; made.textfont = { color: readableOn(trace.marker.color) };
      made.cliponaxis = false;
      if (hidden.has(trace.legendgroup)) made.visible = false;
      if (trace.error_x) made.error_x = { ...trace.error_x, color: colour("--ink") };
    }
    return made;
  });
}

function draw(chart) {
  const view = chart.data.views[viewKey(chart.data.switches)];
  if (!view || !window.Plotly) return;
  const config = {
    responsive: true, displaylogo: false, toImageButtonOptions: { format: "svg", filename: chart.data.id },
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]], // and none that would send the data away
    plotlyServerURL: "", showSendToCloud: false,
  };
  Plotly.react(chart.plot, tracesOf(view), layoutOf(view, chart.plot.clientWidth), config);
  chart.note.textContent = view.note;
  if (!chart.listening) {
    chart.plot.on("plotly_legendclick", (event) => { toggle(event.data[event.curveNumber].legendgroup); return false; });
    chart.plot.on("plotly_legenddoubleclick", (event) => { isolate(event.data[event.curveNumber].legendgroup, event.data); return false; });
    chart.listening = true;
  }
}

function toggle(name) {
  if (!hidden.delete(name)) hidden.add(name);
  charts.forEach(draw);
}

function isolate(name, traces) {
  const others = new Set(traces.map((trace) => trace.legendgroup).filter((each) => each !== name));
  const alone = [...others].every((each) => hidden.has(each));
  for (const each of others) alone ? hidden.delete(each) : hidden.add(each);
  hidden.delete(name);
  charts.forEach(draw);
}

// ---- tables --------------------------------------------------------------------------------------------------------
const cellText = (cell) => cell.innerText.replace(/\s*\n\s*/g, " ").trim();

function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const value = (row) => {
    const text = cellText(row.cells[column]), number = parseFloat(text.replace("−", "-"));
    return Number.isNaN(number) ? text : number;
  };
  const rows = [...body.rows].map((row) => [value(row), row]);
  const missing = (v) => v === "–" || v === "";
  rows.sort(([a], [b]) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b); // gaps last, whichever way
    if (typeof a === typeof b) return direction * (typeof a === "number" ? a - b : a.localeCompare(b));
    return typeof a === "number" ? -1 : 1;
  });
  body.append(...rows.map(([, row]) => row));
  for (const [i, head] of [...table.tHead.rows[0].cells].entries()) {
    if (i === column) head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  }
}

function rowsOf(table) {
  return [...table.rows].map((row) => [...row.cells].map((cell) => cellText(cell).replaceAll("−", "-"))); // as programs read it
}

function csvOf(table) {
  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return rowsOf(table).map((row) => row.map(quoted).join(",")).join("\r\n") + "\r\n";
}

async function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
  const area = element("textarea"); // pages opened from a disk may lack the clipboard
  area.value = text;
  document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
}

function equip(table) {
  const heads = [...table.tHead.rows[0].cells];
  const name = table.dataset.name;
  const facts = name === "how-it-was-made"; // names and values, with nothing to sort
  heads.forEach((head, i) => {
    const cells = [...table.tBodies[0].rows].map((row) => row.cells[i]);
    for (const cell of cells) cell.dataset.label = cellText(head);
    if (facts || !cells.some((cell) => cellText(cell).length > 60)) return;
    [head, ...cells].forEach((cell) => cell.classList.add("words"));
    table.classList.add("wordy"); // a narrow page shows its rows as cards
  });
  if (!facts) {
    table.classList.add("sortable");
    heads.forEach((head, i) => {
      head.tabIndex = 0;
      const sort = () => sortTable(table, i, head.getAttribute("aria-sort") === "descending" ? 1 : -1);
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
    });
  }
  const copy = element("button", { type: "button", class: "copy" }, "Copy");
  copy.addEventListener("click", async () => {
    await copyText(rowsOf(table).map((row) => row.join("\t")).join("\n"));
    copy.textContent = "Copied";
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  const csv = element("button", { type: "button", class: "csv" }, "CSV");
  csv.addEventListener("click", () => {
    const link = element("a", { href: URL.createObjectURL(new Blob([csvOf(table)], { type: "text/csv" })), download: `${name}.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  table.parentElement.after(element("div", { class: "tools" }, copy, csv));
}

function equipSwitched(block) {
  const name = block.dataset.switch, values = block.dataset.values.split("\n");
  const place = element("div", { class: "switches" });
  block.prepend(place);
  const switches = { [name]: values };
  follow(switches, () => {
    const shown = viewKey(switches);
    for (const each of all(":scope > [data-place]", block)) each.hidden = each.dataset.place !== shown;
  }, place);
}

// ---- galleries -----------------------------------------------------------------------------------------------------
function image(found, item, images, verdict) {
  const [index, name, file] = found;
  const url = images[item.data]?.[index];
  const distance = found.length > 4 ? found[4] : null;
  const box = element("div", { class: `image ${verdict ?? ""}`, tabindex: "0" });
  box.dataset.tip = `${file}\nclass: ${name}${distance === null ? "" : `\ndistance ${distance.toFixed(3)}`}`;
  const frame = element("div", { class: "frame" });
  frame.append(url ? element("img", { src: url, alt: name }) : "no image");
  const label = element("div", { class: "name" });
  if (verdict) label.append(element("span", { class: "mark" }, verdict === "right" ? "✓ " : "✗ "));
  label.append(...name.split(/(?<=[_.\-])/).flatMap((part) => [part, element("wbr")])); // long names may break there
  box.append(frame, label);
  return box;
}

function showGallery(place, item, images) {
  place.replaceChildren();
  if (!item) { place.append(element("p", { class: "muted" }, "No embeddings were kept for this method and split.")); return; }
  const percent = (100 * item.recall).toFixed(1);
  place.append(element("p", { class: "muted" }, `${item.method}: ${item.searched} queries searched, ${percent} % of them right at the first neighbour.`));
  if (!item.queries.length) place.append(element("p", {}, "None of them fails."));
  for (const query of item.queries) {
    const row = element("div", { class: "query" }, image(query.image, item, images), element("span", { class: "arrow", "aria-hidden": "true" }, "→"));
    for (const found of query.found) row.append(image(found, item, images, found[3] ? "right" : "wrong"));
    row.append(element("span", { class: "verdict" }, query.first ? `first of its class: ${query.first}` : "none of its class among the first 50"));
    place.append(row);
  }
  if (!item.confusions.length) return;
  place.append(element("h3", {}, "Classes most often mistaken"));
  const pairs = element("div", { class: "pairs" });
  for (const [count, first, second] of item.confusions) {
    if (images[item.data]?.[first[0]] && pairs.childElementCount < 3) {
      pairs.append(element("div", { class: "pair" }, image(first, item, images), image(second, item, images), element("span", {}, count === 1 ? "once" : `${count} times`)));
    }
  }
  const rows = item.confusions.map(([count, first, second]) => element("tr", {}, element("td", {}, first[1]), element("td", { class: "words" }, second[1]), element("td", {}, String(count))));
  const heads = ["class", "taken for, or for it", "times"].map((text, i) => element("th", { scope: "col", class: i === 1 ? "words" : "" }, text));
  const table = element("table", { class: "data", "data-name": "confusions" }, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  place.append(pairs, element("div", { class: "scroll" }, table));
  equip(table);
}

function showNeighbours(place, data) {
  for (const query of data.neighbours) {
    const rows = element("div", { class: "spaces" });
    for (const [name, found] of query.spaces) {
      const row = element("div", { class: "query" }, element("span", { class: "space" }, name));
      row.append(...found.map((each) => image(each, data, data.images)));
      rows.append(row);
    }
    place.append(element("div", { class: "asked" }, image(query.image, data, data.images), rows));
  }
}

function equipGallery(data) {
  const place = byId("gallery");
  if (!place || !data) return;
  if (data.neighbours) return showNeighbours(place, data);
  const switches = {
    method: [...new Set(data.items.map((item) => item.method))],
    split: [...new Set(data.items.map((item) => item.split))],
  };
  const bar = element("div", { class: "switches" }), body = element("div");
  place.append(bar, body);
  follow(switches, () => {
    const [method, split] = Object.entries(switches).map(([name, values]) => valueOf(name, values));
    showGallery(body, data.items.find((item) => item.method === method && item.split === split), data.images);
  }, bar);
}

function equipTips() {
  const tip = byId("tip");
  const show = (event) => {
    const target = event.target.closest?.("[data-tip]");
    tip.hidden = !target;
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const box = target.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = box.bottom + tip.offsetHeight + 8 > innerHeight ? `${box.top - tip.offsetHeight - 4}px` : `${box.bottom + 4}px`;
  };
  document.addEventListener("mouseover", show);
  document.addEventListener("focusin", show);
  document.addEventListener("scroll", () => (tip.hidden = true), { passive: true });
}

// ---- start ---------------------------------------------------------------------------------------------------------
async function start() {
  setTheme(currentTheme());
  all("table.data").forEach(equip);
  all(".switched").forEach(equipSwitched);
  equipTips();
  const data = JSON.parse(await unpack("packed-data"));
  equipGallery(data.galleries);
  const library = document.createElement("script");
  library.textContent = await unpack("packed-plotly");
  document.head.append(library);
  for (const each of data.charts) {
    const figure = document.querySelector(`[data-chart="${CSS.escape(each.id)}"]`);
    const chart = { data: each, plot: figure.querySelector(".plot"), note: figure.querySelector(".note") };
    charts.push(chart);
    follow(each.switches, () => draw(chart), figure.querySelector(".switches"));
    await new Promise(requestAnimationFrame); // lets the page answer between charts
  }
  byId("theme").addEventListener("click", () => { chosenTheme = currentTheme() === "dark" ? "light" : "dark"; setTheme(chosenTheme); });
  systemDark.addEventListener("change", () => setTheme(currentTheme()));
  window.addEventListener("beforeprint", () => setTheme("light"));
  window.addEventListener("afterprint", () => setTheme(currentTheme()));
  root.dataset.ready = "yes";
}

start().catch((error) => {
  byId("problem").hidden = false;
  byId("problem").textContent = `The charts could not be drawn: ${error.message}. A browser of 2023 or later is needed.`;
  console.error(error);
});
