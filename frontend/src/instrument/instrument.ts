import type { ModelCard } from "../api/types";
import { duration, language, num, seconds, t, GAP } from "../i18n";
import { errorText } from "../i18n/errors";
import { h, icon, lamp, setText } from "../shell/dom";
import type { Generation, RunState } from "../store/generation";
import { Curve, summary } from "./curve";
import { openMeasured } from "./measured";
import { bandwidthUse } from "./rate";

export interface InstrumentActions {
  regenerate(): void;
  proceed(): void;
  retry(): void;
}

const FIGURE_MS = 100;
const PREFILL_SHOWN_MS = 100;
const DASH = "–";
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

interface Face {
  figure: string | null;
  unit: string;
  tone: "" | "ink" | "hold";
  sub: string;
  actions: [string, () => void][];
}

/** The speed instrument: every mark is a measured value, its bound, or its absence. */
export class Instrument {
  readonly element: HTMLElement;
  private readonly lampBox = h("span", { class: "lamp s-idle" });
  private readonly figure = h("span");
  private readonly noValue = h("b", { class: "vh" }, t("no_value"));
  private readonly unit = h("small");
  private readonly figureBox = h("p", { class: "fig off" }, this.figure, this.unit);
  private readonly sub = h("p", { class: "m-sub" });
  private readonly curve: Curve;
  private readonly first = h("dd", null, DASH);
  private readonly queue = h("dd", null, DASH);
  private readonly tokens = h("dd", null, DASH);
  private readonly elapsed = h("dd", null, DASH);
  private readonly mbuValue = h("b", null, DASH);
  private readonly mbuText = h("span");
  private readonly mbuFill = h("i");
  private readonly mbuTick = h("u");
  private readonly mbuBar = h("div", { class: "bar", role: "meter", "aria-label": t("mbu_long"), "aria-valuemin": 0, "aria-valuemax": 100 }, this.mbuFill, this.mbuTick);
  private readonly mbuRow: HTMLElement;
  private readonly plate = h("div", { class: "plate" });
  private run: Generation | null = null;
  private card: ModelCard | null = null;
  private latest = true;
  private shownState: RunState | null = null;
  private shownSub = "";
  private figureAt = 0;
  private curveAt = 0;
  private ticker = 0;

  constructor(private readonly actions: InstrumentActions) {
    this.curve = new Curve(t("read_bound"));
    const reading = (label: string, value: HTMLElement): HTMLElement => h("div", { class: "rd" }, h("dt", null, label), value);
    this.mbuRow = h(
      "div",
      { class: "rd mbu" },
      h("dt", { class: "vh" }, t("mbu_long")),
      h("dd", null, h("p", null, h("span", null, "MBU ", this.mbuValue), this.mbuText), this.mbuBar),
    );
    this.element = h(
      "section",
      { class: "meter", "aria-label": t("region_speed"), tabindex: "-1" },
      h("div", { class: "m-fig" }, this.lampBox, this.figureBox, this.sub),
      h("div", { class: "m-trace" }, this.curve.element),
      h(
        "dl",
        { class: "m-read" },
        reading(t("first_token"), this.first),
        reading(t("queue_wait"), this.queue),
        reading(t("tokens"), this.tokens),
        reading(t("elapsed"), this.elapsed),
        this.mbuRow,
      ),
      this.plate,
    );
  }

  get generation(): Generation | null {
    return this.run;
  }

  /** Shows another run (or none). `expected`: the last rate seen for this model; `latest`: the run can be taken up again. */
  bind(run: Generation | null, card: ModelCard | null, expected: number, latest = true): void {
    this.run = run;
    this.card = card;
    this.latest = latest;
    this.shownState = null;
    this.figureAt = this.curveAt = 0;
    this.curve.start(run?.samples ?? null, card?.bound_tokens_per_s ?? null, expected);
    this.drawPlate();
    this.update();
  }

  /** Says the present speed in words ("Say the speed" of the palette). */
  spoken(): string {
    const state = this.run?.state ?? "idle";
    return `${t(`state_${state}`)}. ${this.figure.textContent || t("no_value")} ${this.unit.textContent ?? ""}. ${this.sub.textContent ?? ""}`;
  }

  update(): void {
    const run = this.run;
    const state: RunState = run?.state ?? "idle";
    const now = performance.now();
    const fresh = state !== this.shownState;
    if (fresh) this.enter(state);
    const held = state === "interrupted" || state === "reconnecting" || (state === "failed" && Boolean(run?.samples.count));
    if (fresh || now - this.figureAt >= FIGURE_MS) {
      this.figureAt = now;
      this.drawFace(state, run, now);
      this.drawReadings(state, run, now);
    }
    if (fresh || !reducedMotion.matches || now - this.curveAt >= 250) {
      this.curveAt = now;
      const waiting = run !== null && !run.ended && run.samples.count === 0;
      this.curve.update({
        waitMs: waiting && run.startedAt > 0 ? now - run.startedAt : null,
        live: state === "streaming" || state === "reconnecting",
        held,
        rate: this.rate(),
      });
    }
  }

