// Rows, their positions, and the entries in them at a time.
import { counted, plural } from "./text.js";

export const ROW = 18;
export const ROW_OF_INSTANTS = 13;
export const HEADER = 22;
const COUNTER = 40;
const GAP = 5;
// Between stacks of different threads on a CPU.
const STACK_GAP = 4;

export function processLabel(report, number) {
  const { name, pid } = report.processes[number] ?? {};
  return `${name || "process"}${pid === null || pid === undefined ? "" : ` ${pid}`}`;
}

export function threadLabel(report, number) {
  const thread = report.threads[number];
  if (!thread) return "thread not known";
  const { name, pid } = report.processes[thread.process] ?? {};
  const known = thread.name || (thread.tid === pid && name) || "thread";
  return thread.label ?? (thread.tid === null ? "thread not known" : `${known} ${thread.tid}`);
}

// Whether it is a lane: slices that are matched by a key, not a thread.
export const isLane = (report, number) => typeof report.threads[number]?.label === "string";

// Returns the label of a thread and its process.
export function whoLabel(report, number) {
  const thread = report.threads[number];
  if (!thread) return "not known";
  const process = report.processes[thread.process];
  const label = processLabel(report, thread.process);
  if (thread.label) return `${label}, ${thread.label}`;
  return thread.tid === null || thread.tid === process?.pid ? label : `${label}, ${threadLabel(report, number)}`;
}

export function cpuLabel(report, number) {
  const cpu = report.cpus[number];
  return cpu === null || cpu === undefined ? "CPU not known" : `CPU ${counted(cpu)}`;
}

function groupBy(list, keyOf) {
  const groups = new Map();
  for (const one of list) {
    const key = keyOf(one);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(one);
  }
  return groups;
}

const first = (report, rows) => Math.min(...rows.map((row) => report.begin[row.levels[0].from]));

// Returns the work of each thread: its share of the time of outermost slices, and its share of the items. That of lanes is
// 0: their slices can be of any thread.
function workOf(report) {
  if (report.work) return report.work;
  const [times, counts] = [0, 1].map(() => new Float64Array(report.threads.length));
  for (const { by, of, depth, is_slices, levels } of report.rows) {
    if (by !== "thread" || isLane(report, of)) continue;
    for (let at = levels[0].from; at < levels[0].to; at++) {
      if (is_slices && depth === 0) times[of] += report.duration[at];
      counts[of] += report.count[at];
    }
  }
  const [time, count] = [times, counts].map((all) => Math.max(1, all.reduce((sum, one) => sum + one, 0)));
  report.work = report.threads.map((_, thread) => times[thread] / time + counts[thread] / count);
  return report.work;
}

