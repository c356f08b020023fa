// The comparison of two traces: differences, distributions of durations, and time in call trees.
import { button, counted, duration, element, plural } from "./text.js";
import { Flame, histogramOfTwo } from "./charts.js";
import { balance } from "./colors.js";

const DIFFERENCES_SHOWN = 500;
// Ratios from here on are shown as a factor, not in percent.
const TIMES = 10;

// Returns by how much B exceeds A.
function change(ratio) {
  if (ratio >= TIMES) return `×${ratio.toPrecision(3)}`;
  const percent = 100 * (ratio - 1);
  const digits = Math.abs(percent) < 10 ? 1 : 0;
  return `${percent < 0 ? "−" : "+"}${Math.abs(percent).toFixed(digits)} %`;
}

const isTold = (figure) => figure.verdict !== "cannot be told";

// Shows a difference with its interval, highlighted if the interval excludes 0.
function difference(figure) {
  if (!figure) return element("td", { text: "" });
  const { a, b, ratio, ci95 } = figure;
  const much = ratio !== null ? change(ratio) : b > 0 && a === 0 ? "only in B" : "";
  const interval = ci95 ? ` [${ci95[0] === null ? "−∞" : change(ci95[0])}, ${ci95[1] === null ? "∞" : change(ci95[1])}]` : "";
  const sign = { larger: "▲ ", smaller: "▼ " }[figure.verdict] ?? "";
  return element("td", { class: isTold(figure) ? "told" : "quiet", title: `B is ${figure.verdict === "cannot be told" ? "not told from A" : figure.verdict}` }, sign + (b === 0 && a > 0 ? "only in A" : much), element("small", { text: interval }));
}

const rate = (value) => (value === null ? "" : value === 0 ? "0/s" : `${value >= 100 ? counted(Math.round(value)) : value.toPrecision(3)}/s`);

// Call trees of both traces: the width of a name is its time per second in both together, its colour says which trace
// has more.
class FlameOfTwo extends Flame {
  constructor(diff) {
    const seconds = diff.durations_ns.map((ns) => Math.max(1, ns) / 1e9);
    const share = (totals) => totals.map((ns, side) => ns / seconds[side]);
    super({
      names: diff.names,
      nodes: diff.nodes.map(([parent, name, counts, totals]) => {
        const shares = share(totals);
        return [parent, name, counts[0] + counts[1], shares[0] + shares[1], 0];
      }),
    });
    this.of = new Map(this.nodes.map((node, index) => [node, { counts: diff.nodes[index][2], shares: share(diff.nodes[index][3]) }]));
  }

  whole() {
    return "all slices of both";
  }

  color(node) {
    const { shares: [a, b] } = this.of.get(node);
    return balance(a + b > 0 ? (b - a) / (a + b) : 0);
  }

  said(node) {
    if (!node || node === this.root) return "";
    const { counts, shares } = this.of.get(node);
    const side = (index) => `${duration(shares[index])} of each second (${plural(counts[index], "slice")})`;
    return `${this.report.names[node.name]}: in A ${side(0)}, in B ${side(1)}`;
  }
}

export class Diff {
  // `shown`: draws the panel again.
  constructor(report, shown) {
    this.report = report;
    this.diff = report.diff;
    this.shown = shown;
    this.flame = new FlameOfTwo(report.diff);
    // The row whose histogram is shown.
    this.chosen = this.diff.rows.findIndex((row) => row.is_pair);
  }

