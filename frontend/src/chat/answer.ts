import { duration, num, seconds, t, GAP } from "../i18n";
import { button, h, setText } from "../shell/dom";
import type { Generation, Piece } from "../store/generation";
import type { CodeFile, StoredFile } from "../workbench";
import { CodeText } from "../workbench/code-text";
import { kindOf, needsFirstLine, uniqueName } from "./files";
import { MarkdownView, type FenceSink, type MarkdownHost } from "./markdown";

export interface AnswerHost {
  /** Live: a file of the workbench that grows. Null while a finished answer is drawn (its files are handed over at once). */
  beginFile(messageId: string, name: string, language: string): CodeFile | null;
  openFile(messageId: string, name: string): void;
  /** Shows the curve and figures of a run that has ended. */
  showRun(run: Generation): void;
  /** Counts one more answer of the shown path that writes this file: the number of its version. */
  nextVersion(name: string): number;
}

/** Most text taken into the page in one go; a longer piece is cut, and the rest waits for the next turn. */
const SLICE = 4096;

/** Blocks of one part: what a frame lays out anew; parts out of sight are skipped (`content-visibility`). */
const PART_BLOCKS = 10;

/** One answer: grows with its run, and is never drawn again. */
export class AnswerView {
  readonly element: HTMLElement;
  readonly files: StoredFile[] = [];
  readonly ticket = h("p", { class: "ticket", hidden: true });
  readonly actions = h("div", { class: "acts", hidden: true });
  private readonly body = h("div", { class: "body" });
  private readonly markdown: MarkdownView;
  private readonly names = new Set<string>();
  private readonly openChips = new Set<FileChip>();
  private piece = 0;
  private offset = 0;
  private closed = false;

  constructor(
    public messageId: () => string,
    readonly run: Generation | null,
    private readonly host: AnswerHost,
  ) {
    const markdownHost: MarkdownHost = {
      place: () => this.place(),
      imageLabel: (alt) => t("image", { alt: alt || t("image_untitled") }),
      openFence: (info, parent) => new Fence(this, info, parent),
    };
    this.markdown = new MarkdownView(markdownHost);
    this.element = h("article", { class: "ans" }, h("h2", { class: "vh" }, t("answer")), this.body, this.ticket, this.actions);
  }

  /** Draws a text that is complete already. */
  drawStored(pieces: readonly Pick<Piece, "text" | "engineMs">[], complete: boolean): void {
    for (const piece of pieces) this.markdown.append(piece.text, piece.engineMs);
    this.close(complete);
  }

  private place(): HTMLElement {
    const part = this.body.lastElementChild as HTMLElement | null;
    if (part && part.childElementCount < PART_BLOCKS) return part;
    return this.body.appendChild(h("div", { class: "part" }));
  }

  /** Takes what has come since the last call, at most until `deadline` (page clock). True when all is drawn. */
  flush(deadline: number): boolean {
    const run = this.run;
    if (!run || this.closed) return true;
    while (this.piece < run.pieces.length) {
      const piece = run.pieces[this.piece] as { text: string; engineMs: number };
      const part = this.offset === 0 && piece.text.length <= SLICE ? piece.text : piece.text.slice(this.offset, this.offset + SLICE);
      this.markdown.append(part, piece.engineMs);
      this.offset += part.length;
      if (this.offset >= piece.text.length) {
        this.piece++;
        this.offset = 0;
      }
      if (performance.now() > deadline) break;
    }
    for (const chip of this.openChips) chip.refresh();
    const drawn = this.piece >= run.pieces.length;
    if (drawn && run.ended) this.close(run.state === "complete" && run.finishReason !== "length");
    return drawn;
  }

  private close(complete: boolean): void {
    if (this.closed) return;
    this.closed = true;
    this.markdown.end(complete);
    this.openChips.clear();
    this.drawTicket();
  }

