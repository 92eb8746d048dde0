import { seconds, t } from "../../i18n";
import { h, setText } from "../../shell/dom";
import { drawLine } from "../../workbench/stream-view";
import { tokenizeLine, type LineState } from "../../workbench/tokens";
import type { Part, Recording } from "./recording";

interface Row {
  element: HTMLElement;
  time: HTMLButtonElement | null;
  code: HTMLElement;
}

/** A file or the text of an answer up to the playhead. Lines are made once; a move shows, hides or cuts only what changed. */
export class CodeView {
  readonly element: HTMLElement;
  following = true;
  private readonly list = h("ol");
  private readonly rows: Row[];
  /** The colour state in which each line begins. */
  private readonly states: LineState[] = [];
  private readonly head = h("i", { class: "wb-head", "aria-hidden": "true" });
  /** Lines before this one are whole, lines after it hidden. */
  private current = -1;
  private focusable = 0;

  constructor(
    private readonly part: Part,
    private readonly recording: Recording,
    private readonly onJump: (ms: number) => void,
  ) {
    let state: LineState = "";
    this.rows = part.lines.map((line) => {
      const code = h("span", { class: "c" });
      this.states.push(state);
      drawLine(code, part.language, line.text, state);
      state = tokenizeLine(part.language, line.text, state).state;
      const time = recording.recorded ? this.timeButton(recording.timeOf(Math.min(line.start, recording.answer.text.length - 1))) : null;
      const element = h("li", { hidden: true }, time, code);
      return { element, time, code };
    });
    this.list.append(...this.rows.map((row) => row.element));
    this.list.addEventListener("keydown", (event) => this.walk(event));
    this.element = h("div", { class: part.name ? "code" : "code prose", role: "region", tabindex: "0", "aria-label": part.name ?? t("share.answer"), dir: part.name ? "ltr" : "auto" }, this.list);
    this.element.addEventListener("wheel", (event) => {
      if (event.deltaY < 0) this.following = false;
    }, { passive: true });
  }

  /** Shows what had arrived when `characters` of the answer were there. */
  show(characters: number): void {
    const lines = this.part.lines;
    let next = this.lineAt(characters);
    const whole = next >= lines.length;
    if (whole) next = lines.length;
    const from = Math.max(0, Math.min(this.current, next));
    const to = Math.min(lines.length - 1, Math.max(this.current, next));
    if (this.current >= 0 && this.current < lines.length) this.restore(this.current);
    for (let i = this.current < 0 ? 0 : from; i <= (this.current < 0 ? lines.length - 1 : to); i++) this.rows[i]!.element.hidden = i > next;
    this.current = next;
    if (whole) this.head.remove();
    else this.cut(next, characters);
    if (this.following && !this.element.matches(":focus-within ol")) this.element.scrollTop = this.element.scrollHeight;
  }

  /** Start of the line before or after the playhead, in characters of the answer. */
  neighbour(step: 1 | -1, characters: number): number {
    const lines = this.part.lines;
    if (step === 1) return lines.find((line) => line.start > characters)?.start ?? this.recording.answer.text.length;
    for (let i = lines.length - 1; i >= 0; i--) if (lines[i]!.start < characters) return lines[i]!.start;
    return 0;
  }

  /** The line being written: the first whose end has not been reached; its number is the count of lines when all are there. */
  private lineAt(characters: number): number {
    const lines = this.part.lines;
    let low = 0;
    let high = lines.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (lines[middle]!.end < characters || characters >= this.recording.answer.text.length) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  private cut(index: number, characters: number): void {
    const line = this.part.lines[index]!;
    const shown = Math.max(0, characters - line.start);
    const row = this.rows[index]!;
    row.element.hidden = characters < line.start;
    setText(row.code, line.text.slice(0, shown));
    if (!row.element.hidden) row.code.append(this.head);
  }

  private restore(index: number): void {
    drawLine(this.rows[index]!.code, this.part.language, this.part.lines[index]!.text, this.states[index]!);
  }

  private timeButton(ms: number): HTMLButtonElement {
    const button = h("button", { type: "button", class: "t", tabindex: "-1", "aria-label": t("share.jump", { time: seconds(ms) }) }, seconds(ms));
    button.addEventListener("click", () => this.onJump(ms));
    return button;
  }

  /** The times are one stop for the Tab key; arrows walk them. */
  private walk(event: KeyboardEvent): void {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !(event.target instanceof HTMLButtonElement)) return;
    event.preventDefault();
    const shown = this.rows.filter((row) => !row.element.hidden);
    const at = shown.findIndex((row) => row.time === event.target);
    const next = shown[Math.min(shown.length - 1, Math.max(0, at + step))];
    this.makeFocusable(this.rows.indexOf(next!));
    next?.time?.focus();
  }

  makeFocusable(index: number): void {
    this.rows[this.focusable]?.time?.setAttribute("tabindex", "-1");
    this.focusable = index;
    this.rows[index]?.time?.setAttribute("tabindex", "0");
  }
}
