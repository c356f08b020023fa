// The panel below the timeline: the selected item, tables, charts.
import { button, clock, counted, duration, element, moment, plural, since } from "./text.js";
import { fieldsOf } from "./data.js";
import { Labels, fieldLine, fieldTable } from "./fields.js";
import { originOf } from "./groups.js";
import { figuresByLabel, figuresOfAll, figuresWithin } from "./figures.js";
import { childrenOf, cpuLabel, find, parentOf, whoLabel } from "./rows.js";
import { Flame, heatMap, histogram } from "./charts.js";
import { Diff } from "./diff.js";

// Maximum numbers of rows of tables, and of an item's children and others with its key.
const ROWS_MAX = 500;
const CHILDREN_MAX = 12;
const FLOW_SHOWN = 20;
const SLOWEST_SHOWN = 100;

// The tabs in the order of their keys. The last one exists only if two traces are compared.
const TABS = [["item", "Item"], ["summary", "Summary"], ["distribution", "Durations"], ["slowest", "Slowest"], ["trees", "Call trees"], ["fields", "By field"], ["about", "What is left out"], ["diff", "What differs"]];

// Those that a selected part of the time restricts.
const RESTRICTED = ["summary", "distribution", "slowest", "trees", "fields"];

export const tabsOf = (report) => TABS.filter(([name]) => name !== "diff" || report.diff);

export class Panel {
  // `go`: actions on the timeline.
  constructor(report, parts, go) {
    this.report = report;
    this.parts = parts;
    this.go = go;
    this.tab = "summary";
    // What the table by field shows, and the values of its field.
    this.by = {};
    this.sort = { by: "total", isUp: false };
    // The row of the summary whose distribution is shown.
    this.chosen = report.summary.length ? 0 : undefined;
    this.figures = figuresOfAll(report);
    this.flame = new Flame(report);
    this.diff = report.diff && new Diff(report, () => this.show());
    this.names = tabsOf(report).map(([name]) => name);
    this.tabs = tabsOf(report).map(([name, text]) => {
      const made = button(text, () => this.open(name), { role: "tab", id: `tab-${name}`, "aria-controls": "view" });
      made.addEventListener("keydown", (event) => this.move(event, name));
      return made;
    });
    parts.tabs.replaceChildren(...this.tabs);
    new ResizeObserver(() => this.resized()).observe(parts.view);
    this.open(this.diff ? "diff" : "summary");
  }

  resized() {
    const size = `${this.parts.view.clientWidth} ${this.parts.view.clientHeight}`;
    if (size === this.size) return;
    this.size = size;
    if (["distribution", "trees", "diff"].includes(this.tab)) this.show();
  }

