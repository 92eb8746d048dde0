import { seconds } from "../i18n";
import { h } from "../shell/dom";
import type { CodeText } from "./code-text";
import { tokenizeLine, type LineState } from "./tokens";

const BLOCK = 64;
const INDEX_BUDGET_MS = 6;
const PADDING_TOP = 8;
const PADDING_BOTTOM = 12;

interface Row {
  code: HTMLElement;
  coloured: boolean;
}

interface Block {
  element: HTMLElement;
  rows: Row[];
}

/** Fills `target` with the line's text, coloured from its start state. */
export function drawLine(target: Element, language: string, line: string, state: LineState): void {
  target.textContent = "";
  let at = 0;
  for (const span of tokenizeLine(language, line, state).spans) {
    if (span.from > at) target.append(line.slice(at, span.from));
    target.append(h("span", { class: span.cls }, line.slice(span.from, span.to)));
    at = span.to;
  }
  if (at < line.length || line === "") target.append(line.slice(at));
}

/**
 * The light view of a file: one element a line, only the blocks near the viewport in the page, nothing repainted once written.
 * The line being written is one text node that grows; it is coloured once, when it ends. No layout is read while drawing.
 */
export class StreamView {
  readonly element: HTMLElement;
  following = true;
  onFollowChange: (following: boolean) => void = () => {};
  onTopLine: (line: number) => void = () => {};
  private readonly canvas: HTMLElement;
  private readonly head = h("i", { class: "wb-head", "aria-hidden": "true" });
  private text: CodeText | null = null;
  private blocks = new Map<number, Block>();
  private marks = new Map<number, string>();
  private openNode: Text | null = null;
  private openLength = 0;
  lineHeight = 20;
  private top = 0;
  private height = 600;
  private target = 0;
  /** Where the last scroll event was. */
  private seen = 0;
  private frame = 0;
  private topLine = -1;
  private widest = 0;
  private drawnHeight = -1;

  constructor(label: string) {
    this.canvas = h("div", { class: "wb-canvas" });
    this.element = h("div", { class: "wb-code", tabindex: "0", role: "group", "aria-label": label, dir: "ltr" }, this.canvas);
    this.element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    this.element.addEventListener("wheel", (event) => event.deltaY < 0 && this.follow(false), { passive: true });
    document.addEventListener("selectionchange", () => {
      const selection = document.getSelection();
      if (this.following && selection && !selection.isCollapsed && this.canvas.contains(selection.anchorNode)) this.follow(false);
    });
    new ResizeObserver((entries) => {
      const box = entries[0]!.contentRect;
      if (box.height === 0) return;
      this.height = box.height;
      this.lineHeight = parseFloat(getComputedStyle(this.element).lineHeight) || 20;
      for (const [index, block] of this.blocks) this.position(index, block);
      this.drawnHeight = -1;
      this.schedule();
    }).observe(this.element);
  }

  /** Shows another text, at its end while it is being written, else at its top (or at `scrollTop`). */
  show(text: CodeText | null, scrollTop = 0): void {
    this.text = text;
    this.canvas.textContent = "";
    this.blocks.clear();
    this.marks.clear();
    this.openNode = null;
    this.topLine = -1;
    this.widest = 0;
    this.drawnHeight = -1;
    this.top = scrollTop;
    this.follow(text !== null && !text.complete);
    if (this.following) return this.schedule(); // while an answer writes, files may come faster than frames
    this.draw();
    this.element.scrollTop = scrollTop;
  }

