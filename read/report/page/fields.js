// What fields say about entries: which of them a search finds, and their labels.
import { counted, element, inUnit } from "./text.js";
import { eachFields, eachMerged, entryOf } from "./data.js";
import { firstFrom, processLabel, threadLabel } from "./rows.js";

// Separator of names and values in the fields of an item.
const END = "\0";

const CONDITION = /^([\p{L}\p{N}_.]+)(>=|<=|!=|=|>|<)(.*)$/u;

// Returns the conditions of a search, each with field, operator and value; undefined if it is a text. Without an operator
// in each of its words, all of it is one condition, whose value contains spaces.
function conditionsOf(wanted) {
  const words = wanted.split(/\s+/).map((word) => word.match(CONDITION));
  const found = words.every(Boolean) ? words : [wanted.match(CONDITION)];
  return found[0] ? found.map(([, field, operator, value]) => ({ field, operator, value })) : undefined;
}

const numberOf = (text) => (/^[-+.\de]+$/.test(text) ? Number(text) : NaN);

// Whether a value meets a condition. Values are compared as numbers by <, <=, > and >=, and otherwise as texts.
function isMet(is, { operator, value }) {
  if (operator === "=") return is === value;
  if (operator === "!=") return is !== value;
  const [a, b] = [numberOf(is), numberOf(value)];
  return { ">=": a >= b, "<=": a <= b, ">": a > b, "<": a < b }[operator];
}

// Whether an item meets all conditions, by the fields of any of its events.
function meets(item, conditions) {
  const events = item.split("\u0001").map((event) => event.split(END));
  return conditions.every((condition) => events.some((fields) => {
    for (let at = 1; at + 1 < fields.length; at += 2) if (fields[at] === condition.field && isMet(fields[at + 1], condition)) return true;
    return false;
  }));
}

// Returns a text as hexadecimal bytes.
export const hexOf = (text) => [...new TextEncoder().encode(text)].map((byte) => byte.toString(16).padStart(2, "0")).join("");

// A search, and what it finds.
export class Search {
  constructor(report, wanted) {
    this.report = report;
    this.wanted = wanted.trim().toLowerCase();
    this.isStopped = false;
    const has = (text) => text.toLowerCase().includes(this.wanted);
    this.names = Uint8Array.from(report.names, has);
    // Processes by name and pid, threads by tid.
    this.threads = Uint8Array.from(report.threads, (thread, number) => has(threadLabel(report, number)) || has(processLabel(report, thread.process)));
    // By number of fields. Those of a served page all have the number 1.
    this.items = new Uint8Array(report.chunks.length * report.chunk_items + 2);
    this.hits = new Uint8Array(0);
    // What the program of a served page finds: number of items, and begins by row.
    this.found = 0;
    this.begins = [];
  }

  // Asks the program of a served page for the items of a grouping that have a value. `request`: sends a request.
  async ask(by, request) {
    const { report } = this;
    const { rows, found } = await request({ text: hexOf(this.wanted), cpu: Number(by === "cpu") }, "find");
    this.found = found;
    this.begins = rows.map(({ levels: [{ from, to }] }) => report.begin.slice(from, to));
    return !this.isStopped;
  }

  // Searches the values of fields. Conditions such as `endpoint=/cart status>=500` find items that meet all of them.
  // Returns whether it was not stopped.
  async run(by, request) {
    const { report } = this;
    if (report.is_served) return this.ask(by, request);
    const conditions = conditionsOf(this.wanted);
    return eachFields(report, (number, item) => {
      const text = item.toLowerCase();
      if (text.includes(this.wanted) ? isInValue(text, this.wanted) : conditions && meets(text, conditions)) this.items[number] = 1;
    }, () => this.isStopped);
  }

  // Marks the entries of rows that are found. An entry that stands for several items is found if one of them is.
  mark(rows) {
    const { report } = this;
    if (this.hits.length < report.begin.length) this.hits = new Uint8Array(report.begin.length);
    const { hits, names, threads, items } = this;
    const { name, fields, other } = report;
    for (const row of rows) {
      const { from, to } = row.levels[0];
      const ofRow = row.by === "thread" ? threads[row.of] : 0;
      for (let at = from; at < to; at++) hits[at] = ofRow || names[name[at]] || items[fields[at]];
      // Each begin is within an entry, which can stand for several items.
      for (const begin of this.begins[row.index] ?? []) {
        const at = firstFrom(report, row.levels[0], begin + 1) - 1;
        if (at >= from) hits[at] = 1;
      }
      if (row.by !== "thread") for (let at = from; at < to; at++) if (other[at] > 0 && threads[other[at] - 1]) hits[at] = 1;
      eachMerged(report, row, (entry, from, to) => {
        let hit = 0;
        for (let at = from; at < to && !hit; at++) hit = hits[at];
        hits[entry] = hit;
      });
    }
  }

