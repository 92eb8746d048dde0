import type { ModelCard } from "../../api/types";
import { duration, GAP, num, seconds, t } from "../../i18n";
import { plateParts } from "../../instrument/instrument";
import { bandwidthUse } from "../../instrument/rate";
import { button, h, icon, lamp, setText } from "../../shell/dom";
import { openSheet } from "../../shell/layers";
import { RecordedCurve } from "../parts/recorded-curve";
import { CodeView } from "./code-view";
import { partsOf, Recording, type Answer, type Part } from "./recording";
import { runnable, RunPane, type ShownFile } from "./run";

type Speed = "1" | "0.25" | "46" | "all";
const SPEEDS: [Speed, string][] = [["1", "1×"], ["0.25", "¼×"], ["46", `46 ${t("unit_rate")}`], ["all", t("share.at_once")]];
const PACE = 46; // tokens/s of a laptop's CPU
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** One recorded answer: instrument, transport and code. The playhead is an engine time; everything follows from it. */
export class Player {
  readonly element: HTMLElement;
  private readonly recording: Recording;
  private readonly parts: Part[];
  private readonly views: CodeView[];
  private readonly tabs: HTMLButtonElement[];
  private readonly codeBox = h("div", { class: "codebox" });
  private readonly consoleBox = h("div", { class: "consolebox" });
  private readonly curve: RecordedCurve | null = null;
  private readonly run: RunPane;
  private readonly figure = h("span");
  private readonly figureBox = h("p", { class: "fig" }, this.figure, h("small", null, t("unit_rate")));
  private readonly lampBox = h("span", { class: "lamp s-streaming" });
  private readonly sub = h("p", { class: "m-sub" });
  private readonly tokens = h("dd");
  private readonly clock = h("span");
  private readonly play = button({ icon: "play", name: t("share.play"), onClick: () => this.toggle() });
  private readonly range = h("input", { type: "range", class: "scrub", min: 0, step: "any", "aria-label": t("share.playhead") });
  private readonly headline = h("i", { class: "m-head" }, h("b"), h("i", { class: "grip" }));
  private readonly mbuFill = h("i");
  private readonly mbuText = h("b");
  private readonly mbuRate = h("span");
  private readonly speeds = new Map<Speed, HTMLButtonElement>();
  private shown = 0;
  private at = 0;
  private speed: Speed = "1";
  private playing = false;
  private frame = 0;
  private last = 0;
  private drawnAt = 0;

  constructor(
    answer: Answer,
    private readonly model: Partial<ModelCard>,
  ) {
    this.recording = new Recording(answer);
    this.parts = partsOf(answer.text);
    this.views = this.parts.map((part) => new CodeView(part, this.recording, (ms) => this.jump(ms)));
    this.tabs = this.parts.map((part, index) =>
      h("button", { type: "button", role: "tab", class: "tab", id: `tab-${index}`, onClick: () => this.openPart(index) }, part.name ? h("span", { class: "mono" }, part.name) : t("share.answer")),
    );
    this.run = new RunPane(this.consoleBox, this.codeBox);
    const tablist = h("div", { class: "tabs", role: "tablist", "aria-label": t("share.files") }, ...this.tabs);
    tablist.addEventListener("keydown", (event) => this.walkTabs(event));
    const hint = this.recording.recorded ? h("span", { class: "hint hide-s" }, t("share.select_time")) : null;
    const bar = h("div", { class: "codebar" }, tablist, h("span", { class: "sp" }), hint);
    this.element = h("section", { class: "wk", "aria-label": t("share.replay") });
    if (this.recording.recorded) {
      this.curve = this.buildCurve();
      this.element.append(this.buildMeter());
    } else this.element.append(h("p", { class: "norec" }, t("share.no_recording")));
    this.element.append(bar, this.codeBox, this.consoleBox);
    this.openPart(0);
    if (!this.recording.recorded || calm.matches) this.setAt(this.recording.totalMs);
    else {
      this.setAt(0);
      this.start();
    }
  }

