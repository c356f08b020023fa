// What happened during an item: the items of each thread that worked on it, while the thread did.
import { eachFields, entryOf, fieldsOf } from "./data.js";
import { hexOf, knownFields } from "./fields.js";
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
    // Numbers of items by the values of a key.
    this.items = this.keys.map(() => new Map());
  }

  // Reads the fields of all items.
  async read() {
    const { report, keys } = this;
    if (!keys.length) return;
    const marks = keys.map(({ fields }) => fields.map((field) => `\0${field}\0`));
    await eachFields(report, (number, item) => {
      // Most items have none of the fields, and are not taken apart.
      if (!marks.some((all) => all.every((mark) => item.includes(mark)))) return;
      const known = knownFields(item);
      keys.forEach(({ fields }, index) => {
        if (!fields.every((field) => known.has(field))) return;
        const value = fields.map((field) => known.get(field)).join("\0");
        const items = this.items[index].get(value);
        if (items) items.push(number);
        else this.items[index].set(value, [number]);
      });
    }, () => false);
  }

  // Returns items with the values of an item, and the fields that they have in common. The item can be among them.
  async of(entry) {
    const { report } = this;
    const known = new Map((await fieldsOf(report, entry)).flatMap(({ fields }) => fields).reverse());
    const found = [];
    const common = new Set();
    for (const [index, { fields, isOfProcess }] of this.keys.entries()) {
      if (!fields.every((field) => known.has(field))) continue;
      const values = fields.map((field) => known.get(field));
      const entries = report.is_served ? await this.asked(fields.map((field, at) => `${field}=${values[at]}`).join(" ")) : (this.items[index].get(values.join("\0")) ?? []).flatMap((number) => entryOf(report, number) ?? []);
      found.push(...entries.filter((one) => !isOfProcess || processOf(report, one) === processOf(report, entry)));
      for (const field of fields) common.add(field);
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
          // What begins as it ends is not part of it: the wait for a lock ends where the hold begins.
          const begins = row.is_slices || (lane && report.begin[lane.at] === report.begin[at]);
          if (begins && report.begin[at] === to && to > from) continue;
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
