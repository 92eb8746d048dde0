import type { ModelCard } from "../api/types";
import { num, t } from "../i18n";
import { button, h, icon, setText, withArrow } from "../shell/dom";

export interface ComposerActions {
  send(text: string): void;
  stop(): void;
  openParameters(): void;
  chooseModel(name: string): void;
  draft(text: string): void;
  editLast(): void;
  cancelEdit(): void;
}

/** What is pasted or dropped and longer than this stays out of the text box: laying out 20,000 lines there freezes a page. */
const LARGE_CHARS = 8000;
const LARGE_LINES = 200;
/** Pasted texts over this are not kept for a reload: part of one would pass for the whole. */
const LARGEST_DRAFT = 1_000_000;
const CHARS_PER_TOKEN = 3.6;

interface Attachment {
  text: string;
  lines: number;
}

/** What stands in the message box, to be put back when a request is refused. */
export interface Typed {
  box: string;
  attachments: readonly Attachment[];
}

export class Composer {
  readonly element: HTMLFormElement;
  readonly errors = h("div", { class: "errors" });
  private readonly box: HTMLTextAreaElement;
  private readonly attachedRow = h("div", { class: "attached", hidden: true });
  private readonly editing = h("div", { class: "editing", hidden: true });
  private readonly count = h("span", { class: "cnt" });
  private readonly model: HTMLSelectElement;
  private readonly sendButton: HTMLButtonElement;
  private readonly stopButton: HTMLButtonElement;
  private attachments: Attachment[] = [];
  private context = 0;
  private baseTokens = 0;
  private uncounted = 0;
  private composing = false;

  constructor(
    private readonly actions: ComposerActions,
    models: ModelCard[],
  ) {
    this.box = h("textarea", { id: "message", rows: 2, placeholder: t("placeholder_first"), enterkeyhint: "send", dir: "auto" });
    this.model = h("select", { class: "btn q", "aria-label": t("model") });
    for (const card of models) this.model.append(h("option", { value: card.name }, card.title));
    this.model.addEventListener("change", () => actions.chooseModel(this.model.value));
    const sliders = button({ icon: "sliders", kind: "q", name: t("parameters"), onClick: () => actions.openParameters() });
    this.sendButton = button({ label: t("send"), kind: "p", key: t("key_enter") });
    this.sendButton.type = "submit";
    this.stopButton = button({ icon: "stop", label: t("stop"), kind: "stop", key: t("key_esc"), onClick: () => actions.stop() });
    this.stopButton.hidden = true;
    const row = h(
      "div",
      { class: "row" },
      withArrow(this.model),
      sliders,
      this.count,
      h("span", { class: "sp" }),
      this.sendButton,
      this.stopButton,
    );
    this.element = h("form", { class: "composer" }, this.editing, this.attachedRow, h("label", { class: "vh", for: "message" }, t("message")), this.box, row);
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.box.addEventListener("compositionstart", () => (this.composing = true));
    this.box.addEventListener("compositionend", () => (this.composing = false));
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("paste", (event) => this.takeLarge(event, event.clipboardData));
    this.box.addEventListener("drop", (event) => this.takeLarge(event, event.dataTransfer));
    this.box.addEventListener("input", () => this.changed());
  }

  get text(): string {
    return this.box.value;
  }

  /** The whole request: the box, then pasted texts that were kept out of it. */
  get request(): string {
    return [this.box.value, ...this.attachments.map((one) => one.text)].filter((part) => part.trim()).join("\n\n");
  }

  focus(): void {
    this.box.focus();
  }

  set(text: string): void {
    this.attachments = [];
    if (isLarge(text)) {
      this.box.value = "";
      this.attach(text);
    } else this.box.value = text;
    this.drawAttached();
    this.changed();
  }

  clear(): void {
    this.set("");
  }

  get typed(): Typed {
    return { box: this.box.value, attachments: this.attachments };
  }

  restore(typed: Typed): void {
    this.box.value = typed.box;
    this.attachments = [...typed.attachments];
    this.drawAttached();
    this.changed();
  }

  running(active: boolean): void {
    this.stopButton.hidden = !active;
    this.sendButton.hidden = active;
  }

  placeholder(first: boolean): void {
    this.box.placeholder = t(first ? "placeholder_first" : "placeholder_next");
  }

  useModel(name: string, contextTokens: number): void {
    this.model.value = name;
    this.context = contextTokens;
    this.drawCount();
  }

  /** Tokens that the conversation so far takes, as the engine counted them, and the characters of one that nobody counted. */
  useBase(tokens: number, uncounted = 0): void {
    this.baseTokens = tokens;
    this.uncounted = uncounted;
    this.drawCount();
  }

  showEditing(on: boolean): void {
    this.editing.hidden = !on;
    if (on) this.editing.replaceChildren(h("span", null, t("editing")), button({ label: t("cancel"), kind: "q", small: true, onClick: () => this.actions.cancelEdit() }));
  }

  private submit(): void {
    if (this.stopButton.hidden) this.actions.send(this.request);
  }

  private key(event: KeyboardEvent): void {
    // An input method that composes uses Enter itself; Safari says so by keyCode 229 alone.
    const composing = this.composing || event.isComposing || event.keyCode === 229;
    if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey && !composing) {
      event.preventDefault();
      this.submit();
    } else if (event.key === "ArrowUp" && this.box.value === "" && !composing) {
      event.preventDefault();
      this.actions.editLast();
    }
  }

  private takeLarge(event: Event, data: DataTransfer | null): void {
    const text = data?.getData("text/plain") ?? "";
    if (!isLarge(text)) return;
    event.preventDefault();
    this.attach(text);
    this.drawAttached();
    this.changed();
  }

  private attach(text: string): void {
    this.attachments.push({ text, lines: countLines(text) });
  }

  private drawAttached(): void {
    this.attachedRow.hidden = this.attachments.length === 0;
    this.attachedRow.replaceChildren(
      ...this.attachments.map((one) =>
        h(
          "span",
          null,
          icon("doc", true),
          t("pasted", { n: num(one.lines), kb: num(one.text.length / 1000) }),
          button({
            icon: "close",
            kind: "q",
            small: true,
            name: t("remove_pasted"),
            onClick: () => {
              this.attachments = this.attachments.filter((other) => other !== one);
              this.drawAttached();
              this.changed();
              this.box.focus();
            },
          }),
        ),
      ),
    );
  }

  private changed(): void {
    this.drawCount();
    const whole = this.request;
    this.actions.draft(this.attachments.length && whole.length <= LARGEST_DRAFT ? whole : this.box.value);
  }

  private drawCount(): void {
    const length = this.uncounted + this.box.value.length + this.attachments.reduce((sum, one) => sum + one.text.length, 0);
    const tokens = this.baseTokens + Math.ceil(length / CHARS_PER_TOKEN);
    const exact = length === 0;
    setText(this.count, this.context ? `${exact ? "" : "≈\u2009"}${num(tokens)} ${t("of")} ${num(this.context)}` : "");
    this.count.title = t("count_title");
    this.count.classList.toggle("over", this.context > 0 && tokens > this.context);
  }
}

function isLarge(text: string): boolean {
  return text.length > LARGE_CHARS || (text.length > LARGE_LINES && countLines(text) > LARGE_LINES);
}

function countLines(text: string): number {
  let lines = 1;
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) lines++;
  return lines;
}