  /** The file that is open, or the whole answer. */
  get file(): ShownFile {
    const part = this.parts[this.shown]!;
    return { name: part.name ?? "answer.md", language: part.name ? part.language : "text", code: part.lines.map((line) => line.text).join("\n") + (part.name ? "\n" : "") };
  }

  get canRun(): boolean {
    return this.parts[this.shown]!.name !== null && runnable(this.file.language);
  }

  onPart: () => void = () => {};

  runFile(): void {
    const files = this.parts.filter((part) => part.name !== null).map((part) => ({ name: part.name!, language: part.language, code: part.lines.map((line) => line.text).join("\n") + "\n" }));
    void this.run.start(this.file, files);
  }

  close(): void {
    this.pause();
    this.element.remove();
  }

  private openPart(index: number): void {
    this.shown = index;
    this.tabs.forEach((tab, i) => {
      tab.setAttribute("aria-selected", String(i === index));
      tab.tabIndex = i === index ? 0 : -1;
    });
    const view = this.views[index]!;
    this.codeBox.replaceChildren(view.element);
    view.show(this.recording.charactersAt(this.at));
    this.onPart();
  }

  private walkTabs(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (this.shown + step + this.tabs.length) % this.tabs.length;
    this.openPart(next);
    this.tabs[next]!.focus();
  }

  // Instrument ----------------------------------------------------------------------------------------------------------

  private buildCurve(): RecordedCurve {
    const bound = this.model.bound_tokens_per_s ?? null;
    const curve = new RecordedCurve(this.recording.samples, this.recording.totalMs, bound, { bound: t("read_bound"), name: t("share.curve") });
    this.range.max = String(this.recording.totalMs);
    this.range.addEventListener("input", () => this.jump(Number(this.range.value), false));
    this.range.addEventListener("keydown", (event) => this.key(event));
    curve.plot.append(this.headline, this.range);
    return curve;
  }

  private buildMeter(): HTMLElement {
    const { usage, timings } = this.recording.answer;
    const reading = (label: string, value: HTMLElement | string, unit = ""): HTMLElement =>
      h("div", { class: "rd" }, h("dt", null, label), typeof value === "string" ? h("dd", null, value, unit && h("small", null, `${GAP}${unit}`)) : value);
    const pair = (ms: number | null | undefined): [string, string] => (ms === null || ms === undefined ? ["–", ""] : duration(ms));
    const readouts = h(
      "dl",
      { class: "m-read" },
      reading(t("first_token"), ...pair(timings?.ttft_ms)),
      reading(t("queue_wait"), ...pair(timings?.queue_ms)),
      reading(t("share.tokens"), this.tokens),
      reading(t("share.total"), seconds(this.recording.totalMs), "s"),
    );
    if (this.model.measured_bytes_per_s && this.model.bytes_per_token) readouts.append(this.buildMbu());
    const parts = plateParts({ ...(this.model as ModelCard), title: this.model.title ?? "", ready: true });
    if (this.model.driver) parts.push([t("share.driver", { version: this.model.driver }), false]);
    const how = h("button", { type: "button", class: "how", onClick: () => this.openMeasured(usage) }, icon("info", true), h("span", { class: "vh-xs" }, t("how_measured")));
    const plate = h("div", { class: "plate" }, ...parts.map(([text, strong]) => h("span", null, strong ? h("b", null, text) : text)), how);
    const left = h("div", { class: "m-fig" }, this.lampBox, this.figureBox, this.sub);
    return h("section", { class: "meter", "aria-label": t("share.speed") }, left, h("div", { class: "m-trace" }, this.curve!.element), readouts, this.buildTransport(), plate);
  }

