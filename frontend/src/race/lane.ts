import type { ModelCard, Params } from "../api/types";
import { duration, num, seconds, t, GAP } from "../i18n";
import { errorText } from "../i18n/errors";
import { Curve } from "../instrument/curve";
import { plateParts } from "../instrument/instrument";
import { drawLine } from "../workbench/stream-view";
import { tokenizeLine, type LineState } from "../workbench/tokens";
import { button, h, lamp, setText, withArrow } from "../shell/dom";
import { notice } from "../shell/layers";
import type { Generation, RunState } from "../store/generation";

const SLICE = 4096;

/** Lines of text with the engine's time at which each began; only appended to. */
class LaneText {
  readonly element: HTMLElement;
  private readonly list = h("ol");
  private line: Text | null = null;
  private language: string | null = null;
  private colour: LineState = "";
  private piece = 0;
  private offset = 0;
  private following = true;
  private count = 0;

  constructor(label: string) {
    this.element = h("div", { class: "lanetext", role: "region", tabindex: "0", "aria-label": label }, this.list);
    this.element.addEventListener("wheel", (event) => event.deltaY < 0 && (this.following = false), { passive: true });
    this.element.addEventListener("scroll", () => {
      if (this.element.scrollTop + this.element.clientHeight >= this.element.scrollHeight - 24) this.following = true;
    });
  }

  clear(): void {
    this.list.replaceChildren();
    this.line = null;
    this.language = null;
    this.piece = this.offset = this.count = 0;
    this.following = true;
  }

  flush(run: Generation, deadline: number): boolean {
    const before = this.piece;
    while (this.piece < run.pieces.length) {
      const piece = run.pieces[this.piece] as { text: string; engineMs: number };
      const part = piece.text.slice(this.offset, this.offset + SLICE);
      this.append(part, piece.engineMs);
      this.offset += part.length;
      if (this.offset >= piece.text.length) {
        this.piece++;
        this.offset = 0;
      }
      if (performance.now() > deadline) break;
    }
    if (this.piece !== before && this.following) this.element.scrollTop = 1e9;
    return this.piece >= run.pieces.length;
  }

  private append(text: string, engineMs: number): void {
    text.split("\n").forEach((part, index) => {
      if (index > 0 || this.line === null) {
        this.finishLine();
        this.line = document.createTextNode(part);
        const code = h("span", { class: "c" }, this.line);
        this.list.append(h("li", null, h("span", { class: "t", "aria-hidden": "true" }, seconds(engineMs)), h("span", { class: "n", "aria-hidden": "true" }, String(++this.count)), code));
      } else if (part) this.line.appendData(part);
    });
  }

