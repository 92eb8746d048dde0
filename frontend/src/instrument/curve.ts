import { num, GAP } from "../i18n";
import { h, setText } from "../shell/dom";
import { roundTop, timeScaleMs, type Samples } from "./rate";

const BUCKET_MS = 20;

/** Label of the `index`-th of four marks on a time axis; the last one carries the unit. */
export function axisSeconds(scaleMs: number, index: number): string {
  const value = (scaleMs * index) / 4000;
  const text = index === 0 ? "0" : num(value, value % 1 ? 1 : 0);
  return index === 4 ? `${text}${GAP}s` : text;
}

export interface CurveColours {
  line: string;
  area: string;
  held: string;
  heldArea: string;
}

function colours(element: Element): CurveColours {
  const style = getComputedStyle(element);
  const read = (name: string): string => style.getPropertyValue(name).trim();
  return { line: read("--signal"), area: read("--signal-soft"), held: read("--ink-3"), heldArea: read("--line") };
}

/**
 * Tokens per second over engine time. Grid, bound, hatch and head are elements; line and area are on a canvas that only gains
 * points, and is drawn anew when a scale doubles, the size or the theme changes.
 */
export class Curve {
  readonly element: HTMLElement;
  private readonly plot = h("div", { class: "plot" });
  private readonly canvas = h("canvas", { "aria-hidden": "true" });
  private readonly context = this.canvas.getContext("2d");
  private readonly hatch = h("i", { class: "pf" });
  private readonly bound = h("i", { class: "bd" });
  private readonly boundName = h("span", { class: "bl" });
  private readonly boundValue = h("span", { class: "y bv" });
  private readonly yLabels = [0, 1, 2, 3].map(() => h("span", { class: "y" }));
  private readonly xLabels = [0, 1, 2, 3, 4].map((index) => h("span", { class: index === 0 ? "x first" : index % 2 ? "x alt" : "x" }));
  private readonly dot = h("b");
  private readonly head = h("i", { class: "m-head", hidden: true }, this.dot);
  private palette: CurveColours;
  private width = 0;
  private height = 0;
  private top = 60;
  private boundRate: number | null = null;
  private scaleMs = 800;
  private bucketMs = BUCKET_MS;
  private drawn = 0;
  private last: [number, number] | null = null;
  private beforeLast: [number, number] | null = null;
  private samples: Samples | null = null;
  private held = false;
  private dashed: boolean;

  constructor(boundLabel: string, dashed = false) {
    this.dashed = dashed;
    this.boundName.textContent = boundLabel;
    const grid = [0, 1, 2, 3].map((index) => {
      const line = h("i", { class: "g" });
      line.style.top = `${(100 * (3 - index)) / 3}%`;
      return line;
    });
    this.yLabels.forEach((label, index) => (label.style.top = `${(100 * (3 - index)) / 3}%`));
    this.xLabels.forEach((label, index) => (label.style.left = `${25 * index}%`));
    this.plot.append(...grid, this.hatch, this.canvas, this.bound, this.head, this.boundName, this.boundValue, ...this.yLabels, ...this.xLabels);
    this.element = h("figure", { class: "trace", role: "img" }, this.plot);
    this.palette = { line: "", area: "", held: "", heldArea: "" };
    new ResizeObserver(([entry]) => {
      if (!entry) return;
      this.width = entry.contentRect.width;
      this.height = entry.contentRect.height;
      this.redraw();
    }).observe(this.plot);
    new MutationObserver(() => this.redraw()).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    this.labels();
  }

  /** Starts a run: `bound` in tokens/s or null, `expected` the rate to make room for where no bound is known. */
  start(samples: Samples | null, bound: number | null, expected: number): void {
    this.samples = samples;
    this.boundRate = bound;
    this.top = roundTop(bound ?? Math.max(expected, 10));
    this.scaleMs = 800;
    this.held = false;
    this.redraw();
  }

  describe(text: string): void {
    this.element.setAttribute("aria-label", text);
  }

  /** Draws what is new. `waitMs`: time since the request while there is no token yet. */
  update(options: { waitMs: number | null; live: boolean; held: boolean; rate: number | null }): void {
    const samples = this.samples;
    const now = samples && samples.count > 0 ? samples.lastMs : (options.waitMs ?? 0);
    let again = options.held !== this.held;
    this.held = options.held;
    const scale = timeScaleMs(now);
    if (scale !== this.scaleMs) {
      this.scaleMs = scale;
      again = true;
    }
    if (options.rate !== null && options.rate * (this.boundRate === null ? 1.15 : 1) > this.top) {
      this.top = roundTop(options.rate * 1.3);
      again = true;
    }
    if (again) this.redraw();
    else this.extend();
    const first = samples?.firstMs ?? options.waitMs ?? 0;
    const wait = Math.min(100, (100 * first) / this.scaleMs);
    this.hatch.style.width = `${wait}%`;
    this.boundName.style.left = `calc(${wait}% + 12px)`;
    this.head.hidden = !options.live || samples === null || samples.count === 0;
    if (!this.head.hidden) {
      this.head.style.transform = `translateX(${((now / this.scaleMs) * this.width).toFixed(1)}px)`;
      const rate = Math.min(options.rate ?? 0, this.top);
      this.dot.style.transform = `translateY(${(this.height * (1 - rate / this.top)).toFixed(1)}px)`;
    }
  }