  private buildMbu(): HTMLElement {
    const tick = h("u");
    tick.style.left = `${(100 * this.model.measured_bytes_per_s!) / (this.model.datasheet_bytes_per_s ?? this.model.measured_bytes_per_s!)}%`;
    const line = h("p", null, h("span", null, "MBU ", this.mbuText), this.mbuRate);
    return h("div", { class: "rd mbu" }, h("dt", { class: "vh" }, t("mbu_long")), h("dd", null, line, h("div", { class: "bar", "aria-hidden": "true" }, this.mbuFill, tick)));
  }

  private buildTransport(): HTMLElement {
    const again = button({ icon: "again", kind: "q", name: t("share.from_start"), onClick: () => this.restart() });
    const group = h("div", { class: "seg sm", role: "group", "aria-label": t("share.speed_of_replay") });
    for (const [speed, label] of SPEEDS) {
      const item = h("button", { type: "button", "aria-pressed": speed === this.speed, onClick: () => this.setSpeed(speed) }, label);
      item.setAttribute("aria-pressed", String(speed === this.speed));
      this.speeds.set(speed, item);
      group.append(item);
    }
    const time = h("span", { class: "tm" }, this.clock, h("small", null, ` ${t("share.of", { total: seconds(this.recording.totalMs) })}${GAP}s`));
    return h("div", { class: "transport" }, this.play, again, time, h("span", { class: "sp" }), h("span", { class: "hint hide-s" }, t("share.drag")), group);
  }

  private openMeasured(usage: Answer["usage"]): void {
    const rows: [string, string][] = [
      [t("how_machine"), this.model.device ?? "–"],
      [t("how_backend"), this.model.backend ?? "–"],
      [t("how_precision"), this.model.precision ?? "–"],
      [t("how_prompt"), usage ? num(usage.prompt_tokens) : "–"],
      [t("how_output"), num(this.recording.tokens)],
      [t("decode_rate"), `${num(this.recording.answer.timings?.decode_tokens_per_s ?? 0, 1)}${GAP}${t("unit_rate")}`],
    ];
    const list = h("dl");
    for (const [name, value] of rows) list.append(h("dt", null, name), h("dd", null, value));
    openSheet(t("how_measured"), h("div", { class: "howpop" }, h("p", null, t("how_definition")), h("p", null, t("share.how_replay")), list));
  }

  // Transport -----------------------------------------------------------------------------------------------------------

  private key(event: KeyboardEvent): void {
    const reached = this.recording.charactersAt(this.at);
    const view = this.views[this.shown]!;
    if (event.key === " ") this.toggle();
    else if (event.key === "ArrowRight" || event.key === "ArrowUp") this.jump(this.recording.timeOf(view.neighbour(1, reached)));
    else if (event.key === "ArrowLeft" || event.key === "ArrowDown") this.jump(this.recording.timeOf(view.neighbour(-1, reached)));
    else if (event.key === "Home") this.jump(0);
    else if (event.key === "End") this.jump(this.recording.totalMs);
    else return;
    event.preventDefault();
  }

  private jump(ms: number, write = true): void {
    this.pause();
    this.views[this.shown]!.following = true;
    this.setAt(ms, write);
  }

  private toggle(): void {
    if (this.playing) this.pause();
    else if (this.at >= this.recording.totalMs) this.restart();
    else this.start();
  }

  private restart(): void {
    this.setAt(0);
    if (this.speed === "all") this.setSpeed("1");
    this.start();
  }

  private setSpeed(speed: Speed): void {
    this.speed = speed;
    for (const [key, item] of this.speeds) item.setAttribute("aria-pressed", String(key === speed));
    if (speed === "all") this.jump(this.recording.totalMs);
    else if (this.at >= this.recording.totalMs) this.restart();
    else this.draw();
  }

  private start(): void {
    this.playing = true;
    this.last = performance.now();
    this.views[this.shown]!.following = true;
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame((now) => this.step(now));
    this.draw();
  }

  private pause(): void {
    this.playing = false;
    cancelAnimationFrame(this.frame);
    this.draw();
  }