  /** Colours the line that has just ended when it stands in a code block; once, as in the workbench. */
  private finishLine(): void {
    const line = this.line;
    if (!line?.parentElement) return;
    const fence = /^\s*(?:```|~~~)\s*([\w+#-]*)/.exec(line.data);
    if (fence) {
      this.language = this.language === null ? (fence[1] as string) || "text" : null;
      this.colour = "";
    } else if (this.language !== null) {
      const text = line.data;
      const { state } = tokenizeLine(this.language, text, this.colour);
      drawLine(line.parentElement, this.language, text, this.colour);
      this.colour = state;
    }
  }
}

/** One lane: selector, lamp, figure, curve, readings, badge, text. */
export class Lane {
  readonly element: HTMLElement;
  readonly select: HTMLSelectElement;
  /** Index of a preset, or "" for the reader's own parameters. */
  readonly presets: HTMLSelectElement;
  readonly stopButton: HTMLButtonElement;
  private readonly copyButton: HTMLButtonElement;
  run: Generation | null = null;
  private card: ModelCard | null = null;
  private readonly lampBox = h("span", { class: "lamp s-idle" });
  private readonly figure = h("span");
  private readonly figureBox = h("p", { class: "fig off" }, this.figure, h("small", null, t("unit_rate")));
  private readonly sub = h("p", { class: "m-sub" });
  private readonly curve: Curve;
  private readonly first = h("dd", null, "–");
  private readonly tokens = h("dd", null, "–");
  private readonly time = h("dd", null, "–");
  private readonly timeName = h("dt", null, t("elapsed"));
  private readonly plate = h("div", { class: "plate" });
  private readonly text: LaneText;
  private state: RunState | null = null;
  private drawnAt = -Infinity;

  constructor(
    readonly letter: "A" | "B",
    options: { value: string; label: string }[],
    value: string,
    presets: string[],
    onChange: () => void,
    onStop: () => void,
  ) {
    this.curve = new Curve(t("read_bound"), letter === "B");
    this.text = new LaneText(t("race_text", { lane: letter }));
    this.select = h("select", { class: "field", "aria-label": t("race_lane", { lane: letter }), onChange });
    for (const option of options) this.select.append(h("option", { value: option.value }, option.label));
    this.select.value = value;
    this.presets = h("select", { class: "field", "aria-label": t("race_parameters", { lane: letter }), onChange }, h("option", { value: "" }, t("race_own_parameters")));
    presets.forEach((label, index) => this.presets.append(h("option", { value: index }, label)));
    this.stopButton = button({ icon: "stop", label: t("race_stop", { lane: letter }), kind: "stop", onClick: onStop });
    this.stopButton.hidden = true;
    this.copyButton = button({ icon: "copy", kind: "q", name: t("race_copy", { lane: letter }), onClick: () => void navigator.clipboard?.writeText(this.run?.text ?? "").then(() => notice(t("copied"))) });
    const reading = (name: HTMLElement, cell: HTMLElement): HTMLElement => h("div", { class: "rd" }, name, cell);
    this.element = h(
      "section",
      { class: `lane ${letter.toLowerCase()}`, "aria-label": t("race_lane", { lane: letter }) },
      h("div", { class: "lh" }, h("span", { class: "badge", "aria-hidden": "true" }, letter), withArrow(this.select), withArrow(this.presets), this.copyButton, this.stopButton, this.lampBox),
      h(
        "div",
        { class: "lm" },
        h("div", null, this.figureBox, this.sub),
        h("div", { class: "lt" }, this.curve.element),
        h("dl", { class: "lr" }, reading(h("dt", null, t("first_token")), this.first), reading(h("dt", null, t("tokens")), this.tokens), reading(this.timeName, this.time)),
      ),
      this.plate,
      this.text.element,
    );
    this.bind(null, null, null, null);
  }

  /** `params`: what is or would be asked; null: this lane replays the other one, at `replayRate`. */
  bind(run: Generation | null, card: ModelCard | null, params: Params | null, replayRate: number | null): void {
    this.run = run;
    this.card = card;
    this.state = null;
    this.text.clear();
    this.curve.start(run?.samples ?? null, replayRate === null ? (card?.bound_tokens_per_s ?? null) : null, replayRate ?? 60);
    const drawn = params && `${t("temperature")} ${num(params.temperature, 2)}, top-p ${num(params.top_p, 2)}`;
    const parts: [string, boolean][] = replayRate === null ? plateParts(card).filter(([text]) => text !== card?.title) : [[t("race_replay"), true], [`${num(replayRate)}${GAP}${t("unit_rate")}`, false]];
    if (drawn) parts.push([drawn, false]);
    this.presets.disabled = params === null;
    this.plate.replaceChildren(...parts.map(([text, strong]) => h("span", null, strong ? h("b", null, text) : text)));
    this.update(0);
  }

  get rate(): number | null {
    const run = this.run;
    if (!run) return null;
    if (run.ended && run.timings?.decode_tokens_per_s) return run.timings.decode_tokens_per_s;
    return run.samples.live()?.rate ?? null;
  }

  /** Long enough for its rate to be compared. */
  get comparable(): boolean {
    const run = this.run;
    return run !== null && run.samples.count > 1 && (run.ended || run.samples.lastMs - (run.samples.firstMs ?? 0) >= 250) && this.rate !== null;
  }

  /** Draws what has come; true when nothing is left to draw. */
  update(deadline: number): boolean {
    const run = this.run;
    const state = run?.state ?? "idle";
    const now = performance.now();
    const drawn = run ? this.text.flush(run, deadline) : true;
    if (state !== this.state) {
      this.state = state;
      this.lampBox.className = `lamp s-${state}`;
      this.lampBox.replaceChildren(lamp(state), t(`state_${state}`));
      this.drawnAt = -Infinity;
    }
    this.curve.update({ waitMs: run && !run.ended && run.startedAt > 0 && run.samples.count === 0 ? now - run.startedAt : null, live: state === "streaming", held: state === "interrupted" || state === "reconnecting", rate: this.rate });
    if (now - this.drawnAt < 100) return drawn;
    this.drawnAt = now;
    this.stopButton.hidden = run === null || run.ended;
    this.copyButton.disabled = !run?.tokens;
    const rate = this.rate;
    if (rate === null) {
      this.figureBox.className = "fig off";
      if (!this.figure.querySelector("b")) this.figure.replaceChildren(h("b", { class: "vh" }, t("no_value")));
    } else {
      this.figureBox.className = state === "interrupted" || state === "reconnecting" ? "fig hold" : state === "stopped" ? "fig ink" : "fig";
      this.figure.textContent = num(rate);
    }
    setText(this.sub, this.subLine(state));
    setText(this.first, run?.ttftMs == null ? "–" : duration(run.ttftMs).join(GAP));
    setText(this.tokens, run === null ? "–" : num(run.tokens));
    setText(this.timeName, t(run?.ended ? "race_finished_label" : "elapsed"));
    setText(this.time, run?.totalMs == null ? "–" : `${seconds(run.totalMs)}${GAP}s`);
    this.curve.describe(`${t("race_lane", { lane: this.letter })}: ${this.figure.textContent ?? ""} ${t("unit_rate")}, ${this.card?.title ?? t("race_replay")}`);
    return drawn;
  }

  private subLine(state: RunState): string {
    const run = this.run;
    if (state === "idle") return "";
    if (state === "streaming") return t(run?.samples.live()?.windowMs === 1000 ? "sub_live_1s" : "sub_live");
    if (state === "complete") return t("sub_complete");
    if (state === "stopped") return t("sub_stopped", { n: run?.tokens ?? 0 });
    if (state === "queued" && run?.position) return run.position === 1 ? t("sub_next") : t("sub_queued", { n: run.position - 1 });
    if (state === "queued") return t("sub_sent");
    return run?.error ? errorText(run.error, run.tokens) : t(`state_${state}`);
  }
}
