// What happened during an item: the items of each thread that worked on it, while the thread did.
import { eachFields, fieldsOf } from "./data.js";
import { hexOf } from "./fields.js";
import { firstFrom, isLane } from "./rows.js";

// Returns the fields of a key.
const fieldsOfKey = (parts) => parts.filter((part) => !["pid", "tid", "cpu"].includes(part)).map((part) => part.replace(/^fields[.]/, ""));

const endOf = (report, at) => report.begin[at] + report.duration[at];

const processOf = (report, { row }) => report.threads[row.of]?.process;

// Items with the same values of the fields that begins and ends are paired by.
export class SameKey {
  // `request`: sends a request to the program that serves the page.
  constructor(report, request) {
    this.report = report;
    this.request = request;
    // Fields of each key, and whether it is one of a process. What is paired by its thread needs none.
    const known = new Map(report.keys.filter((parts) => !parts.includes("tid")).map((parts) => [parts.join(), parts]));
    this.keys = [...known.values()].map((parts) => ({ fields: fieldsOfKey(parts), isOfProcess: parts.includes("pid") })).filter(({ fields }) => fields.length);
    // The values of an item, by number of the item; and entries by value.
    this.values = this.keys.map(() => new Map());
    this.entries = this.keys.map(() => new Map());
  }

  // Reads the fields of all items.
  async read() {
    const { report, keys } = this;
    if (!keys.length) return;
    await eachFields(report, (number, item) => {
      const known = new Map();
      for (const event of item.split("\u0001")) {
        const fields = event.split("\0");
        for (let at = 1; at + 1 < fields.length; at += 2) if (!known.has(fields[at])) known.set(fields[at], fields[at + 1]);
      }
      keys.forEach(({ fields }, index) => {
        if (fields.every((field) => known.has(field))) this.values[index].set(number, fields.map((field) => known.get(field)).join("\0"));
      });
    }, () => false);
    for (const row of report.rows.filter((row) => row.by === "thread")) {
      for (let at = row.levels[0].from; at < row.levels[0].to; at++) {
        this.values.forEach((values, index) => {
          const value = report.count[at] === 1 ? values.get(report.fields[at]) : undefined;
          if (value === undefined) return;
          const entries = this.entries[index];
          if (entries.has(value)) entries.get(value).push({ at, row });
          else entries.set(value, [{ at, row }]);
        });
      }
    }
  }

  // Returns items with the values of an item, and the fields that they have in common. The item can be among them.
  async of(entry) {
    const { report } = this;
    const known = report.is_served ? new Map((await fieldsOf(report, entry)).flatMap(({ fields }) => fields).reverse()) : undefined;
    const found = [];
    const common = new Set();
    for (const [index, { fields, isOfProcess }] of this.keys.entries()) {
      let entries;
      if (!known) {
        const value = this.values[index].get(report.fields[entry.at]);
        entries = value === undefined ? [] : this.entries[index].get(value) ?? [];
      } else entries = fields.every((field) => known.has(field)) ? await this.asked(fields.map((field) => `${field}=${known.get(field)}`).join(" ")) : [];
      for (const field of entries.length ? fields : []) common.add(field);
      found.push(...entries.filter((one) => !isOfProcess || processOf(report, one) === processOf(report, entry)));
    }
    return { entries: found, fields: [...common] };
  }

  // Asks the program that serves the page for the items that meet conditions.
  async asked(conditions) {
    const { rows } = await this.request({ text: hexOf(conditions), cpu: 0 }, "find");
    return rows.flatMap((row) => {
      const [{ from, to }] = row.levels;
      return row.by === "thread" ? Array.from({ length: to - from }, (_, index) => ({ at: from + index, row })) : [];
    });
  }
}

// Returns slices on lanes by the key that they share with the instants of their begin and end.
function lanesOf(report, rows) {
  const lanes = new Map();
  for (const row of rows) {
    if (!row.is_slices || !isLane(report, row.of)) continue;
    for (let at = row.levels[0].from; at < row.levels[0].to; at++) if (report.key[at] > 0) lanes.set(report.key[at], { at, row });
  }
  return lanes;
}