// Returns bands from top to bottom: headers of processes, then threads, or CPUs, or labels, with their rows. `by`: the
// grouping; `isByBegin`: whether processes and threads are in the order of their begins, not of their work; `closed`:
// processes whose threads are hidden; `scale`: factor for the height of rows.
export function layout(report, { by, isByBegin, labels }, closed, scale) {
  const bands = [];
  let y = 0;
  const put = (band, rows) => {
    const placed = [];
    let at = y + 2;
    // Instants are drawn above the slices of their thread.
    const ordered = [...rows].sort((a, b) => a.is_slices - b.is_slices || a.lane - b.lane || a.depth - b.depth);
    let lane = 0;
    for (const row of ordered) {
      if (by !== "thread" && row.lane !== lane) at += STACK_GAP;
      lane = row.lane;
      const height = Math.round((row.is_slices ? ROW : ROW_OF_INSTANTS) * scale);
      placed.push({ row, y: at, height });
      at += height;
    }
    const ends = rows.map(({ levels: [{ to }] }) => report.begin[to - 1] + report.duration[to - 1]);
    bands.push({ ...band, y, height: at + GAP - y, rows: placed, begin: first(report, rows), end: Math.max(...ends) });
    y = at + GAP;
  };
  const wanted = report.rows.filter((row) => row.by === by && row.levels[0].to > row.levels[0].from);
  const of = groupBy(wanted, (row) => row.of);
  if (by === "label") {
    for (const [label, rows] of of) put({ label: labels.texts[label] }, rows);
    const left = [[labels.labelsLeft, "label"], [labels.slicesLeft, "slice"]].filter(([count]) => count > 0).map(([count, what]) => plural(count, what));
    if (left.length) bands.push({ label: `and ${left.join(", ")} more`, y, height: HEADER, rows: [] });
    if (left.length) y += HEADER;
    return { bands, height: y };
  }
  if (by === "cpu") {
    const known = [...of].sort(([a], [b]) => (report.cpus[a] ?? Infinity) - (report.cpus[b] ?? Infinity));
    for (const [cpu, rows] of known) put({ label: cpuLabel(report, cpu), cpu }, rows);
    return { bands, height: y };
  }
  const counters = (process) => report.counters.forEach((counter, index) => {
    if (counter.process !== process) return;
    bands.push({ label: counter.name, isNested: true, counter: index, y, height: COUNTER + GAP, rows: [] });
    y += COUNTER + GAP;
  });
  const processes = groupBy([...of], ([thread]) => report.threads[thread].process);
  const work = workOf(report);
  const begin = (threads) => Math.min(...threads.map(([, rows]) => first(report, rows)));
  const workIn = (threads) => threads.reduce((sum, [thread]) => sum + work[thread], 0);
  const known = [...processes].map(([process, threads]) => [process, threads, begin(threads), workIn(threads)]);
  const inOrder = known.sort(([, , a, workA], [, , b, workB]) => (isByBegin ? 0 : workB - workA) || a - b);
  for (const [process, threads] of inOrder) {
    const label = processLabel(report, process);
    threads.sort(([a, rowsOfA], [b, rowsOfB]) => isLane(report, a) - isLane(report, b) || (isByBegin ? 0 : work[b] - work[a]) || first(report, rowsOfA) - first(report, rowsOfB));
    const count = threads.filter(([thread]) => !isLane(report, thread)).length;
    // A process with one thread has no header of its own.
    if (count === 1) {
      threads.forEach(([thread, rows], index) => put(index ? { label: threadLabel(report, thread), isNested: true } : { label, isProcess: true }, rows));
      counters(process);
      continue;
    }
    const isClosed = closed.has(process);
    bands.push({ label: count ? `${label} (${counted(count)} threads)` : label, isProcess: true, process, isClosed, y, height: HEADER, rows: [] });
    y += HEADER;
    if (isClosed) continue;
    for (const [thread, rows] of threads) put({ label: threadLabel(report, thread), isNested: true }, rows);
    counters(process);
  }
  return { bands, height: y };
}

// Returns the points of a counter: those of the fetched part of the time, if there is one.
export const pointsOf = (report, counter) => (report.part?.counters?.[counter] ?? report.counters[counter]).points;

// Returns the index of the last point up to a time; -1 if there is none.
export function pointAt(points, time) {
  let low = 0;
  let high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= time) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

// Returns the level of a row that is just finer than this resolution.
export function levelOf(row, resolution) {
  let found = row.levels[0];
  for (const level of row.levels) {
    if (level.resolution <= resolution) found = level;
  }
  return found;
}