  // Returns the number of items that are found in rows of a grouping.
  count(by) {
    const { report } = this;
    // Tables count each item of a name, also those that the page merges with neighbours.
    const named = () => report.summary.reduce((sum, row) => sum + this.names[row.name] * row.count, 0);
    if (report.is_served || (!this.threads.includes(1) && !this.items.includes(1))) return named() + this.found;
    let sum = 0;
    for (const row of report.rows.filter((row) => row.by === by)) {
      const { from, to } = row.levels[0];
      for (let at = from; at < to; at++) sum += this.hits[at] * report.count[at];
    }
    return sum;
  }
}

// Returns a table of the fields of an item, those of the begin and the end of a slice side by side. `most`: maximum number
// of rows.
export function fieldTable(report, events, most = Infinity) {
  const ends = events.slice(0, 2);
  const names = [...new Set(ends.flatMap(({ fields }) => fields.map(([name]) => name)))];
  const values = ends.map(({ fields }) => new Map(fields.slice().reverse()));
  const value = (of, name) => {
    const exact = of.get(name) ?? "";
    const readable = inUnit(name, exact) ?? threadNamed(report, name, exact);
    return readable === undefined ? exact : `${exact} (${readable})`;
  };
  const head = element("tr", {}, element("th", {}), ...ends.map(({ name }) => element("th", { text: name, scope: "col" })));
  const rows = names.slice(0, most).map((name) => element("tr", {}, element("th", { text: name, scope: "row" }), ...values.map((of) => element("td", { text: value(of, name) }))));
  const more = names.length - rows.length;
  const notes = events.slice(2).map(({ name }) => name);
  if (more > 0) notes.push(`and ${counted(more)} more fields`);
  return element("div", { class: "fields" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)), ...notes.map((text) => element("p", { class: "quiet", text })));
}

// Names of contexts that say of which thread an event is. A line has them last, since the thread is said elsewhere.
export const OF_THREAD = ["vpid", "vtid"];

// Fields that hold thread ids.
export const THREAD_IDS = ["vtid", "tid", "owner"];

// Returns the name of the thread that a field names by its id; undefined if it has none, or for another field.
function threadNamed(report, field, value) {
  if (!THREAD_IDS.includes(field)) return undefined;
  report.threadNames ??= new Map(report.threads.flatMap(({ tid, name, process }) => {
    const known = name ?? (report.processes[process]?.pid === tid ? report.processes[process].name : undefined);
    return tid !== null && known ? [[String(tid), known]] : [];
  }));
  return report.threadNames.get(value);
}

// Returns the fields of an event in one line, without those of these names.
export function fieldLine(report, event, without = []) {
  if (!event) return "";
  const ordered = event.fields.filter(([name]) => !without.includes(name)).sort(([a], [b]) => OF_THREAD.includes(a) - OF_THREAD.includes(b));
  const text = ([name, value]) => {
    const thread = threadNamed(report, name, value);
    return `${name}=${value}${thread === undefined ? "" : ` (${thread})`}`;
  };
  return ordered.map(text).join("  ") || event.name;
}

// Whether a text is found in a value. The fields of an event are its name, then names and values in turn.
function isInValue(item, wanted) {
  for (const event of item.split("\u0001")) {
    if (event.split(END).some((part, index) => index > 0 && index % 2 === 0 && part.includes(wanted))) return true;
  }
  return false;
}

// Returns the parts of a label: texts, and in odd places names of fields.
const partsOf = (label) => label.split(/\{([^{}]*)\}/);

// Returns the value of each field of an item. The first value counts.
export function knownFields(item) {
  const known = new Map();
  for (const event of item.split("\u0001")) {
    const fields = event.split(END);
    for (let at = 1; at + 1 < fields.length; at += 2) if (!known.has(fields[at])) known.set(fields[at], fields[at + 1]);
  }
  return known;
}

// Names that stand for something else than a field, if no field is called so: the thread of the first event, the name of
// the item, and the file that its descriptor was then.
export const NO_FIELDS = ["thread", "name", "file"];