  /** The text has grown or ended: draw at the next frame. */
  schedule(): void {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  follow(on: boolean): void {
    if (on === this.following) return;
    this.following = on;
    this.onFollowChange(on);
    if (on) this.schedule();
  }

  mark(line: number, message: string): void {
    this.marks.set(line, message);
    const row = this.blocks.get(Math.floor(line / BLOCK))?.rows[line % BLOCK];
    if (row) this.applyMark(row.code.parentElement!, message);
  }

  clearMarks(): void {
    for (const row of this.canvas.querySelectorAll(".wb-bad")) {
      row.classList.remove("wb-bad");
      row.removeAttribute("title");
    }
    this.marks.clear();
  }

  reveal(line: number): void {
    this.follow(false);
    this.element.scrollTop = Math.max(0, PADDING_TOP + line * this.lineHeight - this.height / 2);
  }

  get shownText(): CodeText | null {
    return this.text;
  }

  /** As of the last scroll event or frame: reading it costs no layout. */
  get scrollTop(): number {
    return this.top;
  }

  private endTop(): number {
    return Math.max(0, this.canvasHeight() - this.height);
  }

  /** Room under the last line makes the view at the end begin with a whole line. */
  private canvasHeight(): number {
    const needed = PADDING_TOP + (this.text?.lineCount ?? 0) * this.lineHeight + PADDING_BOTTOM;
    const above = needed - this.height - PADDING_TOP;
    return above <= 0 ? needed : needed + Math.ceil(above / this.lineHeight) * this.lineHeight - above;
  }

  /** A step back from the end is the reader's; the end itself may move back when the pane grows. */
  private scrolled(): void {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const atEnd = scrollTop >= scrollHeight - clientHeight - 2;
    if (this.following && !atEnd && scrollTop < this.seen - 2) this.follow(false);
    this.seen = scrollTop;
    this.top = scrollTop;
    if (!this.following && atEnd && this.text && !this.text.complete) this.follow(true);
    this.schedule();
  }

  private draw(): void {
    const text = this.text;
    if (!text) return;
    const indexed = text.index(INDEX_BUDGET_MS);
    if (this.following) {
      this.target = this.endTop();
      this.top = this.target;
    }
    const height = this.canvasHeight();
    if (height !== this.drawnHeight) this.canvas.style.height = `${(this.drawnHeight = height)}px`;
    if (text.widest > this.widest) {
      this.widest = text.widest;
      this.canvas.style.setProperty("--wb-columns", String(this.widest));
    }
    const first = Math.max(0, Math.floor((this.top - this.height) / this.lineHeight / BLOCK));
    const last = Math.floor(Math.min(text.lineCount - 1, (this.top + 2 * this.height) / this.lineHeight) / BLOCK);
    for (const [index, block] of this.blocks) {
      if (index < first || index > last) {
        block.element.remove();
        this.blocks.delete(index);
      }
    }
    const finished = text.complete ? text.lineCount : text.lines.length - 1;
    for (let index = first; index <= last; index++) this.fill(index, Math.min(finished, (index + 1) * BLOCK));
    this.drawOpenLine(text);
    if (this.following) this.element.scrollTop = this.target;
    const topLine = Math.max(0, Math.ceil((this.top - PADDING_TOP) / this.lineHeight));
    if (topLine !== this.topLine || !indexed) this.onTopLine((this.topLine = topLine));
    if (!indexed) this.schedule();
  }

  /** Draws what is missing of a block: lines up to `end`, and colours that had to wait for the index. */
  private fill(index: number, end: number): void {
    const text = this.text!;
    let block = this.blocks.get(index);
    if (!block) {
      block = { element: h("div", { class: "wb-block" }), rows: [] };
      this.position(index, block);
      this.blocks.set(index, block);
      this.canvas.append(block.element);
    }
    for (let line = index * BLOCK; line < end; line++) {
      const row = block.rows[line % BLOCK] ?? this.addRow(block, line);
      if (row.coloured) continue;
      if (line < text.indexed) {
        drawLine(row.code, text.language, text.lines[line]!, text.states[line]!);
        row.coloured = true;
      } else if (row.code.textContent !== text.lines[line]) row.code.textContent = text.lines[line]!;
    }
  }

  private drawOpenLine(text: CodeText): void {
    if (text.complete) {
      this.head.remove();
      this.openNode = null;
      return;
    }
    const line = text.lines.length - 1;
    const index = Math.floor(line / BLOCK);
    const block = this.blocks.get(index);
    const content = text.lines[line]!;
    if (!block || line >= text.lineCount) {
      // The next line has not begun: the write head waits at the end of the last one.
      const previous = this.blocks.get(Math.floor((line - 1) / BLOCK))?.rows[(line - 1) % BLOCK];
      if (previous && this.head.parentElement !== previous.code) previous.code.append(this.head);
      this.openNode = null;
      return;
    }
    let row = block.rows[line % BLOCK];
    if (!row) {
      row = this.addRow(block, line);
      this.openNode = null;
    }
    if (!this.openNode || this.openNode.parentElement !== row.code) {
      this.openNode = document.createTextNode(content);
      row.code.replaceChildren(this.openNode, this.head);
    } else if (content.length > this.openLength) {
      this.openNode.appendData(content.slice(this.openLength));
    }
    this.openLength = content.length;
  }

  private addRow(block: Block, line: number): Row {
    const ms = this.text!.times[line]!;
    const code = h("span", { class: "c" });
    const element = h(
      "div",
      { class: "wb-line" },
      h("span", { class: "t", "aria-hidden": "true" }, ms < 0 ? "" : seconds(ms)),
      h("span", { class: "n", "aria-hidden": "true" }, String(line + 1)),
      code,
    );
    const mark = this.marks.get(line);
    if (mark) this.applyMark(element, mark);
    block.element.append(element);
    const row = { code, coloured: false };
    block.rows[line % BLOCK] = row;
    return row;
  }

  private applyMark(element: HTMLElement, message: string): void {
    element.classList.add("wb-bad");
    element.title = message;
  }

  private position(index: number, block: Block): void {
    block.element.style.top = `${PADDING_TOP + index * BLOCK * this.lineHeight}px`;
  }
}
