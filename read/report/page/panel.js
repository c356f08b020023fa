// The panel below the timeline: the selected item, tables, charts.
import { button, clock, counted, duration, element, moment, plural, since } from "./text.js";
import { fieldsOf } from "./data.js";
import { Labels, NO_FIELDS, OF_THREAD, THREAD_IDS, fieldLine, fieldTable } from "./fields.js";
import { During, SameKey, timeByName } from "./during.js";
import { originOf } from "./groups.js";
import { eachWithin, figuresByLabel, figuresOfAll, figuresWithin } from "./figures.js";
import { cpuLabel, find, parentOf, threadLabel, whoLabel } from "./rows.js";
import { Flame, heatMap, histogram } from "./charts.js";
import { Diff } from "./diff.js";

// Maximum numbers of rows of tables, of items during an item, of names of these in a line, and of others with its key.
const ROWS_MAX = 500;
const DURING_SHOWN = 200;
const NAMES_SHOWN = 6;
// Stands for all names.
const ALL = -1;
// Maximum number of fields of the table by fields, and what separates their values in labels.
export const FIELDS_CHOSEN = 3;
const BETWEEN = "\0";
// Fields that the table by field shows of names that have them, until others are chosen.
const FIELDS_TOGETHER = [["thread", "owner", "mutex"], ["thread", "writer", "rwlock"], ["file"]];
// Number of slices of a name whose fields are looked at for the names of the fields.
const SAMPLES = 64;
const FLOW_SHOWN = 20;
const SLOWEST_SHOWN = 100;

// The tabs in the order of their keys. The last one exists only if two traces are compared.
const TABS = [["item", "Item"], ["summary", "Summary"], ["distribution", "Durations"], ["slowest", "Slowest"], ["trees", "Call trees"], ["fields", "By field"], ["about", "What is left out"], ["diff", "What differs"]];

// Those that a selected part of the time restricts.
const RESTRICTED = ["summary", "distribution", "slowest", "trees", "fields"];

// Returns rows in the order of a column. `value`: returns that of a row.
const sorted = (rows, { by, isUp }, value) => rows.slice().sort((a, b) => (value(a, by) < value(b, by) ? -1 : value(a, by) > value(b, by) ? 1 : 0) * (isUp ? 1 : -1));

export const tabsOf = (report) => TABS.filter(([name]) => name !== "diff" || report.diff);

