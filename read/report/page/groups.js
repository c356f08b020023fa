// Rows for labels: the items of each label, whichever thread they are of.
import { COLUMNS } from "./data.js";

// Maximum numbers of labels that have rows, and of rows of a label. Those with the most time have rows.
const LABELS_MAX = 60;
const DEPTH_MAX = 32;
// Rows with at most this many entries have no coarser levels. Factor between the resolutions of two levels.
const ENTRIES_FEW = 2048;
const STEP = 4;

// Adds rows for labels to a report, instead of those of earlier labels. `labels`: undefined for none.
export function groupByLabel(report, labels) {
  report.rows = report.rows.filter((row) => row.by !== "label");
  report.origins = undefined;
  if (labels) addRows(report, labels);
  report.shown = report.rows;
}

function addRows(report, labels) {
  const totals = labels.totalsOfItems();
  const wanted = [...totals.keys()].slice(1).sort((a, b) => totals[b] - totals[a]).slice(0, LABELS_MAX);
  labels.labelsLeft = totals.length - 1 - wanted.length;
  labels.slicesLeft = 0;
  const items = new Map(wanted.map((label) => [label, []]));
  const rowOf = new Uint32Array(report.own);
  for (const row of report.rows.filter((row) => row.by === "thread")) {
    const { from, to } = row.levels[0];
    for (let at = from; at < to; at++) {
      rowOf[at] = row.index;
      items.get(labels.ofItem[report.fields[at]])?.push(at);
    }
  }
  const made = [];
  for (const [label, all] of items) {
    all.sort((a, b) => report.begin[a] - report.begin[b] || report.duration[b] - report.duration[a]);
    const [instants, ...depths] = [[]];
    const ends = [];
    for (const at of all) {
      if (!report.rows[rowOf[at]].is_slices) {
        instants.push(at);
        continue;
      }
      let depth = ends.findIndex((end) => end <= report.begin[at]);
      if (depth < 0) depth = ends.length;
      if (depth >= DEPTH_MAX) {
        labels.slicesLeft++;
        continue;
      }
      ends[depth] = report.begin[at] + Math.max(1, report.duration[at]);
      (depths[depth] ??= []).push(at);
    }
    // Slices of a label are not nested in each other: each row is a lane.
    for (const [lane, entries] of [instants, ...depths].entries()) {
      if (entries.length) made.push({ by: "label", of: label, lane: Math.max(0, lane - 1), depth: 0, is_slices: lane > 0, entries });
    }
  }
  putRows(report, made, rowOf);
}

// Appends entries to the columns of a report, and its rows with their levels.
function putRows(report, made, rowOf) {
  const all = made.map(({ entries }) => [{ resolution: 0, entries: entries.map((at) => ({ from: at, begin: report.begin[at], duration: report.duration[at], name: report.name[at], count: 1 })) }]);
  for (const levels of all) coarser(levels);
  const size = all.flat().reduce((sum, { entries }) => sum + entries.length, 0);
  for (const column of COLUMNS) {
    const grown = new report[column].constructor(report.own + size);
    grown.set(report[column].subarray(0, report.own));
    report[column] = grown;
  }
  report.origins = new Uint32Array(size);
  let at = report.own;
  made.forEach(({ entries, ...row }, index) => {
    const levels = all[index].map(({ resolution, entries }) => {
      const from = at;
      for (const entry of entries) {
        for (const column of ["begin", "duration", "name", "count"]) report[column][at] = entry[column];
        if (entry.count === 1) {
          for (const column of ["key", "fields"]) report[column][at] = report[column][entry.from];
          report.other[at] = report.rows[rowOf[entry.from]].of + 1;
          report.origins[at - report.own] = entry.from;
        }
        at++;
      }
      return { resolution, from, to: at };
    });
    report.rows.push({ ...row, index: report.rows.length, levels });
  });
  report.originRows = rowOf;
}

// Adds coarser levels: short entries that cannot be distinguished are one.
function coarser(levels) {
  const { entries } = levels[0];
  const last = entries[entries.length - 1];
  const span = Math.max(1, last.begin + last.duration - entries[0].begin);
  let resolution = 2 ** Math.ceil(Math.log2(Math.max(1, span / entries.length)));
  for (;;) {
    const below = levels[levels.length - 1].entries;
    if (below.length <= ENTRIES_FEW || resolution > span) return;
    resolution *= STEP;
    const above = [];
    let group;
    for (const entry of below) {
      const isShort = entry.duration < resolution;
      if (group && isShort && Math.floor(group.begin / resolution) === Math.floor(entry.begin / resolution)) {
        group.duration = entry.begin + entry.duration - group.begin;
        group.count += entry.count;
        continue;
      }
      above.push({ ...entry });
      group = isShort ? above[above.length - 1] : undefined;
    }
    if (above.length < (below.length * 3) / 4) levels.push({ resolution, entries: above });
  }
}

// Returns the entry of a thread that an entry of a label stands for.
export function originOf(report, entry) {
  if (entry.row.by !== "label") return entry;
  const at = report.origins[entry.at - report.own];
  return { at, row: report.rows[report.originRows[at]] };
}