  private labels(): void {
    const bound = this.boundRate;
    this.bound.hidden = this.boundName.hidden = this.boundValue.hidden = bound === null;
    if (bound !== null) {
      const y = `${100 * (1 - bound / this.top)}%`;
      for (const element of [this.bound, this.boundName, this.boundValue]) element.style.top = y;
      setText(this.boundValue, num(bound));
    }
    this.yLabels.forEach((label, index) => {
      const value = (this.top * index) / 3;
      const near = bound !== null && (index === 3 || Math.abs(value - bound) / this.top < 0.1);
      label.hidden = near;
      setText(label, num(value, value % 1 === 0 ? 0 : 1));
    });
    this.xLabels.forEach((label, index) => {
      setText(label, axisSeconds(this.scaleMs, index));
    });
  }

  private redraw(): void {
    this.labels();
    this.palette = colours(this.element);
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(this.width * ratio));
    this.canvas.height = Math.max(1, Math.round(this.height * ratio));
    this.context?.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.bucketMs = BUCKET_MS;
    while (this.width > 0 && this.scaleMs / this.bucketMs > this.width) this.bucketMs *= 2;
    this.drawn = 0;
    this.last = this.beforeLast = null;
    this.extend();
  }

  private extend(): void {
    const { context, samples } = this;
    if (!context || !samples || this.width === 0) return;
    const first = samples.firstMs;
    if (first === null) return;
    const points = samples.buckets(this.bucketMs, this.drawn);
    if (points.length === 0) return;
    const x = (ms: number): number => (ms / this.scaleMs) * this.width;
    const y = (rate: number): number => this.height * (1 - Math.min(rate, this.top * 1.02) / this.top);
    const start: [number, number] = this.last ?? [x(first), this.height];
    const area = new Path2D();
    const line = new Path2D();
    const overlap = this.last === null ? 0 : 1; // the parts of the area must not show their seams
    area.moveTo(start[0] - overlap, this.height);
    area.lineTo(start[0] - overlap, start[1] + overlap);
    const join = this.beforeLast ?? start; // the new area covers half of the stroke at its seam: draw that again
    line.moveTo(join[0], join[1]);
    if (join !== start) line.lineTo(start[0], start[1]);
    let at = start;
    let before = this.beforeLast;
    for (const [index, rate] of points) {
      if (this.last === null && index === 0) {
        line.lineTo(start[0], y(rate));
        area.lineTo(start[0], y(rate));
      }
      before = at;
      at = [x(first + (index + 1) * this.bucketMs), y(rate)];
      line.lineTo(at[0], at[1]);
      area.lineTo(at[0], at[1]);
    }
    area.lineTo(at[0], this.height);
    area.closePath();
    if (!this.dashed) {
      context.globalAlpha = this.held ? 0.5 : 1;
      context.fillStyle = this.held ? this.palette.heldArea : this.palette.area;
      context.fill(area);
      context.globalAlpha = 1;
    }
    context.strokeStyle = this.held ? this.palette.held : this.palette.line;
    context.lineWidth = 2;
    context.lineJoin = "round";
    context.setLineDash(this.dashed ? [6, 3] : []);
    context.lineDashOffset = this.dashed ? -start[0] : 0;
    context.stroke(line);
    this.last = at;
    this.beforeLast = this.dashed ? null : before;
    this.drawn += points.length;
  }
}

/** Words for the whole curve: steady rate, lowest and highest. Null when there are too few points to say anything. */
export function summary(samples: Samples): { steady: number; lowest: number; highest: number } | null {
  const span = samples.lastMs - (samples.firstMs ?? 0);
  const width = Math.max(100, span / 40);
  const rates = samples.buckets(width).map(([, rate]) => rate);
  if (rates.length < 2) return null;
  const sorted = [...rates].sort((a, b) => a - b);
  return { steady: sorted[sorted.length >> 1] as number, lowest: sorted[0] as number, highest: sorted[sorted.length - 1] as number };
}

/** At most twelve rows [ms from, ms to, tokens/s] of the run, for the table beside the curve. */
export function tableOf(samples: Samples): [number, number, number][] {
  const first = samples.firstMs;
  if (first === null || samples.lastMs <= first) return [];
  const width = Math.max(100, Math.ceil((samples.lastMs - first) / 12 / 100) * 100);
  return samples.buckets(width).map(([index, rate]) => [first + index * width, first + (index + 1) * width, rate]);
}
