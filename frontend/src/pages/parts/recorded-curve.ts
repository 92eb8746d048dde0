import { GAP, marks, num, seconds } from "../../i18n";
import { summary } from "../../instrument/curve";
import { roundTop, type Samples } from "../../instrument/rate";
import { h } from "../../shell/dom";

const SVG = "http://www.w3.org/2000/svg";

function shape(tag: string, attributes: Record<string, string>): SVGElement {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** Round steps of a time axis: at most six from 0 to `ms`. */
function timeSteps(ms: number): number[] {
  const raw = ms / 5;
  const magnitude = 10 ** Math.floor(Math.log10(Math.max(raw, 0.001)));
  const step = [1, 2, 5, 10].map((n) => n * magnitude).find((n) => n >= raw) ?? raw;
  const out: number[] = [];
  for (let at = 0; at <= ms * 0.97; at += step) out.push(at);
  return out;
}

/** The tokens per second of a whole recorded run, with the bound. `place` lights what lies before a time. */
export class RecordedCurve {
  readonly element: HTMLElement;
  readonly plot = h("div", { class: "plot" });
  private readonly lit = shape("rect", { x: "0", y: "-5", height: "110", width: "1000" });

  constructor(
    samples: Samples,
    private readonly totalMs: number,
    bound: number | null,
    words: { bound: string; name: string },
  ) {
    const width = Math.max(20, totalMs / 80);
    const rates = samples.buckets(width).map(([index, rate]): [number, number] => [(samples.firstMs ?? 0) + (index + 0.5) * width, rate]);
    const top = roundTop(Math.max(bound ?? 0, ...rates.map(([, rate]) => rate)));
    const x = (ms: number): number => (1000 * ms) / totalMs;
    const y = (rate: number): number => 100 * (1 - rate / top);
    const first = samples.firstMs ?? 0;
    const whole = rates.length ? [[first, rates[0]![1]] as [number, number], ...rates, [totalMs, rates[rates.length - 1]![1]] as [number, number]] : [];
    const line = whole.map(([ms, rate], i) => `${i ? "L" : "M"}${x(ms).toFixed(1)} ${y(rate).toFixed(1)}`).join("");
    const area = line && `M${x(first).toFixed(1)} 100${line.replace("M", "L")}L1000 100Z`;
    const svg = shape("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" });
    const clip = shape("clipPath", { id: "lit" });
    clip.append(this.lit);
    svg.append(clip);
    for (const at of [0, 1, 2, 3]) svg.append(shape("path", { class: "g", d: `M0 ${(100 * at) / 3}H1000` }));
    svg.append(shape("path", { class: "ar dim", d: area }), shape("path", { class: "tr dim", d: line }));
    if (bound) svg.append(shape("path", { class: "bd", d: `M0 ${y(bound)}H1000` }));
    svg.append(shape("path", { class: "ar", d: area, "clip-path": "url(#lit)" }), shape("path", { class: "tr", d: line, "clip-path": "url(#lit)" }));
    const hatch = h("i", { class: "pf" });
    hatch.style.width = `${x(first) / 10}%`;
    this.plot.append(hatch, svg as unknown as Node);
    const grid = [0, 1, 2, 3].map((at) => (top * (3 - at)) / 3);
    for (const [at, text] of marks(grid).entries()) {
      if (bound && (at === 0 || Math.abs(grid[at]! - bound) / top < 0.1)) continue;
      this.label("y", `${(100 * at) / 3}%`, text);
    }
    if (bound) {
      this.label("y bv", `${y(bound)}%`, num(bound));
      this.label("bl", `${y(bound)}%`, words.bound).style.left = `calc(${x(first) / 10}% + 12px)`;
    }
    const steps = timeSteps(totalMs);
    for (const [index, text] of marks(steps.map((ms) => ms / 1000)).entries()) {
      const label = h("span", { class: index === 0 ? "x first" : index % 2 ? "x alt" : "x" }, text);
      label.style.left = `${x(steps[index]!) / 10}%`;
      this.plot.append(label);
    }
    const unit = h("span", { class: "x unit" }, "s");
    this.plot.append(unit);
    const facts = summary(samples);
    const name = facts ? `${words.name}: ${num(facts.steady)}, ${num(facts.lowest)} – ${num(facts.highest)}${GAP}tok/s, ${seconds(totalMs)}${GAP}s` : words.name;
    this.element = h("figure", { class: "trace recorded", role: "group", "aria-label": name }, this.plot);
  }

  place(ms: number): void {
    this.lit.setAttribute("width", String((1000 * ms) / this.totalMs));
  }

  private label(cls: string, top: string, text: string): HTMLElement {
    const label = h("span", { class: cls }, text);
    label.style.top = top;
    this.plot.append(label);
    return label;
  }
}
