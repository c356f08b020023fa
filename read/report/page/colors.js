// Colours. Names have those of Paul Tol's scheme "light", which colour-blind readers can distinguish, with dark text on
// them.

const NAMES = ["#77aadd", "#ee8866", "#eedd88", "#44bb99", "#ffaabb", "#99ddff", "#bbcc33", "#aaaa00", "#cccccc"];
const SHADES = [0, 0.22, -0.18];

function mixed(color, share) {
  const other = share < 0 ? 0 : 255;
  const parts = [1, 3, 5].map((at) => {
    const part = parseInt(color.slice(at, at + 2), 16);
    return Math.round(part + (other - part) * Math.abs(share)).toString(16).padStart(2, "0");
  });
  return `#${parts.join("")}`;
}

export const INK = "#16181d";

function colorOf(rank, isDark) {
  const shade = SHADES[Math.floor(rank / NAMES.length) % SHADES.length];
  return mixed(mixed(NAMES[rank % NAMES.length], shade), isDark ? -0.12 : 0);
}

// Returns the colours of names. Those with the most time differ most.
export function colorsOf(report, isDark) {
  const order = [...new Set([...report.summary.map((row) => row.name), ...report.names.keys()])];
  const colors = new Array(report.names.length);
  order.forEach((name, rank) => {
    colors[name] = colorOf(rank, isDark);
  });
  return colors;
}

// Returns the colours of labels, those with the most time first.
export function colorsOfLabels(totals, isDark) {
  const colors = new Array(totals.length);
  [...totals.keys()].sort((a, b) => totals[b] - totals[a]).forEach((label, rank) => (colors[label] = colorOf(rank, isDark)));
  return colors;
}

// Returns the colours of the style sheet, so that canvases match elements.
export function themeOf() {
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(["back", "band", "line", "text", "quiet", "accent", "loss", "faded"].map((name) => [name, color(name)]));
}

// From little to much: viridis, whose lightness rises steadily.
const STOPS = ["#440154", "#482878", "#3e4989", "#31688e", "#26828e", "#1f9e89", "#35b779", "#6ece58", "#b5de2b", "#fde725"];

export const heatColor = (share) => STOPS[Math.min(STOPS.length - 1, Math.floor(share * STOPS.length))];

// Stripes for losses.
export function stripes(context, color) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.strokeStyle = color;
  pen.lineWidth = 2;
  pen.beginPath();
  for (const at of [-4, 4, 12]) {
    pen.moveTo(at - 5, 9);
    pen.lineTo(at + 5, -1);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

// From -1 to 1: blue, grey and orange of Paul Tol's scheme "light", which colour-blind readers can distinguish.
export function balance(share) {
  const [from, to] = [[221, 221, 221], share < 0 ? [0x77, 0xaa, 0xdd] : [0xee, 0x88, 0x66]];
  return `rgb(${from.map((part, index) => Math.round(part + (to[index] - part) * Math.min(1, Math.abs(share)))).join(",")})`;
}