  view(width, height, theme) {
    const { diff } = this;
    const differ = diff.rows.filter((row) => row.figures.some(isTold)).length;
    const legend = element("p", {}, element("strong", { text: "A" }), ` ${this.report.title}, ${duration(diff.durations_ns[0])} · `, element("strong", { text: "B" }), ` ${diff.title}, ${duration(diff.durations_ns[1])}`);
    const said = element("p", { class: "quiet", text: `${counted(differ)} of ${plural(diff.rows.length, "class or name", "classes and names")} differ (▲ B is larger, ▼ smaller): the interval of 95 % does not have 0 in it. That which differs most comes first. Of 20 rows that do not differ, one is likely to seem so. Two recordings are compared: those of one program can differ by more.` });
    // Side by side, if there is room.
    const both = element("div", { class: "columns" }, this.table(), element("div", { id: "both" }, ...this.histogram(Math.min(width, 700), height, theme)));
    return [legend, said, both, ...this.trees(width, theme)];
  }

  histogram(width, height, theme) {
    const row = this.diff.rows[this.chosen];
    if (!row?.is_pair || row.bins.every((bins) => bins.length === 0)) return [];
    const colors = [balance(-1), balance(1)];
    const { made, said: sayAt } = histogramOfTwo(this.report, row.bins, [width, height], theme, colors);
    const key = (index) => {
      const swatch = element("span", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = colors[index];
      return [swatch, `${"AB"[index]} (${counted(row.counts[index])}) `];
    };
    const initial = "what share of the slices took how long";
    const said = element("span", { class: "quiet", text: initial });
    made.addEventListener("pointermove", (event) => {
      const box = made.getBoundingClientRect();
      said.textContent = sayAt(event.clientX - box.left) || initial;
    });
    made.addEventListener("pointerleave", () => (said.textContent = initial));
    return [element("h3", {}, `${row.name}: `, ...key(0), ...key(1), said), made];
  }

  table() {
    const { diff } = this;
    const time = (figure, side) => (figure && figure[side] !== null ? duration(figure[side]) : "");
    const columns = ["Name", "Count A", "Count B", "Rate A", "Rate B", "Rate", "Middle A", "Middle B", "Middle", "p99 A", "p99 B", "p99"];
    const rows = diff.rows.slice(0, DIFFERENCES_SHOWN).map((row, index) => {
      const figure = (name) => row.figures.find((figure) => figure.name === name);
      const [rates, middle, high] = ["events_per_s", "p50", "p99"].map(figure);
      const choose = () => {
        this.chosen = index;
        this.shown();
        document.getElementById("both").scrollIntoView({ block: "nearest" });
      };
      const name = row.is_pair ? button(row.name, choose, { title: "Show how its durations are distributed" }) : row.name;
      return element("tr", { "aria-selected": index === this.chosen },
        element("td", {}, name, element("small", { class: "quiet", text: row.is_pair ? " slices" : " events" })),
        ...row.counts.map((count) => element("td", { text: counted(count) })),
        element("td", { text: rate(rates.a) }), element("td", { text: rate(rates.b) }), difference(rates),
        ...[middle, high].flatMap((figure) => [element("td", { text: time(figure, "a") }), element("td", { text: time(figure, "b") }), difference(figure)]));
    });
    const head = element("tr", {}, ...columns.map((text) => element("th", { text, scope: "col" })));
    const table = element("table", { "aria-label": "What differs", class: "diff" }, element("thead", {}, head), element("tbody", {}, ...rows));
    const more = diff.rows.length - rows.length;
    return more > 0 ? element("div", {}, table, element("p", { class: "quiet", text: `${counted(more)} more are not shown.` })) : table;
  }

  trees(width, theme) {
    const { flame, diff } = this;
    if (!flame.nodes.length) return [];
    const hint = "How wide a name is says how much time it has in each second of both; blue: more in A, orange: more in B. Click to go in, click above to go out.";
    const said = element("p", { class: "quiet", text: hint });
    const made = flame.draw(width, theme);
    const left = diff.nodes_left_out + this.report.left_out.call_trees;
    flame.listen(made, (node) => (said.textContent = flame.said(node) || hint), this.shown);
    return [element("h3", { text: "Call trees of both" }), said, made, ...(left ? [element("p", { class: "quiet", text: `${plural(left, "slice")} are not in it: there are too many different callers.` })] : [])];
  }
}