// Finds what happened during items.
export class During {
  // `rows`: those in which the items are, among others those of CPUs.
  constructor(report, sameKey, rows) {
    this.report = report;
    this.sameKey = sameKey;
    this.rows = rows.filter((row) => row.by === "thread");
    this.lanes = lanesOf(report, this.rows);
  }

  // Returns the thread on which an item began; undefined if it is not known.
  threadOf({ at, row }) {
    const { report } = this;
    if (!isLane(report, row.of)) return row.of;
    const [begin, key] = [report.begin[at], report.key[at]];
    return this.rows.find(({ is_slices, levels: [level] }) => {
      if (is_slices) return false;
      for (let found = firstFrom(report, level, begin); found < level.to && report.begin[found] === begin; found++) if (report.key[found] === key) return true;
      return false;
    })?.of;
  }

  // Returns items in the order of time, each with its depth; the threads on which they are; and the fields that they have
  // in common with the item, if they are found by these.
  async of(entry) {
    const { report } = this;
    const { entries, fields } = await this.sameKey.of(entry);
    // Entries of a response stand for the same items as others.
    const idOf = ({ at, row }) => (report.is_served ? [row.of, row.is_slices, report.begin[at], report.duration[at], report.name[at]].join() : at);
    const [begin, end] = [report.begin[entry.at], endOf(report, entry.at)];
    const found = new Map();
    const threads = new Set();
    const put = (one) => idOf(one) !== idOf(entry) && found.set(idOf(one), one);
    const work = (thread, from, to) => {
      threads.add(thread);
      for (const row of this.rows) {
        if (row.of !== thread || isLane(report, row.of)) continue;
        const [level] = row.levels;
        for (let at = firstFrom(report, level, from); at < level.to && report.begin[at] <= to; at++) {
          const lane = row.is_slices || report.key[at] === 0 ? undefined : this.lanes.get(report.key[at]);
          // The begin of a slice on a lane is shown as the slice, and its end is part of it.
          if (!lane && !(row.is_slices && endOf(report, at) > to)) put({ at, row });
          if (!lane) continue;
          if (report.begin[lane.at] === report.begin[at]) put(lane);
          else if (report.begin[lane.at] < from && idOf(lane) !== idOf(entry)) put({ at, row });
        }
      }
    };
    const during = (one) => {
      if (!isLane(report, one.row.of)) {
        if (one.row.is_slices) work(one.row.of, report.begin[one.at], endOf(report, one.at));
        return;
      }
      // A task can leave its thread to others; what is paired by its thread cannot.
      const first = this.threadOf(one);
      if (first !== undefined && report.keys[report.name[one.at]]?.includes("tid")) work(first, report.begin[one.at], endOf(report, one.at));
    };
    during(entry);
    for (const one of entries) {
      if (report.begin[one.at] < begin || endOf(report, one.at) > end) continue;
      if (one.row.is_slices || !this.lanes.has(report.key[one.at])) put(one);
      during(one);
    }
    const items = [...found.values()].sort((a, b) => report.begin[a.at] - report.begin[b.at] || report.duration[b.at] - report.duration[a.at]);
    const open = [];
    for (const one of items) {
      while (open.length && open[open.length - 1] <= report.begin[one.at]) open.pop();
      one.depth = open.filter((end) => end >= endOf(report, one.at)).length;
      if (one.row.is_slices) {
        open.push(endOf(report, one.at));
        open.sort((a, b) => b - a);
      }
    }
    return { items, threads: [...threads], fields };
  }
}

// Returns the time of each name of slices among items, the longest first.
export function timeByName(report, items) {
  const times = new Map();
  for (const { at, row } of items) if (row.is_slices) times.set(report.name[at], (times.get(report.name[at]) ?? 0) + report.duration[at]);
  return [...times].sort(([, a], [, b]) => b - a);
}
