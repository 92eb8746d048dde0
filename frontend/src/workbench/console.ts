import { num } from "../i18n";
import type { OutputItem, OutputKind } from "../sandbox/protocol";
import { button, h, setText } from "../shell/dom";
import { lineIcon } from "./icons";

type Translate = (key: string, vars?: object) => string;

const STEP = 5;
const SMALLEST = 15;
const LARGEST = 85;
const MOST_CHARACTERS = 1_200_000;

/** The console row and what opens under it: the preview of a page and the printed output. */
export class ConsolePane {
  readonly element: HTMLElement;
  readonly preview: HTMLElement;
  readonly fix: HTMLButtonElement;
  readonly stop: HTMLButtonElement;
  private readonly status = h("span", { class: "wb-status" });
  private readonly follow = h("span", { class: "wb-follow" });
  private readonly toggle: HTMLButtonElement;
  private readonly grip: HTMLElement;
  private readonly log: HTMLElement;
  private readonly empty: HTMLElement;
  private percent = 40;
  private open = false;
  private lastKind: OutputKind | "" = "";
  private lastText: Text | null = null;
  private characters = 0;
  private dropped = 0;
  private droppedLine: HTMLElement | null = null;

  constructor(
    private readonly pane: HTMLElement,
    private readonly codePane: HTMLElement,
    private readonly t: Translate,
  ) {
    this.toggle = h("button", { type: "button", class: "wb-toggle", "aria-expanded": "false" }, lineIcon("console"), h("span", null, t("workbench.console")));
    this.toggle.title = t("workbench.console.open");
    this.toggle.addEventListener("click", () => this.setOpen(!this.open));
    this.fix = button({ label: t("workbench.fix"), small: true, class: "wb-fix" });
    this.stop = button({ label: t("workbench.stop"), icon: "stop", kind: "stop", small: true });
    this.grip = h("div", { class: "wb-grip", role: "separator", tabindex: "0", "aria-orientation": "horizontal", "aria-label": t("workbench.console.resize") });
    this.grip.setAttribute("aria-valuemin", String(SMALLEST));
    this.grip.setAttribute("aria-valuemax", String(LARGEST));
    this.empty = h("p", { class: "wb-none" }, t("workbench.console.empty"));
    this.log = h("div", { class: "wb-log", tabindex: "0", role: "group", "aria-label": t("workbench.console.log"), dir: "auto" }, this.empty);
    this.preview = h("div", { class: "wb-preview", hidden: true });
    this.element = h(
      "div",
      { class: "wb-console" },
      this.grip,
      h("div", { class: "wb-crow" }, this.toggle, this.status, h("span", { class: "wb-sp" }), this.fix, this.stop, this.follow),
      h("div", { class: "wb-cbody" }, this.preview, this.log),
    );
    this.fix.hidden = true;
    this.stop.hidden = true;
    this.listenToGrip();
    this.resize();
    pane.append(this.element);
    new ResizeObserver(() => this.resize()).observe(codePane.parentElement ?? codePane);
  }

  setOpen(open: boolean): void {
    this.open = open;
    this.element.classList.toggle("wb-open", open);
    this.toggle.setAttribute("aria-expanded", String(open));
    this.toggle.title = this.t(open ? "workbench.console.close" : "workbench.console.open");
    this.resize();
  }

  setStatus(text: string, kind: "" | "bad" | "live" = ""): void {
    setText(this.status, text);
    this.status.title = text;
    this.status.className = `wb-status ${kind && `wb-${kind}`}`;
  }

  /** What stands at the right end: "Following" with its key, or nothing. */
  setFollowing(on: boolean): void {
    this.follow.replaceChildren(...(on ? [this.t("workbench.following"), " ", h("kbd", null, "F")] : []));
  }

  clear(): void {
    this.log.replaceChildren(this.empty);
    this.lastKind = "";
    this.lastText = null;
    this.characters = 0;
    this.dropped = 0;
    this.droppedLine = null;
    this.fix.hidden = true;
  }

  write(items: OutputItem[], dropped: number): void {
    // The log stays at its end unless the reader scrolled away; one read before the writes.
    const atEnd = this.log.scrollTop + this.log.clientHeight >= this.log.scrollHeight - 24;
    for (const [kind, text] of items) this.add(kind, text);
    if (dropped > 0) this.countDropped(dropped);
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  private add(kind: OutputKind, text: string): void {
    if (this.characters > MOST_CHARACTERS || !text) return;
    this.characters += text.length;
    this.empty.remove();
    if (this.lastKind === kind && this.lastText) {
      this.lastText.appendData(text);
      return;
    }
    const known = ["out", "err", "warn", "info"].includes(kind) ? kind : "out";
    this.lastText = document.createTextNode(text);
    this.lastKind = kind;
    this.log.insertBefore(h("pre", { class: `wb-${known}` }, this.lastText), this.droppedLine);
  }

  private countDropped(more: number): void {
    this.dropped += more;
    if (!this.droppedLine) {
      this.droppedLine = h("p", { class: "wb-dropped" });
      this.log.append(this.droppedLine);
    }
    setText(this.droppedLine, this.t("workbench.dropped", { n: num(this.dropped) }));
  }

  /** Height in px of the whole column, so that the share of the console means the same before and after it opens. */
  private resize(): void {
    const whole = this.codePane.clientHeight + this.pane.clientHeight;
    this.grip.setAttribute("aria-valuenow", String(this.percent));
    this.element.style.height = this.open && whole ? `${Math.max(88, Math.round((whole * this.percent) / 100))}px` : "";
  }

  private setPercent(percent: number): void {
    this.percent = Math.round(Math.min(LARGEST, Math.max(SMALLEST, percent)));
    this.resize();
  }

  private listenToGrip(): void {
    this.grip.addEventListener("keydown", (event) => {
      const moves: Record<string, number> = { ArrowUp: this.percent + STEP, ArrowDown: this.percent - STEP, Home: SMALLEST, End: LARGEST };
      const next = moves[event.key];
      if (next === undefined) return;
      event.preventDefault();
      this.setPercent(next);
    });
    this.grip.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.grip.setPointerCapture(event.pointerId);
      // A frame under the pointer would take the moves.
      this.element.classList.add("wb-dragging");
      const bottom = this.element.getBoundingClientRect().bottom;
      const whole = this.codePane.clientHeight + this.pane.clientHeight;
      const move = (at: PointerEvent): void => this.setPercent(((bottom - at.clientY) / whole) * 100);
      this.grip.addEventListener("pointermove", move);
      const end = (): void => {
        this.grip.removeEventListener("pointermove", move);
        this.element.classList.remove("wb-dragging");
      };
      this.grip.addEventListener("pointerup", end, { once: true });
      this.grip.addEventListener("pointercancel", end, { once: true });
    });
  }
}