export class Panel {
  // `go`: actions on the timeline.
  constructor(report, parts, go) {
    this.report = report;
    this.parts = parts;
    this.go = go;
    this.tab = "summary";
    // What the table by field shows, and the values of its field.
    this.by = { fields: [], isOnly: true, sort: { by: "total", isUp: false } };
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
    // Only the table by field can leave out what a search does not find.
    const isSearched = this.go.search() !== undefined && this.tab !== "fields" && RESTRICTED.includes(this.tab);
    const ofAll = isSearched ? [element("p", { class: "quiet", text: "Of everything, whatever the search finds; By field can count only that." })] : [];
    this.parts.view.replaceChildren(...(isRestricted ? [this.restriction()] : []), ...ofAll, ...made);
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
    if (row >= 0) this.by.name = undefined;
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
      ...this.slower(entry),
      button("Zoom to it", () => this.go.zoomTo(entry), { title: "f" }),
      button("Durations of this name", () => this.open("distribution")));
    const fields = element("div", { class: "wide" });
    this.fields(entry, fields);
    const during = element("div");
    if (row.is_slices) this.showDuring(entry, during);
    return [
      element("h2", {}, ...this.name(name)),
      actions,
      element("div", { class: "columns" }, this.list(facts), fields, this.related(entry)),
      during,
    ];
  }

  // Returns a button to the next of the slowest slices of an item's name.
  slower({ at, row }) {
    const { report, figures } = this;
    const of = figures.summary.find((one) => row.is_slices && one.is_slice && one.name === report.name[at]);
    if (!of || of.slowest.length < 2) return [];
    const rank = of.slowest.findIndex(([begin, long]) => begin === report.begin[at] && long === report.duration[at]);
    const next = of.slowest[(rank + 1) % of.slowest.length];
    return [button(rank < 0 ? "Slowest of this name" : `${counted(rank + 1)} of the slowest ${counted(of.slowest.length)}: next →`, () => this.goTo(of.name, next))];
  }

  // Returns what finds the items during an item. It needs the fields of all items; the program that serves a page has
  // these, and all items of the time.
  async meanwhile({ at }) {
    const { report } = this;
    this.readingKeys ??= (async () => {
      const made = new SameKey(report, (...what) => this.go.asked(...what));
      await made.read();
      return made;
    })();
    const sameKey = await this.readingKeys;
    if (report.is_served && report.left_out.resolution_ns > 0) {
      const { rows } = await this.go.asked({ begin: report.begin[at], end: report.begin[at] + report.duration[at], step: 1, cpu: 0 });
      return new During(report, sameKey, rows);
    }
    return (this.all ??= new During(report, sameKey, report.rows));
  }

  // Shows what happened during an item, in the order of time.
  async showDuring(entry, into) {
    const { report } = this;
    into.append(element("p", { class: "quiet", text: "What happened during it is being read …" }));
    const ofThread = entry.row.by === "thread" ? entry : find(report, "thread", report.begin[entry.at], report.duration[entry.at], report.name[entry.at]);
    if (!ofThread) return;
    let [during, items, threads, fields] = [];
    try {
      during = await this.meanwhile(ofThread);
      ({ items, threads, fields } = await during.of(ofThread));
    } catch (error) {
      into.replaceChildren(element("p", { class: "quiet", text: `What happened during it cannot be had: ${error.message}` }));
      return;
    }
    if (!into.isConnected) return;
    const count = items.reduce((sum, { at }) => sum + report.count[at], 0);
    const longest = [...items].sort((a, b) => report.duration[b.at] - report.duration[a.at]).slice(0, DURING_SHOWN);
    const shown = items.length > longest.length ? items.filter((item) => longest.includes(item)) : items;
    const where = threads.length ? ` on ${threads.map((thread) => threadLabel(report, thread)).join(", ")}` : "";
    const same = `the same ${fields.join(", ")}`;
    const how = !fields.length ? "" : threads.length ? `, while they worked on ${same}` : ` with ${same}`;
    const title = `During it: ${count ? plural(count, "item") : "nothing"}${where}${how}${shown.length < items.length ? `; the longest ${counted(shown.length)} are shown` : ""}`;
    const cells = shown.map(() => [element("td", { class: "text line" })]);
    const body = shown.map((one, index) => {
      const name = element("td", { class: "text" }, ...this.name(report.name[one.at]).slice(0, 1), button(report.count[one.at] > 1 ? `${counted(report.count[one.at])} drawn as one, most time: ${report.names[report.name[one.at]]}` : report.names[report.name[one.at]], () => this.go.select(one)));
      name.style.paddingLeft = `${10 + 14 * one.depth}px`;
      const thread = during.threadOf(one) ?? -1;
      return element("tr", {}, element("td", { text: `+${duration(report.begin[one.at] - report.begin[entry.at])}` }), element("td", { text: one.row.is_slices ? duration(report.duration[one.at]) : "" }), name, element("td", { class: "text who", text: thread >= 0 ? threadLabel(report, thread) : "" }), ...cells[index]);
    });
    const head = ["After", "Duration", "Name", "Thread", "Fields"].map((text, index) => element("th", { text, scope: "col", class: index > 1 ? "text" : undefined }));
    into.replaceChildren(element("h3", { text: title }), ...(shown.length ? [element("table", { "aria-label": "During it", class: "full" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body))] : []));
    for (const [index, one] of shown.entries()) {
      const events = await fieldsOf(report, one).catch(() => []);
      if (!into.isConnected) return;
      cells[index][0].textContent = cells[index][0].title = fieldLine(report, { name: "", fields: events.slice(0, 2).flatMap(({ fields }) => fields).filter(([name], at, all) => all.findIndex(([other]) => other === name) === at) }, OF_THREAD);
    }
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
    if (events.length) into.append(fieldTable(this.report, events));
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
    const order = sorted(figures.summary.map((row, index) => [row, index]), this.sort, ([row], by) => value(row, by));
    const head = this.heads(columns, this.sort);
    const rows = order.slice(0, ROWS_MAX).map(([row, index]) => element("tr", { "aria-selected": index === this.chosen },
      element("td", {}, ...this.name(row.name).slice(0, 1), button(report.names[row.name], () => this.choose(index), { title: row.is_slice ? "Show the slowest" : "Go to the first" })),
      ...columns.slice(1).map(([name, , text]) => element("td", { text: row.is_slice || name === "count" ? text(row) : "" }))));
    const made = [element("table", { "aria-label": "Slices and instants by name" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows))];
    if (order.length > ROWS_MAX) made.push(element("p", { class: "quiet", text: `${counted(order.length - ROWS_MAX)} names more are not shown.` }));
    if (report.is_served) made.push(element("p", { class: "quiet", text: "Percentiles are within 1 %." }));
    return made;
  }

  // Returns the heads of columns, each with name and text. A click sorts the rows.
  heads(columns, sort) {
    return columns.map(([name, text]) => element("th", { "aria-sort": sort.by === name ? (sort.isUp ? "ascending" : "descending") : "none", scope: "col" },
      button(sort.by === name ? `${text} ${sort.isUp ? "▲" : "▼"}` : text, () => {
        Object.assign(sort, { by: name, isUp: sort.by === name ? !sort.isUp : name === "name" });
        this.show();
        document.getElementById(`sort-${name}`)?.focus();
      }, { id: `sort-${name}` })));
  }

  // Shows the slowest item of a row of the summary; for instants, goes to the first.
  choose(index) {
    this.chosen = index;
    this.by.name = undefined;
    const row = this.figures.summary[index];
    if (row.slowest.length) this.goTo(row.name, row.slowest[0]);
    else this.held(() => this.go.first(row.name, this.figures.begin));
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
    return [element("div", { class: "actions" }, select, button("Slowest", () => { this.only = row.name; this.open("slowest"); }, row.is_slice ? {} : { disabled: "" })), said, element("div", { class: "columns" }, ...pictures)];
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
    const cells = shown.map(() => (report.is_served ? [0, 1] : [0, 1, 2]).map(() => element("td", { class: "text line" })));
    const body = shown.map(([name, one], index) => element("tr", {},
      element("td", {}, ...this.name(name).slice(0, 1), button(report.names[name], () => this.goTo(name, one), { title: "Show it as Item" })),
      element("td", { text: duration(one[1]) }), element("td", { text: since(one[0]) }), element("td", { class: "text who", text: whoLabel(report, one[2]), title: whoLabel(report, one[2]) }), ...cells[index]));
    this.fill(shown, cells);
    const head = ["Name", "Duration", "Begin", "Thread", "Fields of the begin", "Fields of the end", ...(report.is_served ? [] : ["During it"])].map((text, index) => element("th", { text, scope: "col", class: index > 2 ? "text" : undefined }));
    return [
      element("div", { class: "actions" }, select),
      element("table", { "aria-label": "The slowest slices", class: "full" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)),
    ];
  }

  // Fills the cells of the slowest slices with the fields of their begins and ends, and the time of what happened during
  // them.
  async fill(shown, cells) {
    const { report } = this;
    const entries = shown.map(([name, [begin, long]]) => find(report, "thread", begin, long, name));
    // The thread of the begin is in a column of its own.
    const threadOf = (event) => event?.fields.find(([name]) => name === "vtid")?.[1];
    const isOther = (events, side) => side === 1 && threadOf(events[1]) !== threadOf(events[0]);
    // Another table can be shown by now.
    const write = (cell, text) => {
      cell.textContent = cell.title = text;
      return cell.isConnected;
    };
    for (const [index, entry] of entries.entries()) {
      const events = await (entry ? fieldsOf(report, entry).catch(() => []) : []);
      const texts = [0, 1].map((side) => fieldLine(report, events[side], isOther(events, side) ? [] : OF_THREAD));
      if (!texts.every((text, side) => write(cells[index][side], text))) return;
    }
    // A served page has what happened only for the item that is shown: each takes a request.
    if (report.is_served) return;
    for (const [index, entry] of entries.entries()) {
      const { items } = entry ? await (await this.meanwhile(entry)).of(entry) : { items: [] };
      const times = timeByName(report, items);
      const more = times.length > NAMES_SHOWN ? [`and ${plural(times.length - NAMES_SHOWN, "name")} more`] : [];
      const texts = times.slice(0, NAMES_SHOWN).map(([name, time]) => `${report.names[name]} ${duration(time)}`);
      if (!write(cells[index][2], [...texts, ...more].join("  "))) return;
    }
  }

  // Percentiles of the slices of a name, by the values of fields.
  byField() {
    const { report, figures, by } = this;
    const slices = figures.summary.filter((row) => row.is_slice);
    if (report.is_served) return [element("p", { class: "quiet", text: "The fields stay with the program that serves this page. `dormouse report` makes a page with these tables, and `dormouse stats --latency BEGIN..END --by FIELD` prints them." })];
    if (!slices.length || !report.field_names.length) return [element("p", { class: "quiet", text: "There are no slices with fields." })];
    const choice = (label, options, value, chosen) => {
      const made = element("select", { "aria-label": label, onchange: (event) => { chosen(event.target.value); this.show(); this.parts.view.querySelector(`[aria-label="${label}"]`)?.focus(); } }, ...options);
      made.value = value;
      return made;
    };
    const option = ([value, text]) => element("option", { value, text });
    const isKnown = (name) => name === ALL || slices.some((row) => row.name === name);
    const name = [by.name, figures.summary[this.chosen]?.name].find(isKnown) ?? slices[0].name;
    const { ofName, others } = this.fieldsOfName(name);
    const group = (label, names) => element("optgroup", { label }, ...names.map((field) => option([field, field])));
    const fields = (first, sets = []) => [option(["", first]), ...sets.map((set) => option([set, set])), group(name === ALL ? "of slices" : `of ${report.names[name]}`, ofName), ...(others.length ? [group("of other events", others)] : [])];
    const { hits, wanted } = this.go.search() ?? {};
    const only = wanted === undefined ? [] : [button("Only what the search finds", () => { by.isOnly = !by.isOnly; this.show(); }, { "aria-pressed": Boolean(by.isOnly) })];
    // Fields that were chosen for another name alone do not stay.
    if (by.chosenFor !== undefined && by.chosenFor !== name) [by.fields, by.chosenFor] = [[], undefined];
    const chosen = by.fields;
    // Some fields are wanted together.
    const wantedOfName = FIELDS_TOGETHER.filter((fields) => fields.every((field) => ofName.includes(field)));
    const sets = wantedOfName.filter((fields) => fields.length > 1).map((fields) => fields.join(", "));
    if (!chosen.length && wantedOfName.length && name !== ALL) {
      chosen.push(...wantedOfName[0]);
      by.chosenFor = name;
    }
    const choose = (index) => (field) => {
      by.chosenFor = undefined;
      chosen.splice(index, sets.includes(field) || !field ? FIELDS_CHOSEN : 1, ...(field ? field.split(", ") : []));
      // Slices of this name do not have it. Their fields may have been read since the lists were made.
      if (this.ownFields(name).length && this.fieldsOfName(name).others.includes(field)) by.name = ALL;
    };
    const fieldChoices = [...chosen, ""].slice(0, FIELDS_CHOSEN).flatMap((field, index) => [index ? "and" : "by", choice(["Field", "Second field", "Third field"][index], fields(index ? "no other field" : "a field …", index ? [] : sets), field, choose(index))]);
    const choices = element("div", { class: "actions" }, choice("Name", [[ALL, "all names"], ...slices.slice(0, ROWS_MAX).map((row) => [row.name, report.names[row.name]])].map(option), name, (value) => (by.name = Number(value))), ...fieldChoices, ...only);
    if (!chosen.length) return [choices, element("p", { class: "quiet", text: "Choose a field: each of its values has a row with the durations of the slices that have it." })];
    const { labels } = by;
    const label = chosen.map((field) => `{${field}}`).join(BETWEEN);
    if (labels?.label !== label) {
      this.read(label);
      return [choices, element("p", { class: "quiet", text: "The fields are being read …" })];
    }
    const is = by.isOnly && hits ? (at) => hits[at] === 1 : () => true;
    const { rows, all, left } = figuresByLabel(report, labels.made, name === ALL ? undefined : name, this.area ?? [0, report.span], is);
    const value = (row, by) => (by === "mean" ? row.total / row.count : row[by] ?? row.text.split(BETWEEN)[chosen.indexOf(by)]);
    const columns = [["count", "Count", counted], ...["total", "mean", "p50", "p90", "p99", "max"].map((key) => [key, key.startsWith("p") ? key : `${key[0].toUpperCase()}${key.slice(1)}`, duration])];
    const cells = (row) => columns.map(([name, , text]) => element("td", { text: row.count ? text(value(row, name)) : "" }));
    const search = (field, text) => (NO_FIELDS.includes(field) ? text : `${field}=${THREAD_IDS.includes(field) ? text.split(" ").pop() : text}`);
    const first = (row) => row.text.split(BETWEEN).map((text, index) => element("td", { class: "text" }, button(text, () => { by.isOnly = false; this.go.query(search(chosen[index], text)); }, { "aria-label": `Search for ${search(chosen[index], text)}`, title: "Search for it" })));
    const body = sorted(rows, by.sort, value).slice(0, ROWS_MAX).map((row) => element("tr", {}, ...first(row), ...cells(row)));
    const foot = element("tfoot", {}, element("tr", {}, element("td", { text: "all", colspan: chosen.length }), ...cells(all)));
    const heads = this.heads([...chosen.map((field) => [field, field]), ...columns], by.sort);
    heads.slice(0, chosen.length).forEach((head) => (head.className = "text"));
    const made = [choices, element("table", { "aria-label": "Durations by the values of fields" }, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body), foot)];
    if (chosen.includes("file")) made.push(element("p", { class: "quiet", text: "Reads and writes are of the file that their descriptor was, as far as it was opened in the report. The time that opening and closing took is not in it." }));
    if (rows.length > ROWS_MAX) made.push(element("p", { class: "quiet", text: `${counted(rows.length - ROWS_MAX)} values more are not shown: the last in this order.` }));
    if (left) made.push(element("p", { class: "quiet", text: `${plural(left, "slice")} are not in it: they lack the field, or the page lacks their fields.` }));
    return made;
  }

  // Returns what slices of a name can be shown by, and what only other items have.
  fieldsOfName(name) {
    const { report } = this;
    const own = this.ownFields(name);
    // Openings are not accesses to a file.
    const hasFiles = report.keys.some((key) => key.includes("fd"));
    const isOfFiles = hasFiles && (name === ALL || (own.includes("fd") && !own.includes("path")));
    const ofName = [...NO_FIELDS.filter((one) => one !== "file" || isOfFiles), ...own];
    return { ofName, others: [...report.field_names, ...(hasFiles ? ["file"] : [])].filter((field) => !ofName.includes(field)) };
  }

  // Returns the names of the fields of slices of a name, as far as they are read.
  ownFields(name) {
    this.fieldsOfNames ??= new Map();
    if (!this.fieldsOfNames.has(name)) {
      this.fieldsOfNames.set(name, []);
      this.readOwnFields(name);
    }
    return this.fieldsOfNames.get(name);
  }

  // Reads fields of some slices of a name, from all of the time.
  async readOwnFields(name) {
    const { report } = this;
    const all = [];
    eachWithin(report, report.rows, [0, report.span], (at, row) => row.is_slices && (name === ALL || report.name[at] === name) && report.count[at] === 1 && report.fields[at] > 0 && all.push({ at, row }));
    const found = new Set();
    const step = Math.max(1, all.length / SAMPLES);
    for (let index = 0; index < all.length; index += step) {
      const events = await fieldsOf(report, all[Math.floor(index)]);
      for (const { fields } of events) for (const [field] of fields) found.add(field);
    }
    this.fieldsOfNames.set(name, [...found]);
    if (this.tab === "fields" && !document.activeElement?.matches("#view select")) this.show();
  }

  // Reads the labels of all items for the table by field.
  async read(label) {
    const { by } = this;
    if (by.reading?.label === label) return;
    if (by.reading) by.reading.isStopped = true;
    const made = (by.reading = new Labels(this.report, label));
    made.label = label;
    if (!(await made.run())) return;
    by.labels = { label, made };
    by.reading = undefined;
    if (this.tab === "fields") this.show();
  }

  // A search has found something else.
  searched() {
    if (RESTRICTED.includes(this.tab)) this.show();
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