// Files by descriptor and time, as far as their opening is in the report.
class Files {
  constructor(report) {
    this.report = report;
    // Begin and path of each opening, by process and descriptor.
    this.opened = new Map();
  }

  async read(isStopped) {
    const { report, opened } = this;
    await eachFields(report, (number, item) => {
      const entry = entryOf(report, number);
      if (!entry?.row.is_slices || !report.keys[report.name[entry.at]]?.includes("fd")) return;
      const known = knownFields(item);
      const key = this.keyOf(entry, known.get("fd"));
      if (!opened.has(key)) opened.set(key, []);
      opened.get(key).push([report.begin[entry.at], report.begin[entry.at] + report.duration[entry.at], known.get("path")]);
    }, isStopped);
    for (const all of opened.values()) all.sort(([a], [b]) => a - b);
  }

  keyOf({ row }, descriptor) {
    return `${this.report.threads[row.of].process} ${descriptor}`;
  }

  // Returns the path of the file that an item's descriptor was; undefined if it is not known.
  of(entry, known) {
    const all = known.has("fd") && this.opened.get(this.keyOf(entry, known.get("fd")));
    if (!all) return undefined;
    const at = this.report.begin[entry.at];
    let [low, high] = [0, all.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (all[middle][0] <= at) low = middle + 1;
      else high = middle;
    }
    const [begin, end, path] = all[low - 1] ?? [];
    // The opening itself is not an access to the file.
    return at <= end && begin !== at ? path : undefined;
  }
}

// Returns the label of an item, or undefined if it lacks one of the fields, or there are none. Ids of threads are given
// with their name.
function labelOf(report, parts, item, number, files) {
  const known = knownFields(item);
  const value = (field) => {
    if (known.has(field) || !NO_FIELDS.includes(field)) return [field, known.get(field)];
    const entry = entryOf(report, number);
    return { thread: () => ["vtid", known.get("vtid")], name: () => ["", entry && report.names[report.name[entry.at]]], file: () => ["", entry && files.of(entry, known)] }[field]();
  };
  const named = (part) => {
    const [field, found] = value(part);
    const thread = found && threadNamed(report, field, found);
    return thread ? `${thread} ${found}` : found;
  };
  const made = parts.map((part, index) => (index % 2 ? named(part) : part));
  return made.length > 1 && !made.includes(undefined) ? made.join("") : undefined;
}

// Labels of items by their fields.
export class Labels {
  // `label`: text with names of fields in braces.
  constructor(report, label) {
    this.report = report;
    this.parts = partsOf(label);
    this.isStopped = false;
    // Texts of labels, and the number of each item's label; 0 for none.
    this.texts = [undefined];
    this.ofItem = new Uint32Array(report.chunks.length * report.chunk_items + 1);
  }

  // Returns whether it was not stopped.
  async run() {
    const numbers = new Map();
    const files = new Files(this.report);
    if (this.parts.some((part, index) => index % 2 && part === "file")) await files.read(() => this.isStopped);
    return eachFields(this.report, (number, item) => {
      const text = labelOf(this.report, this.parts, item, number, files);
      if (text === undefined) return;
      let known = numbers.get(text);
      if (known === undefined) {
        known = this.texts.length;
        numbers.set(text, known);
        this.texts.push(text);
      }
      this.ofItem[number] = known;
    }, () => this.isStopped);
  }

  // Returns the time of the items of each label.
  totalsOfItems() {
    const { report } = this;
    const totals = new Float64Array(this.texts.length);
    for (const row of report.rows.filter((row) => row.by === "thread")) {
      const { from, to } = row.levels[0];
      for (let at = from; at < to; at++) totals[this.ofItem[report.fields[at]]] += report.duration[at] + 1;
    }
    return totals;
  }

  // Gives each entry its label; one that stands for several items has that of the longest.
  spread() {
    const { report } = this;
    this.ofEntry = new Uint32Array(report.begin.length);
    this.totals = this.totalsOfItems();
    for (const row of report.rows) {
      const { from, to } = row.levels[0];
      for (let at = from; at < to; at++) this.ofEntry[at] = this.ofItem[report.fields[at]];
      eachMerged(report, row, (entry, from, to) => {
        let longest = from;
        for (let at = from; at < to; at++) if (report.duration[at] > report.duration[longest]) longest = at;
        this.ofEntry[entry] = this.ofEntry[longest];
      });
    }
  }
}
