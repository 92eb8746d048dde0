import { num } from "../../i18n";
import { roundTop } from "../../instrument/rate";
import { h } from "../../shell/dom";

const SVG = "http://www.w3.org/2000/svg";

export interface Series {
  name: string;
  /** Class of the line or colour of the bars. */
  look: string;
  values: (number | null)[];
  /** What the legend says besides the name. */
  value?: string;
}

function path(cls: string, d: string, fill?: string): SVGPathElement {
  const element = document.createElementNS(SVG, "path");
  element.setAttribute("class", cls);
  element.setAttribute("d", d);
  if (fill) element.style.fill = fill;
  return element;
}

function frame(name: string, top: number, labels: string[]): { figure: HTMLElement; svg: SVGElement } {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 1000 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const plot = h("div", { class: "plot" }, svg as unknown as Node);
  for (const at of [0, 1, 2, 3]) {
    svg.append(path("g", `M0 ${(100 * at) / 3}H1000`));
    const label = h("span", { class: "y" }, short((top * (3 - at)) / 3));
    label.style.top = `${(100 * at) / 3}%`;
    plot.append(label);
  }
  const named = labels.map((text, index) => ({ text, index })).filter(({ text }) => text);
  const step = Math.max(1, Math.ceil(named.length / 5));
  named.forEach(({ text, index }, place) => {
    if (place % step || index > labels.length * 0.95) return;
    const label = h("span", { class: index === 0 ? "x first" : (place / step) % 2 ? "x alt" : "x" }, text);
    label.style.left = `${(100 * (index + (index ? 0.5 : 0))) / labels.length}%`;
    plot.append(label);
  });
  return { figure: h("figure", { class: "trace", role: "img", "aria-label": name }, plot), svg };
}

/** 1,200 as it is, 12,300 as 12.3 k, 30,000 as 30 k, 9,140,000 as 9.14 M. */
export function short(value: number): string {
  if (value >= 1e6) return `${num(value / 1e6, value >= 1e7 ? 1 : 2)} M`;
  if (value >= 10_000) return `${num(value / 1e3, value >= 1e5 || value % 1000 === 0 ? 0 : 1)} k`;
  return num(value, value > 0 && value < 10 && value % 1 ? 1 : 0);
}

/** The top of an axis of counts: its grid lines lie at whole numbers. */
function countTop(most: number): number {
  return 3 * Math.ceil(roundTop(most) / 3);
}

/**
 * Lines over time; a gap where there is no value, a dash for a value alone. `labels`: of the points; "" has no mark on the axis.
 * `of`: whether the values are counts or measured.
 */
export function lines(name: string, labels: string[], series: Series[], of: "counts" | "measures" = "measures"): HTMLElement {
  const top = (of === "counts" ? countTop : roundTop)(Math.max(1, ...series.flatMap((one) => one.values.map((value) => value ?? 0))));
  const { figure, svg } = frame(name, top, labels);
  const x = (index: number): string => ((1000 * (index + 0.5)) / labels.length).toFixed(1);
  const dash = Math.max(0.5, labels.length / 80); // half its length, in points
  for (const one of [...series].reverse()) {
    let d = "";
    one.values.forEach((value, index) => {
      if (value === null) return;
      const has = (at: number): boolean => one.values[at] !== null && one.values[at] !== undefined;
      const y = (100 * (1 - value / top)).toFixed(2);
      if (has(index - 1)) d += `L${x(index)} ${y}`;
      else d += has(index + 1) ? `M${x(index)} ${y}` : `M${x(index - dash)} ${y}H${x(index + dash)}`;
    });
    svg.append(path(`tr ${one.look}`, d || "M0 0"));
  }
  return figure;
}

/** Bars of counts, stacked from the bottom in the order given. `look` is a CSS colour. */
export function bars(name: string, labels: string[], series: Series[]): HTMLElement {
  const totals = labels.map((_, index) => series.reduce((sum, one) => sum + (one.values[index] ?? 0), 0));
  const top = countTop(Math.max(1, ...totals));
  const { figure, svg } = frame(name, top, labels);
  const width = 1000 / labels.length;
  const gap = Math.min(4, width * 0.15);
  const base = labels.map(() => 0);
  for (const one of series) {
    let d = "";
    one.values.forEach((value, index) => {
      if (!value) return;
      const from = 100 * (1 - base[index]! / top);
      base[index]! += value;
      const to = 100 * (1 - base[index]! / top);
      d += `M${(index * width + gap / 2).toFixed(1)} ${from.toFixed(2)}V${to.toFixed(2)}h${(width - gap).toFixed(1)}V${from.toFixed(2)}Z`;
    });
    svg.append(path("", d || "M0 0", one.look));
  }
  return figure;
}

export function legend(series: Series[], kind: "lines" | "bars"): HTMLElement {
  const list = h("ul", { class: "leg" });
  for (const one of series) {
    let mark: Node;
    if (kind === "lines") {
      const svg = document.createElementNS(SVG, "svg");
      svg.setAttribute("viewBox", "0 0 22 6");
      svg.setAttribute("aria-hidden", "true");
      svg.append(path(`tr ${one.look}`, "M0 3H22"));
      mark = svg;
    } else {
      const square = h("i");
      square.style.background = one.look;
      mark = square;
    }
    list.append(h("li", null, mark, one.name, one.value ? h("b", null, one.value) : null));
  }
  return list;
}

export function table(caption: string, heads: string[], rows: (string | Node)[][]): HTMLElement {
  const head = h("tr", null, ...heads.map((text, index) => h("th", { scope: "col", class: index ? "n" : "" }, text)));
  const body = rows.map((cells) => h("tr", null, ...cells.map((cell, index) => (index ? h("td", { class: "n" }, cell) : h("th", { scope: "row" }, cell)))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, h("table", null, h("thead", null, head), h("tbody", null, ...body)));
}