  private rate(): number | null {
    const run = this.run;
    if (!run) return null;
    if (run.ended && run.timings?.decode_tokens_per_s) return run.timings.decode_tokens_per_s;
    return run.samples.live()?.rate ?? null;
  }

  private enter(state: RunState): void {
    this.shownState = state;
    this.lampBox.className = `lamp s-${state}`;
    this.lampBox.replaceChildren(lamp(state), t(`state_${state}`));
    this.element.dataset.state = state;
    this.element.classList.toggle("held", state === "interrupted" || state === "reconnecting" || state === "failed");
    clearInterval(this.ticker);
    if (this.run && !this.run.ended) this.ticker = window.setInterval(() => this.update(), FIGURE_MS);
    this.describeCurve(state);
  }

  private describeCurve(state: RunState): void {
    const bound = this.card?.bound_tokens_per_s;
    const boundText = bound ? t("curve_bound", { bound }) : t("curve_no_bound");
    const run = this.run;
    const words = run?.ended ? summary(run.samples) : null;
    if (words) this.curve.describe(`${t("curve_name")}: ${t("curve_summary", { steady: Math.round(words.steady), lowest: Math.round(words.lowest) })}, ${boundText}`);
    else this.curve.describe(state === "idle" ? `${t("curve_none")}, ${boundText}` : `${t("curve_name")}, ${boundText}`);
  }

  private drawFace(state: RunState, run: Generation | null, now: number): void {
    const face = this.face(state, run, now);
    if (face.figure === null) {
      if (this.figure.firstChild !== this.noValue) this.figure.replaceChildren(this.noValue);
      this.figureBox.className = "fig off";
    } else {
      if (this.figure.textContent !== face.figure || this.figure.firstChild === this.noValue) this.figure.textContent = face.figure;
      this.figureBox.className = face.tone ? `fig ${face.tone}` : "fig";
    }
    setText(this.unit, face.unit);
    const actions = this.latest ? face.actions : [];
    const sub = face.sub + actions.map(([label]) => label).join();
    if (sub === this.shownSub) return;
    this.shownSub = sub;
    this.sub.replaceChildren(face.sub);
    for (const [label, act] of actions) this.sub.append(" ", h("button", { type: "button", onClick: act }, label));
  }

  private face(state: RunState, run: Generation | null, now: number): Face {
    const rate = this.rate();
    const speed = rate === null ? null : num(rate);
    const regenerate: [string, () => void] = [t("regenerate"), this.actions.regenerate];
    const of = (figure: string | null, unit: string, tone: Face["tone"], sub: string, ...actions: Face["actions"]): Face => ({ figure, unit, tone, sub, actions });
    switch (state) {
      case "idle":
        return of(null, t("unit_rate"), "", t("sub_idle"));
      case "queued": {
        const position = run?.position ?? 0;
        if (position === 0) return of(null, t("unit_rate"), "", t("sub_sent"));
        return of(num(position), t("unit_line"), "ink", position === 1 ? t("sub_next") : t("sub_queued", { n: position - 1 }));
      }
      case "loading":
        return of(num(Math.round(100 * (run?.loadFraction ?? 0))), "%", "ink", (language === "en" && run?.loadDetail) || t("sub_loading"));
      case "prefill": {
        const done = run?.prefillDone ?? 0;
        if (run && now - run.startedAt < PREFILL_SHOWN_MS) return of(null, t("unit_rate"), "", t("sub_reading", { n: run.prefillTotal }));
        return of(num(done), t("unit_read"), "ink", t("sub_prefill", { n: run?.prefillTotal ?? 0 }));
      }
      case "streaming": {
        const live = run?.samples.live() ?? null;
        return of(live ? num(live.rate) : null, t("unit_rate"), "", live?.windowMs === 1000 ? t("sub_live_1s") : t("sub_live"));
      }
      case "complete": {
        const note = run?.finishReason === "length" ? t("sub_length", { n: run.tokens }) : t("sub_complete");
        return of(speed, t("unit_rate"), "", note);
      }
      case "stopped":
        return of(speed, t("unit_rate"), "ink", t("sub_stopped", { n: run?.tokens ?? 0 }), regenerate, [t("continue"), this.actions.proceed]);
      case "interrupted":
        return of(speed, t("unit_rate"), "hold", run?.error ? errorText(run.error, run.tokens) : t("sub_interrupted", { n: run?.tokens ?? 0 }), regenerate);
      case "failed":
        return of(run?.samples.count ? speed : null, t("unit_rate"), "hold", run?.error ? errorText(run.error, run.tokens) : t("sub_failed"), regenerate);
      case "reconnecting":
        return of(
          speed,
          t("unit_rate"),
          "hold",
          t("sub_reconnecting", { ago: num(Math.floor((now - (run?.lostAt ?? now)) / 1000)), n: run?.tokens ?? 0 }),
          [t("retry_now"), this.actions.retry],
        );
    }
  }