  private drawTicket(): void {
    const run = this.run;
    if (!run) return;
    this.ticket.hidden = false;
    const parts: (string | HTMLElement)[] = [];
    if (run.state !== "complete") parts.push(h("span", { class: `lamp s-${run.state}` }, t(`state_${run.state}`)));
    if (run.timings?.decode_tokens_per_s) parts.push(h("b", null, `${num(run.timings.decode_tokens_per_s)}${GAP}${t("unit_rate")}`));
    if (run.tokens > 0) parts.push(h("span", null, t("n_tokens", { n: num(run.tokens) })));
    if (run.totalMs) parts.push(h("span", null, `${seconds(run.totalMs)}${GAP}s`));
    if (run.ttftMs) parts.push(h("span", null, `${t("first_token_low")} ${duration(run.ttftMs).join(GAP)}`));
    if (run.finishReason === "length") parts.push(h("span", null, t("cut_at_limit")));
    this.ticket.replaceChildren(h("button", { type: "button", title: t("show_run"), onClick: () => this.host.showRun(run) }, ...parts));
  }

  /** Used by a fence: makes the file's chip and its sink. */
  openFile(name: string, language: string, parent: HTMLElement): { chip: FileChip; file: CodeFile | null; shown: StoredFile } {
    const unique = uniqueName(name, this.names);
    this.names.add(unique);
    const shown: StoredFile = { messageId: this.messageId(), name: unique, language, text: new CodeText(language) };
    this.files.push(shown);
    const chip = new FileChip(this, shown, this.host);
    parent.append(chip.element);
    const file = this.host.beginFile(shown.messageId, unique, language);
    if (file) this.openChips.add(chip);
    return { chip, file, shown };
  }

  chipDone(chip: FileChip): void {
    this.openChips.delete(chip);
  }
}

/** Stands in the answer for a file that is written into the workbench. */
class FileChip {
  readonly element: HTMLElement;
  lines = 0;
  private readonly facts = h("span");
  private readonly version: number;
  private done = false;

  constructor(
    private readonly answer: AnswerView,
    private readonly shown: StoredFile,
    host: AnswerHost,
  ) {
    this.version = host.nextVersion(shown.name);
    this.element = h(
      "button",
      { type: "button", class: "chip", onClick: () => host.openFile(this.answer.messageId(), this.shown.name) },
      h("span", { class: "mono" }, shown.name),
      this.facts,
    );
  }

  writing(): void {
    this.element.classList.add("on");
    this.refresh();
  }

  refresh(): void {
    setText(this.facts, t(this.done ? "chip_done" : "chip_writing", { v: this.version, n: num(this.lines) }));
  }

  finish(): void {
    this.done = true;
    this.element.classList.remove("on");
    this.refresh();
  }
}

/** Routes the lines of one fence: to a file of the workbench, or into a plain block of the answer. */
class Fence implements FenceSink {
  private waiting = "";
  private waitingMs = 0;
  private target: { chip: FileChip; file: CodeFile | null; shown: StoredFile } | Text | null = null;

  constructor(
    private readonly answer: AnswerView,
    private readonly info: string,
    private readonly parent: HTMLElement,
  ) {
    if (!needsFirstLine(info)) this.open(null);
  }

  append(text: string, engineMs: number): void {
    if (this.target === null) {
      this.waiting += text;
      this.waitingMs = engineMs;
      const newline = this.waiting.indexOf("\n");
      if (newline < 0) return;
      this.open(this.waiting.slice(0, newline));
      this.write(this.waiting, this.waitingMs);
      return;
    }
    this.write(text, engineMs);
  }

  finish(complete: boolean): void {
    if (this.target === null) {
      this.open(this.waiting);
      if (this.waiting) this.write(this.waiting, this.waitingMs);
    }
    const target = this.target as unknown as { chip: FileChip; file: CodeFile | null } | Text;
    if (target instanceof Text) return;
    target.file?.finish(complete);
    target.chip.finish();
    this.answer.chipDone(target.chip);
  }

  private open(firstLine: string | null): void {
    const kind = kindOf(this.info, firstLine);
    if (kind.name !== null) {
      this.target = this.answer.openFile(kind.name, kind.language, this.parent);
      this.target.chip.writing();
      return;
    }
    const text = document.createTextNode("");
    const copy = button({ icon: "copy", kind: "q", small: true, name: t("copy"), onClick: () => void navigator.clipboard?.writeText(text.data) });
    this.parent.append(h("div", { class: "plain" }, h("pre", { dir: "ltr", tabindex: "0" }, text), copy));
    this.target = text;
  }

  private write(text: string, engineMs: number): void {
    const target = this.target;
    if (target instanceof Text) target.appendData(text);
    else if (target) {
      target.shown.text.append(text, engineMs);
      for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) target.chip.lines++;
      target.file?.append(text, engineMs);
    }
  }
}