  private step(now: number): void {
    const passed = now - this.last;
    if (!calm.matches || now - this.drawnAt >= 250) {
      this.last = now;
      this.drawnAt = now;
      this.setAt(this.advanced(passed));
    }
    if (this.at >= this.recording.totalMs) this.pause();
    else if (this.playing) this.frame = requestAnimationFrame((next) => this.step(next));
  }

  private advanced(passedMs: number): number {
    if (this.speed !== "46") return Math.min(this.recording.totalMs, this.at + passedMs * Number(this.speed));
    const tokens = this.recording.samples.totalAt(this.at) + (PACE * passedMs) / 1000;
    return tokens >= this.recording.tokens ? this.recording.totalMs : Math.max(this.at, this.recording.timeOfTokens(tokens));
  }

  private setAt(ms: number, write = true): void {
    this.at = Math.min(this.recording.totalMs, Math.max(0, ms));
    if (write) this.range.value = String(this.at);
    this.views[this.shown]!.show(this.recording.charactersAt(this.at));
    this.draw();
  }

  private draw(): void {
    if (!this.curve) return;
    const { samples, totalMs, answer } = this.recording;
    const ended = this.at >= totalMs;
    const rate = ended ? (answer.timings?.decode_tokens_per_s ?? null) : this.paced ? PACE : samples.rateBetween(this.at - 250, this.at);
    setText(this.figure, rate === null ? "" : num(rate));
    this.figureBox.className = rate === null ? "fig off" : this.paced && !ended ? "fig ink" : "fig";
    const word = this.playing ? (this.paced ? "share.paced" : "share.replay") : ended ? "state_complete" : "share.paused";
    this.lampBox.className = `lamp s-${ended && !this.playing ? "complete" : "streaming"}`;
    this.lampBox.replaceChildren(lamp(ended && !this.playing ? "complete" : this.playing ? "streaming" : "stopped"), t(word));
    setText(this.sub, t(ended ? "share.sub_whole" : this.paced ? "share.sub_paced" : "share.sub_playhead"));
    setText(this.clock, seconds(this.at));
    this.tokens.replaceChildren(num(Math.floor(samples.totalAt(this.at))), h("small", null, ` ${t("share.of", { total: num(this.recording.tokens) })}`));
    this.curve.place(this.at);
    this.headline.style.left = `${(100 * this.at) / totalMs}%`;
    this.range.setAttribute("aria-valuetext", t("share.playhead_text", { at: seconds(this.at), total: seconds(totalMs) }));
    this.drawMbu(rate);
    this.drawPlay();
  }

  private get paced(): boolean {
    return this.speed === "46";
  }

  private drawMbu(rate: number | null): void {
    const { bytes_per_token: bytes, measured_bytes_per_s: measured, datasheet_bytes_per_s: datasheet } = this.model;
    if (!bytes || !measured) return;
    const real = this.paced ? (this.recording.answer.timings?.decode_tokens_per_s ?? null) : rate;
    const use = real === null ? null : bandwidthUse(real, bytes, measured);
    setText(this.mbuText, use === null ? "–" : `${num(use, 1)}${GAP}%`);
    setText(this.mbuRate, real === null ? "" : `${num((real * bytes) / 1e12, 2)} ${t("share.of", { total: num(measured / 1e12, 2) })}${GAP}TB/s`);
    this.mbuFill.style.width = `calc(${Math.min(100, ((real ?? 0) * bytes * 100) / (datasheet ?? measured))}% - 2px)`;
  }

  private drawPlay(): void {
    const name = t(this.playing ? "share.pause" : "share.play");
    if (this.play.title === name) return;
    this.play.title = name;
    this.play.setAttribute("aria-label", name);
    this.play.replaceChildren(this.playing ? pauseIcon() : icon("play"));
  }
}

function pauseIcon(): SVGSVGElement {
  const svg = icon("play");
  svg.querySelector("path")?.setAttribute("d", "M7 4.5v11M13 4.5v11");
  return svg;
}