  private drawReadings(state: RunState, run: Generation | null, now: number): void {
    // Before the first token the page's own clock counts: the wait in the queue, then the engine's reading.
    const waited = run ? now - (run.startedAt || run.bornAt) : 0;
    const waiting = state === "queued" || state === "loading";
    this.reading(this.first, run?.ttftMs == null ? null : duration(run.ttftMs));
    this.reading(this.queue, run === null ? null : run.queueMs !== null ? duration(run.queueMs) : waiting ? duration(waited) : null);
    const tokens = run === null || (waiting && run.tokens === 0) ? null : num(run.tokens);
    const limit = run?.maxTokens && !run.ended ? `${t("of")} ${num(run.maxTokens)}` : "";
    this.reading(this.tokens, tokens === null ? null : [tokens, state === "reconnecting" ? t("seen") : limit], "of");
    const total = run?.totalMs ?? null;
    this.reading(this.elapsed, run === null ? null : total !== null ? [seconds(total), "s"] : run.ended ? null : duration(waited));
    this.drawBandwidth(run);
  }

  private reading(cell: HTMLElement, value: [string, string] | null, unitClass = ""): void {
    if (value === null) {
      setText(cell, DASH);
      return;
    }
    const text = cell.firstChild;
    const unit = cell.lastElementChild;
    if (text instanceof Text && unit) {
      if (text.data !== value[0]) text.data = value[0];
      setText(unit, value[1] ? GAP + value[1] : "");
    } else cell.replaceChildren(value[0], h("small", { class: unitClass }, value[1] ? GAP + value[1] : ""));
  }

  private drawBandwidth(run: Generation | null): void {
    const card = this.card;
    const measured = card?.measured_bytes_per_s ?? null;
    const bytes = card?.bytes_per_token ?? null;
    const known = measured !== null && bytes !== null && Boolean(card?.bound_tokens_per_s);
    this.mbuRow.toggleAttribute("data-none", !known);
    if (!card || measured === null || bytes === null || !known) return;
    const scale = card.datasheet_bytes_per_s ?? measured;
    const tera = (perSecond: number): string => num(perSecond / 1e12, perSecond < 1e13 ? 2 : 1);
    this.mbuTick.style.left = `${(100 * measured) / scale}%`;
    const rate = run && run.state !== "failed" ? this.rate() : null;
    const use = rate === null ? null : bandwidthUse(rate, bytes, measured);
    setText(this.mbuValue, use === null ? DASH : `${num(use, 1)}${GAP}%`);
    const full = `${tera(measured)}${GAP}TB/s`;
    setText(this.mbuText, rate === null ? `${t("of")} ${full}` : `${tera(rate * bytes)} ${t("of")} ${full}`);
    this.mbuFill.style.width = rate === null ? "0" : `calc(${Math.min(100, (100 * rate * bytes) / scale).toFixed(1)}% - 2px)`;
    this.mbuBar.setAttribute("aria-valuenow", String(Math.round(use ?? 0)));
  }

  private drawPlate(): void {
    const card = this.card;
    const parts = plateParts(card).map(([text, strong]) => h("span", null, strong ? h("b", null, text) : text));
    const how = h("button", { type: "button", class: "how", onClick: () => openMeasured(card, this.run) }, icon("info", true), h("span", null, t("how_measured")));
    this.plate.replaceChildren(...parts, how);
  }
}

/** The badge: `1 × H200 | FP16 | Laneformer 2B | batch 1`, or the CPU with "no bound measured". */
export function plateParts(card: ModelCard | null): [string, boolean][] {
  if (!card) return [[t("no_model"), false]];
  const parts: [string, boolean][] = [];
  if (card.device) parts.push([deviceName(card), true]);
  if (card.precision) parts.push([precision(card.precision), true]);
  parts.push([card.title, false]);
  if (!card.ready) return [...parts, [t("state_loading"), false]];
  if (!card.bound_tokens_per_s) parts.push([t("no_bound"), false]);
  else parts.push([t("batch", { n: 1 }), false]);
  return parts;
}

export function deviceName(card: ModelCard): string {
  return card.gpus > 0 ? `${card.gpus} × ${card.device}` : (card.device ?? "");
}

export function precision(name: string): string {
  const short: Record<string, string> = { float16: "FP16", bfloat16: "BF16", float32: "FP32" };
  return short[name] ?? name.toUpperCase();
}
