import { num, seconds, t } from "../i18n";
import { h, setText } from "../shell/dom";
import { axisSeconds } from "../instrument/curve";
import { roundTop, timeScaleMs } from "../instrument/rate";
import type { Generation } from "../store/generation";

/** Ratio of the rates, and the tokens of both lanes over one time axis. */
export class Board {
  readonly element: HTMLElement;
  private readonly figure = h("span");
  private readonly big = h("p", { class: "big off" }, this.figure, h("small", null, t("race_times")));
  private readonly sub = h("p", { class: "m-sub" });
  private readonly canvas = h("canvas", { "aria-hidden": "true" });
  private readonly plot = h("div", { class: "plot" });
  private readonly chart = h("figure", { class: "trace", role: "img", "aria-label": t("race_lane_chart") }, this.plot);
  private readonly tags = { A: h("span", { class: "tag" }), B: h("span", { class: "tag b" }) };
  private readonly yLabels = [0, 1, 2, 3].map(() => h("span", { class: "y" }));
  private readonly xLabels = [0, 1, 2, 3, 4].map((index) => h("span", { class: index === 0 ? "x first" : "x" }));
  private runs: [Generation | null, Generation | null] = [null, null];
  private width = 0;
  private height = 0;
  private drawnAt = -Infinity;

  constructor() {
    this.yLabels.forEach((label, index) => (label.style.top = `${(100 * (3 - index)) / 3}%`));
    this.xLabels.forEach((label, index) => (label.style.left = `${25 * index}%`));
    const grid = [0, 1, 2, 3].map((index) => {
      const line = h("i", { class: "g" });
      line.style.top = `${(100 * (3 - index)) / 3}%`;
      return line;
    });
    this.plot.append(...grid, this.canvas, this.tags.A, this.tags.B, ...this.yLabels, ...this.xLabels);
    new ResizeObserver(([entry]) => {
      this.width = entry?.contentRect.width ?? 0;
      this.height = entry?.contentRect.height ?? 0;
      this.drawnAt = -Infinity;
      this.draw(...this.runs);
    }).observe(this.plot);
    this.element = h(
      "section",
      { class: "board", "aria-label": t("race") },
      h("div", { class: "verdict" }, h("h2", null, t("race_heading")), this.big, this.sub),
      h("div", { class: "dist" }, this.chart),
    );
  }

  update(a: Generation | null, b: Generation | null, ratio: number | null, note: string): void {
    setText(this.sub, ratio === null && a && b ? t("race_none") : note);
    const now = performance.now();
    this.runs = [a, b];
    if (now - this.drawnAt < 100) return;
    this.drawnAt = now;
    if (ratio === null) {
      this.big.className = "big off";
      if (!this.figure.querySelector("b")) this.figure.replaceChildren(h("b", { class: "vh" }, t("no_value")));
    } else {
      this.big.className = "big";
      this.figure.textContent = num(ratio, ratio < 100 ? 1 : 0);
    }
    this.draw(a, b);
  }

  private draw(a: Generation | null, b: Generation | null): void {
    const context = this.canvas.getContext("2d");
    if (!context || this.width === 0) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string): string => style.getPropertyValue(name).trim();
    const most = Math.max(a?.tokens ?? 0, b?.tokens ?? 0);
    const top = roundTop(Math.max(90, most));
    const scale = timeScaleMs(Math.max(a?.samples.lastMs ?? 0, b?.samples.lastMs ?? 0));
    const x = (ms: number): number => (ms / scale) * this.width;
    const y = (tokens: number): number => this.height * (1 - tokens / top);
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.lineWidth = 2;
    for (const [run, name, dash] of [[a, "--signal", []], [b, "--rival", [6, 3]]] as const) {
      const first = run?.samples.firstMs;
      if (!run || first == null) continue;
      const last = run.samples.lastMs;
      context.strokeStyle = colour(name);
      context.setLineDash([...dash]);
      context.beginPath();
      context.moveTo(x(first), y(0));
      const steps = Math.max(2, Math.min(400, Math.ceil(x(last) - x(first))));
      for (let step = 0; step <= steps; step++) {
        const ms = first + ((last - first) * step) / steps;
        context.lineTo(x(ms), y(run.samples.totalAt(ms)));
      }
      context.stroke();
      if (run.ended) {
        context.globalAlpha = 0.4;
        context.lineTo(this.width, y(run.tokens));
        context.stroke();
        context.globalAlpha = 1;
      } else if (most > run.tokens && last > first) this.project(context, run, most, x, y);
      context.setLineDash([]);
      context.fillStyle = colour(name);
      context.beginPath();
      context.arc(x(last), y(run.tokens), 4.5, 0, 7);
      context.fill();
    }
    this.yLabels.forEach((label, index) => setText(label, num(Math.round((top * index) / 3))));
    this.xLabels.forEach((label, index) => setText(label, axisSeconds(scale, index)));
    const ends = [a, b].map((run) => (run ? [x(run.samples.lastMs), y(run.tokens)] : [Infinity, Infinity])) as [number, number][];
    const near = Math.abs(ends[0]![0] - ends[1]![0]) < 180 && Math.abs(ends[0]![1] - ends[1]![1]) < 24;
    this.tag("A", a, x, y, near || ends[0]![0] > this.width * 0.6);
    this.tag("B", b, x, y, near ? ends[1]![0] > this.width - 160 : ends[1]![0] > this.width * 0.6, near);
    this.chart.setAttribute("aria-label", `${t("race_lane_chart")}. A: ${this.words(a)}. B: ${this.words(b)}.`);
  }

  /** Dotted: where an unfinished lane gets to at its present rate. */
  private project(context: CanvasRenderingContext2D, run: Generation, goal: number, x: (ms: number) => number, y: (n: number) => number): void {
    const rate = run.samples.rateBetween(run.samples.firstMs ?? 0, run.samples.lastMs);
    if (!rate) return;
    context.setLineDash([2, 5]);
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x(run.samples.lastMs), y(run.tokens));
    context.lineTo(x(run.samples.lastMs + ((goal - run.tokens) * 1000) / rate), y(goal));
    context.stroke();
    context.lineWidth = 2;
  }

  private words(run: Generation | null): string {
    if (!run || run.samples.count === 0) return t("no_value");
    return run.ended ? t("race_finished", { s: seconds(run.totalMs ?? 0) }) : t("race_at", { n: run.tokens, s: seconds(run.samples.lastMs) });
  }

  /** `before`: ends at its point, over it, else begins under it; `under`: under it in any case, as the other tag stands over it. */
  private tag(letter: "A" | "B", run: Generation | null, x: (ms: number) => number, y: (n: number) => number, before: boolean, under = false): void {
    const tag = this.tags[letter];
    tag.hidden = !run || run.samples.count === 0;
    if (tag.hidden || !run) return;
    const left = x(run.samples.lastMs);
    tag.classList.toggle("before", before);
    tag.style.transform = `translate(${left.toFixed(0)}px, ${y(run.tokens).toFixed(0)}px)${before ? ` translate(-100%, ${under ? 0 : -34}px)` : ""}`;
    tag.replaceChildren(h("b", null, letter), ` ${this.words(run)}`);
  }
}