  move(event, name) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.stopPropagation();
    const index = (this.names.indexOf(name) + step + this.names.length) % this.names.length;
    this.open(this.names[index]);
    this.tabs[index].focus();
  }

  open(tab) {
    this.tab = tab;
    this.names.forEach((name, index) => {
      this.tabs[index].setAttribute("aria-selected", name === tab);
      this.tabs[index].tabIndex = name === tab ? 0 : -1;
    });
    this.parts.view.setAttribute("aria-labelledby", `tab-${tab}`);
    this.show();
    this.parts.view.scrollTop = 0;
  }

  show() {
    const made = { item: () => this.item(), summary: () => this.summary(), distribution: () => this.distribution(), slowest: () => this.slowest(), trees: () => this.trees(), fields: () => this.byField(), about: () => this.about(), diff: () => this.differences() }[this.tab]();
    const { area } = this;
    const isRestricted = area && RESTRICTED.includes(this.tab);
    this.parts.view.replaceChildren(...(isRestricted ? [this.restriction()] : []), ...made);
  }

  // Restricts tables to a part of the time; `undefined`: to none.
  restrict(area) {
    const { report } = this;
    const row = this.figures.summary[this.chosen];
    this.area = area;
    this.figures = area ? figuresWithin(report, report.shown, area) : figuresOfAll(report);
    this.flame = new Flame({ names: report.names, nodes: this.figures.nodes });
    const same = this.figures.summary.findIndex((other) => row && other.name === row.name && other.is_slice === row.is_slice);
    this.chosen = same >= 0 ? same : this.figures.summary.length ? 0 : undefined;
    if (area && !RESTRICTED.includes(this.tab)) this.open("summary");
    else this.show();
  }

  // Says to which part of the time tables are restricted.
  restriction() {
    const [begin, end] = this.area;
    const { merged } = this.figures;
    const without = merged ? `; ${plural(merged, "item")} that are drawn as one with their neighbours are not in the tables` : "";
    return element("div", { class: "actions restricted" }, element("span", { text: `What began from ${since(begin)} to ${since(end)}, ${duration(end - begin)}${without}` }), button("All of the time", () => this.go.restrict(undefined), { title: "Escape" }));
  }

  select(selected) {
    // An item in the row of a label is shown as that of its thread.
    const entry = selected && originOf(this.report, selected);
    this.entry = entry;
    if (!entry) {
      if (this.tab === "item") this.show();
      return;
    }
    const name = this.report.name[entry.at];
    const row = this.figures.summary.findIndex((row) => row.name === name && row.is_slice === entry.row.is_slices);
    if (row >= 0) this.chosen = row;
    // A table stays open when an item is selected, except by a click into the timeline.
    if (!["slowest", "summary", "fields"].includes(this.tab)) this.open(this.tab === "distribution" ? "distribution" : "item");
    else if (!this.isHeld) this.open("item");
  }

  // Runs an action on the timeline that leaves the tab as it is.
  held(act) {
    this.isHeld = true;
    act();
    this.isHeld = false;
  }

  name(number) {
    const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.background = this.go.colors()[number];
    return [swatch, this.report.names[number]];
  }

  // Returns a list of names and values.
  list(pairs) {
    return element("dl", {}, ...pairs.flatMap(([name, value]) => [element("dt", { text: name }), element("dd", { text: value })]));
  }

  item() {
    const { entry, report } = this;
    if (!entry) return [element("p", { class: "quiet", text: "Click a slice or an instant in the timeline: its fields, what it is nested in, and others of its name are shown here." })];
    const { at, row } = entry;
    const name = report.name[at];
    const [begin, long] = [report.begin[at], report.duration[at]];
    if (report.count[at] > 1) {
      return [
        element("h2", {}, `${plural(report.count[at], row.is_slices ? "slice" : "instant")} drawn as one`),
        this.list([["most time", report.names[name]], ["from", since(begin)], ["within", duration(long)]]),
        report.is_served ? element("p", { class: "quiet", text: "Each of them is drawn when you zoom in." }) : element("p", { class: "quiet", text: "They were merged so that the report is no longer than it may be. Tables and distributions count each of them. `dormouse report` with --since and --until makes a report of less time, and --max-size one that is longer." }),
      ];
    }
    const other = report.other[at];
    const thread = row.by === "cpu" ? other - 1 : row.of;
    const cpu = row.by === "cpu" ? row.of : other - 1;
    const of = report.summary.find((row) => row.name === name && row.is_slice === entry.row.is_slices);
    const facts = [["begin", since(begin)], ["by the clock", clock(report.begin_at, begin)]];
    if (row.is_slices) {
      facts.push(["duration", duration(long)]);
      if (of && of.count > 1) facts.push([`of ${counted(of.count)}`, `median ${duration(of.p50)}, 99 of 100 up to ${duration(of.p99)}, longest ${duration(of.max)}`]);
    }
    facts.push(["thread", thread >= 0 ? whoLabel(report, thread) : "not known"], [row.is_slices ? "began on" : "on", cpu >= 0 ? cpuLabel(report, cpu) : "CPU not known"]);
    const actions = element("div", { class: "actions" },
      button("← previous of this name", () => this.go.same(-1), { title: "[" }),
      button("next of this name →", () => this.go.same(1), { title: "]" }),
      button("Zoom to it", () => this.go.zoomTo(entry), { title: "f" }),
      button("Durations of this name", () => this.open("distribution")));
    const fields = element("div", { class: "wide" });
    this.fields(entry, fields);
    return [
      element("h2", {}, ...this.name(name)),
      actions,
      element("div", { class: "columns" }, this.list(facts), fields, this.related(entry)),
    ];
  }

  async fields(entry, into) {
    if (this.report.fields[entry.at] === 0) {
      into.append(element("p", { class: "quiet", text: this.report.left_out.fields ? "Its fields are left out, so that the report is no longer than it may be." : "It has no fields." }));
      return;
    }
    let events = [];
    try {
      events = await fieldsOf(this.report, entry);
    } catch (error) {
      into.append(element("p", { class: "quiet", text: `Its fields cannot be had: ${error.message}` }));
    }
    if (events.length) into.append(fieldTable(events));
  }

  link(entry) {
    const { report } = this;
    const text = `${report.names[report.name[entry.at]]}${entry.row.is_slices ? `, ${duration(report.duration[entry.at])}` : ""}`;
    return button(text, () => this.go.select(entry));
  }

  related(entry) {
    const { report } = this;
    const made = element("div");
    const put = (title, entries, more = 0) => {
      if (!entries.length) return;
      made.append(element("h3", { text: title }));
      const list = element("div", { class: "actions" }, ...entries.map((one) => this.link(one)));
      if (more > 0) list.append(element("span", { class: "quiet", text: `and ${counted(more)} more` }));
      made.append(list);
    };
    const parent = parentOf(report, entry);
    put("Nested in", parent ? [parent] : []);
    const { children, count } = childrenOf(report, entry, CHILDREN_MAX);
    put(`Nested in it: ${counted(count)}, the longest first`, children, count - children.reduce((sum, child) => sum + report.count[child.at], 0));
    const flow = this.go.flow().filter((one) => one.at !== entry.at);
    put("With the same key", flow.slice(0, FLOW_SHOWN), flow.length - FLOW_SHOWN);
    return made;
  }

  summary() {
    const { report, figures } = this;
    if (!figures.summary.length) return [element("p", { class: "quiet", text: "There are no events to be counted." })];
    const ns = (value) => duration(value);
    const columns = [
      ["name", "Name", (row) => report.names[row.name]],
      ["count", "Count", (row) => counted(row.count)],
      ["total", "Total", (row) => ns(row.total)],
      ["own", "Own", (row) => ns(row.own)],
      ["mean", "Mean", (row) => ns(row.total / row.count)],
      ["p50", "p50", (row) => ns(row.p50)],
      ["p90", "p90", (row) => ns(row.p90)],
      ["p99", "p99", (row) => ns(row.p99)],
      ["max", "Max", (row) => ns(row.max)],
    ];
    const value = (row, by) => ({ name: report.names[row.name], mean: row.total / row.count })[by] ?? row[by];
    const { by, isUp } = this.sort;
    const order = figures.summary.map((row, index) => [row, index]);
    order.sort(([a], [b]) => (value(a, by) < value(b, by) ? -1 : value(a, by) > value(b, by) ? 1 : 0) * (isUp ? 1 : -1));
    const head = columns.map(([name, text]) => element("th", { "aria-sort": by === name ? (isUp ? "ascending" : "descending") : "none", scope: "col" },
      button(by === name ? `${text} ${isUp ? "▲" : "▼"}` : text, () => {
        this.sort = { by: name, isUp: by === name ? !isUp : name === "name" };
        this.show();
        document.getElementById(`sort-${name}`)?.focus();
      }, { id: `sort-${name}` })));
    const rows = order.slice(0, ROWS_MAX).map(([row, index]) => element("tr", { "aria-selected": index === this.chosen },
      element("td", {}, ...this.name(row.name).slice(0, 1), button(report.names[row.name], () => this.choose(index), { title: row.is_slice ? "Go to the slowest" : "Go to the first" })),
      ...columns.slice(1).map(([name, , text]) => element("td", { text: row.is_slice || name === "count" ? text(row) : "" }))));
    const made = [element("table", { "aria-label": "Slices and instants by name" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows))];
    if (order.length > ROWS_MAX) made.push(element("p", { class: "quiet", text: `${counted(order.length - ROWS_MAX)} names more are not shown.` }));
    if (report.is_served) made.push(element("p", { class: "quiet", text: "Percentiles are within 1 %." }));
    return made;
  }

  // Goes to the slowest item of a row of the summary; for instants, to the first.
  choose(index) {
    this.chosen = index;
    const row = this.figures.summary[index];
    this.held(() => (row.slowest.length ? this.goTo(row.name, row.slowest[0]) : this.go.first(row.name, this.figures.begin)));
    this.show();
  }

  goTo(name, [begin, long]) {
    const entry = find(this.report, "thread", begin, long, name);
    if (entry) this.go.select(entry);
  }

  distribution() {
    const { report, figures } = this;
    if (this.chosen === undefined) return [element("p", { class: "quiet", text: "There are no events to be counted." })];
    const row = figures.summary[this.chosen];
    const select = element("select", { "aria-label": "Name", onchange: (event) => { this.chosen = Number(event.target.value); this.show(); } });
    figures.summary.slice(0, ROWS_MAX).forEach((row, index) => select.append(element("option", { value: index, text: `${report.names[row.name]}${row.is_slice ? "" : " (instants)"}` })));
    select.value = this.chosen;
    const cells = figures.heat[this.chosen];
    const theme = this.go.theme();
    const said = element("p", { class: "quiet", text: row.is_slice
      ? `${plural(row.count, "slice")}: half up to ${duration(row.p50)}, 90 of 100 up to ${duration(row.p90)}, 99 of 100 up to ${duration(row.p99)}, the longest ${duration(row.max)}`
      : plural(row.count, "instant") });
    const initial = said.textContent;
    // Side by side, with space between them and a scroll bar; below each other if there is no room.
    const full = this.parts.view.clientWidth - 44;
    const width = full > 760 ? Math.floor((full - 36) / 2) : full;
    const height = Math.max(130, Math.min(320, this.parts.view.clientHeight - 116));
    const pictures = [];
    const picture = (title, { made, said: sayAt, timeAt }) => {
      made.addEventListener("pointermove", (event) => {
        const box = made.getBoundingClientRect();
        said.textContent = sayAt(event.clientX - box.left, event.clientY - box.top) || initial;
      });
      made.addEventListener("pointerleave", () => (said.textContent = initial));
      if (timeAt) {
        made.style.cursor = "pointer";
        made.addEventListener("click", (event) => {
          const part = figures.span / report.time_bins;
          const time = timeAt(event.clientX - made.getBoundingClientRect().left);
          this.go.show(Math.max(0, figures.begin + (time - 1) * part), 3 * part);
        });
      }
      pictures.push(element("div", {}, element("h3", { text: title }), made));
    };
    if (row.is_slice) picture("How many took how long", histogram(report, cells, [width, height], theme, this.go.colors()[row.name]));
    picture(row.is_slice ? "How long they took over time; click to go there" : "How many over time; click to go there", heatMap(report, figures, cells, [row.is_slice ? width : full, height], theme));
    return [element("div", { class: "actions" }, select, button("Slowest", () => this.open("slowest"), row.is_slice ? {} : { disabled: "" })), said, element("div", { class: "columns" }, ...pictures)];
  }

  slowest() {
    const { report, figures } = this;
    const rows = figures.summary.filter((row) => row.is_slice);
    const only = this.only !== undefined && rows.some((row) => row.name === this.only) ? this.only : undefined;
    const select = element("select", { "aria-label": "Name", onchange: (event) => { this.only = event.target.value === "" ? undefined : Number(event.target.value); this.show(); } },
      element("option", { value: "", text: "of all names" }), ...rows.slice(0, ROWS_MAX).map((row) => element("option", { value: row.name, text: report.names[row.name] })));
    select.value = only ?? "";
    const slow = rows.filter((row) => only === undefined || row.name === only).flatMap((row) => row.slowest.map((one) => [row.name, one]));
    slow.sort(([, a], [, b]) => b[1] - a[1]);
    if (!slow.length) return [element("p", { class: "quiet", text: "There are no slices: no events of this trace are begin and end of something. --pairs BEGIN..END says which are." })];
    const shown = slow.slice(0, SLOWEST_SHOWN);
    const cells = shown.map(() => [0, 1].map(() => element("td", { class: "text line" })));
    const body = shown.map(([name, one], index) => element("tr", {},
      element("td", {}, ...this.name(name).slice(0, 1), button(report.names[name], () => this.goTo(name, one), { title: "Show it as Item" })),
      element("td", { text: duration(one[1]) }), element("td", { text: since(one[0]) }), element("td", { class: "text who", text: whoLabel(report, one[2]), title: whoLabel(report, one[2]) }), ...cells[index]));
    this.fill(shown, cells);
    const head = ["Name", "Duration", "Begin", "Thread", "Fields of the begin", "Fields of the end"].map((text, index) => element("th", { text, scope: "col", class: index > 2 ? "text" : undefined }));
    return [
      element("div", { class: "actions" }, select),
      element("table", { "aria-label": "The slowest slices", class: "full" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)),
    ];
  }

  // Fills the cells of the slowest slices with the fields of their begins and ends.
  async fill(shown, cells) {
    for (const [index, [name, [begin, long]]] of shown.entries()) {
      const entry = find(this.report, "thread", begin, long, name);
      const events = await (entry ? fieldsOf(this.report, entry).catch(() => []) : []);
      // Another table is shown by now.
      if (!cells[index][0].isConnected) return;
      cells[index].forEach((cell, side) => (cell.textContent = cell.title = fieldLine(events[side])));
    }
  }

  // Percentiles of the slices of a name, by the value of a field.
  byField() {
    const { report, figures, by } = this;
    const slices = figures.summary.filter((row) => row.is_slice);
    const fields = report.field_names;
    if (report.is_served) return [element("p", { class: "quiet", text: "The fields stay with the program that serves this page. `dormouse report` makes a page with these tables, and `dormouse stats --latency BEGIN..END --by FIELD` prints them." })];
    if (!slices.length || !fields.length) return [element("p", { class: "quiet", text: "There are no slices with fields." })];
    const choice = (label, options, value, chosen) => {
      const made = element("select", { "aria-label": label, onchange: (event) => { chosen(event.target.value); this.show(); } }, ...options.map(([value, text]) => element("option", { value, text })));
      made.value = value;
      return made;
    };
    const name = slices.some((row) => row.name === by.name) ? by.name : slices[0].name;
    const choices = element("div", { class: "actions" }, choice("Name", slices.slice(0, ROWS_MAX).map((row) => [row.name, report.names[row.name]]), name, (value) => (by.name = Number(value))), "by", choice("Field", [["", "a field …"], ...fields.map((field) => [field, field])], by.field ?? "", (value) => (by.field = value)));
    if (!by.field) return [choices, element("p", { class: "quiet", text: "Choose a field: each of its values has a row with the durations of the slices that have it." })];
    const { labels } = by;
    if (labels?.field !== by.field) {
      this.read(by.field);
      return [choices, element("p", { class: "quiet", text: "The fields are being read …" })];
    }
    const { rows, left } = figuresByLabel(report, labels.made, name, this.area ?? [0, report.span]);
    const columns = [["Count", (row) => counted(row.count)], ["Total", (row) => duration(row.total)], ["Mean", (row) => duration(row.total / row.count)], ...["p50", "p90", "p99", "max"].map((key) => [key === "max" ? "Max" : key, (row) => duration(row[key])])];
    const head = [by.field, ...columns.map(([text]) => text)].map((text) => element("th", { text, scope: "col" }));
    const body = rows.slice(0, ROWS_MAX).map((row) => element("tr", {}, element("td", {}, button(row.text, () => this.go.query(`${by.field}=${row.text}`), { "aria-label": `Search for ${by.field}=${row.text}`, title: "Search for it" })), ...columns.map(([, text]) => element("td", { text: text(row) }))));
    const made = [choices, element("table", { "aria-label": "Durations by the value of a field" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body))];
    if (rows.length > ROWS_MAX) made.push(element("p", { class: "quiet", text: `${counted(rows.length - ROWS_MAX)} values more are not shown: those with the least time.` }));
    if (left) made.push(element("p", { class: "quiet", text: `${plural(left, "slice")} are not in it: they lack the field, or the page lacks their fields.` }));
    return made;
  }

  async read(field) {
    const { by } = this;
    if (by.reading?.field === field) return;
    if (by.reading) by.reading.isStopped = true;
    const made = (by.reading = new Labels(this.report, `{${field}}`));
    made.field = field;
    if (!(await made.run())) return;
    by.labels = { field, made };
    by.reading = undefined;
    if (this.tab === "fields") this.show();
  }

  trees() {
    const { flame, report } = this;
    if (!flame.nodes.length) return [element("p", { class: "quiet", text: "There are no slices, so there are no call trees." })];
    const hint = "How wide a name is says how much time it has in all threads together; what is below it is nested in it. Click to go in, click above to go out.";
    const said = element("p", { class: "quiet", text: hint });
    const made = flame.draw(Math.max(200, this.parts.view.clientWidth - 24), this.go.theme(), this.go.colors());
    flame.listen(made, (node) => (said.textContent = flame.said(node) || hint), () => this.show());
    const left = report.left_out.call_trees && !this.area ? [element("p", { class: "quiet", text: `${plural(report.left_out.call_trees, "slice")} are not in it: there are too many different callers.` })] : [];
    return [said, made, ...left];
  }

  differences() {
    const { clientWidth, clientHeight } = this.parts.view;
    return this.diff.view(Math.max(200, clientWidth - 44), Math.max(130, Math.min(220, clientHeight - 150)), this.go.theme());
  }

  about() {
    const { report } = this;
    const { left_out: left } = report;
    const lines = leftOut(report);
    const made = [element("h2", { text: lines.length ? "Not in the pictures, but counted in the tables" : "Nothing is left out" }), ...lines.map((text) => element("p", { text }))];
    const merged = Object.entries(report.is_served ? {} : left.merged).sort(([, a], [, b]) => b - a);
    if (merged.length) {
      const rows = merged.slice(0, ROWS_MAX).map(([name, count]) => element("tr", {}, element("td", { text: name }), element("td", { text: counted(count) })));
      made.push(element("table", {}, element("thead", {}, element("tr", {}, element("th", { text: "Name with the most time" }), element("th", { text: "Drawn as one with neighbours" }))), element("tbody", {}, ...rows)));
    }
    if (report.losses.length) {
      const rows = report.losses.slice(0, ROWS_MAX).map((loss) => element("tr", {},
        element("td", {}, button(`${moment(loss.begin)} to ${moment(loss.end)}`, () => this.go.show(loss.begin - (loss.end - loss.begin), 3 * Math.max(1, loss.end - loss.begin)))),
        element("td", { text: loss.events ? counted(loss.events) : "not known" }), element("td", { class: "text", text: loss.cpu === null ? loss.stream : cpuLabel(report, loss.cpu) })));
      made.push(element("h2", { text: "Where events were lost" }), element("table", {}, element("thead", {}, element("tr", {}, element("th", { text: "When" }), element("th", { text: "Events" }), element("th", { class: "text", text: "Where" }))), element("tbody", {}, ...rows)));
    }
    made.push(element("h2", { text: "The trace" }), ...report.about.map((text) => element("p", { text })));
    if (report.diff) {
      const { title, about, events, losses } = report.diff;
      const lost = losses.slice(0, ROWS_MAX).map((loss) => `${loss.events ? plural(loss.events, "event") : "not known how many"} lost between ${duration(loss.begin)} and ${duration(loss.end)} on ${loss.stream}`);
      made.push(element("h2", { text: "The other trace, B" }), ...[`${title}: ${plural(events, "event")}`, ...about, ...lost].map((text) => element("p", { text })));
    }
    return made;
  }
}

// Returns what the pictures leave out, a line each.
export function leftOut({ left_out: left, is_served }) {
  // A served page fetches merged items when the user zooms in.
  const merged = Object.values(is_served ? {} : left.merged).reduce((sum, count) => sum + count, 0);
  return [
    merged && `${plural(merged, "item")} shorter than ${duration(left.resolution_ns)} are drawn as one with their neighbours`,
    left.fields && `the fields of ${plural(left.fields, "item")} are left out, of the shortest first`,
    left.too_deep && `${plural(left.too_deep, "slice")} are nested too deep to be drawn`,
    left.too_many_on_cpu && `${plural(left.too_many_on_cpu, "slice")} are not drawn by CPU, where too many threads have some`,
    !is_served && left.counter_values && `${plural(left.counter_values, "value")} of counters are drawn as one with their neighbours`,
    left.call_trees && `${plural(left.call_trees, "slice")} are not in the call trees`,
  ].filter(Boolean);
}