// Returns the first entry between two positions that ends after this time; `to` if there is none. Entries of a row do
// not overlap.
export function firstAfter(report, from, to, time) {
  let low = from;
  let high = to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (report.begin[middle] + report.duration[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Returns the first entry of a row that begins at a time or later.
export function firstFrom(report, { from, to }, time) {
  let low = from;
  let high = to;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (report.begin[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Returns rows that are complete between two times: those that are shown, or those of the page.
function rowsAround(report, begin, end) {
  const { part } = report;
  return !part || (part.begin <= begin && part.end >= end) ? report.shown : report.rows;
}

const bases = (rows, by) => rows.filter((row) => row.by === by);

// Returns the entry before (`step` -1) or after (1) a time and position for which `is` is true.
export function neighbour(report, by, time, position, step, is) {
  const rows = rowsAround(report, time, time);
  const found = neighbourIn(rows, report, by, time, position, step, is);
  return found || rows === report.rows ? found : neighbourIn(report.rows, report, by, time, position, step, is);
}

function neighbourIn(rows, report, by, time, position, step, is) {
  let best = -1;
  let bestRow;
  const isBefore = (a, b) => report.begin[a] < report.begin[b] || (report.begin[a] === report.begin[b] && a < b);
  for (const row of bases(rows, by)) {
    const { from, to } = row.levels[0];
    // Entries of a row are sorted by begin, so the nearest match is the first one.
    let low = from;
    let high = to;
    while (low < high) {
      const middle = (low + high) >> 1;
      const begin = report.begin[middle];
      if (begin < time || (begin === time && middle < position)) low = middle + 1;
      else high = middle;
    }
    let at = step > 0 ? (low < to && low === position ? low + 1 : low) : low - 1;
    while (at >= from && at < to && !is(at)) at += step;
    if (at < from || at >= to) continue;
    if (best < 0 || (step > 0 ? isBefore(at, best) : isBefore(best, at))) {
      best = at;
      bestRow = row;
    }
  }
  return best < 0 ? undefined : { at: best, row: bestRow };
}

// Returns the entry of a grouping with this begin, duration and name.
export function find(report, by, begin, duration, name) {
  const rows = report.shown === report.rows ? report.rows : [...report.shown, ...report.rows];
  for (const row of bases(rows, by)) {
    const { from, to } = row.levels[0];
    let low = from;
    let high = to;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (report.begin[middle] < begin) low = middle + 1;
      else high = middle;
    }
    for (; low < to && report.begin[low] === begin; low++) {
      if (report.duration[low] === duration && report.name[low] === name) return { at: low, row };
    }
  }
  return undefined;
}

// Returns the rows of slices of the same thread, lane or stack, the deepest first.
const slicesBeside = (rows, row) =>
  rows.filter((other) => other.by === row.by && other.of === row.of && (other.lane === row.lane || (row.by === "cpu" && !row.is_slices)) && other.is_slices).sort((a, b) => b.depth - a.depth);

// Returns the entry that encloses an entry.
export function parentOf(report, { at, row }) {
  const end = report.begin[at] + report.duration[at];
  for (const above of slicesBeside(rowsAround(report, report.begin[at], end), row)) {
    if (row.is_slices && above.depth >= row.depth) continue;
    const { from, to } = above.levels[0];
    const found = firstAfter(report, from, to, end);
    const isOfThread = row.by === "thread" || report.other[found] === report.other[at];
    if (found < to && isOfThread && report.begin[found] <= report.begin[at] && report.count[found] === 1) return { at: found, row: above };
  }
  return undefined;
}

// Returns the first entries that are nested in an entry, and their number, single or merged.
export function childrenOf(report, { at, row }, most) {
  const children = [];
  let count = 0;
  const begin = report.begin[at];
  const end = begin + report.duration[at];
  const below = row.is_slices && slicesBeside(rowsAround(report, begin, end), row).find((other) => other.depth === row.depth + 1);
  if (!below) return { children, count };
  const { from, to } = below.levels[0];
  for (let child = firstAfter(report, from, to, begin); child < to && report.begin[child] + report.duration[child] <= end; child++) {
    if (report.begin[child] < begin) continue;
    count += report.count[child];
    children.push({ at: child, row: below });
  }
  children.sort((a, b) => report.duration[b.at] - report.duration[a.at]);
  return { children: children.slice(0, most), count };
}

// Returns entries of rows with the same key, in the order of time.
export function sameKey(rows, report, by, key, most) {
  const found = [];
  if (key === 0) return found;
  for (const row of bases(rows, by)) {
    const { from, to } = row.levels[0];
    for (let at = from; at < to; at++) {
      if (report.key[at] === key) found.push({ at, row });
    }
  }
  found.sort((a, b) => report.begin[a.at] - report.begin[b.at]);
  return found.slice(0, most);
}
