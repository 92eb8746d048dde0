import type { ModelCard } from "../api/types";
import { num, t } from "../i18n";
import { button, h, icon, setText, withArrow } from "../shell/dom";
import { countLines, filesIn, pastedText, textFile, type Attachment, type GivenFile } from "./attachment";

export interface ComposerActions {
  send(text: string): void;
  stop(): void;
  openParameters(): void;
  chooseModel(name: string): void;
  draft(text: string): void;
  editLast(): void;
  cancelEdit(): void;
  /** So many files were attached. */
  attached(count: number): void;
  /** Files that were not attached: why, one each. */
  refuse(reasons: string[]): void;
}

/** What is pasted or dropped and longer than this stays out of the text box: laying out 20,000 lines there freezes a page. */
const LARGE_CHARS = 8000;
const LARGE_LINES = 200;
/** Pasted texts over this are not kept for a reload: part of one would pass for the whole. */
const LARGEST_DRAFT = 1_000_000;
const CHARS_PER_TOKEN = 3.6;

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
  private attachments: readonly Attachment[] = [];
  private context = 0;
  private baseTokens = 0;
  private uncounted = 0;
  private composing = false;
  /** How many times files were given that are still being read. */
  private reading = 0;

  constructor(
    private readonly actions: ComposerActions,
    models: ModelCard[],
    /** The largest message that the server takes. */
    private readonly limitBytes: number,
  ) {
    this.box = h("textarea", { id: "message", rows: 2, placeholder: t("placeholder_first"), enterkeyhint: "send", dir: "auto" });
    this.model = h("select", { class: "btn q", "aria-label": t("model") });
    for (const card of models) this.model.append(h("option", { value: card.name }, card.title));
    this.model.addEventListener("change", () => actions.chooseModel(this.model.value));
    const sliders = button({ icon: "sliders", kind: "q", name: t("parameters"), onClick: () => actions.openParameters() });
    const chosen = h("input", { type: "file", multiple: true, hidden: true });
    const attach = button({ icon: "clip", kind: "q", name: t("attach"), onClick: () => chosen.click() });
    chosen.addEventListener("change", () => {
      void this.takeFiles([...(chosen.files ?? [])].map((file) => ({ file, folder: false })));
      chosen.value = ""; // the same file may be chosen again
    });
    this.sendButton = button({ label: t("send"), kind: "p", key: t("key_enter") });
    this.sendButton.type = "submit";
    this.stopButton = button({ icon: "stop", label: t("stop"), kind: "stop", key: t("key_esc"), onClick: () => actions.stop() });
    this.stopButton.hidden = true;
    const row = h(
      "div",
      { class: "row" },
      withArrow(this.model),
      sliders,
      attach,
      chosen,
      this.count,
      h("span", { class: "sp" }),
      this.sendButton,
      this.stopButton,
    );
    const hint = h("p", { class: "drophint", "aria-hidden": "true" }, icon("clip"), t("drop_files"));
    this.element = h("form", { class: "composer" }, this.editing, this.attachedRow, h("label", { class: "vh", for: "message" }, t("message")), this.box, row, hint);
    this.element.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    this.box.addEventListener("compositionstart", () => (this.composing = true));
    this.box.addEventListener("compositionend", () => (this.composing = false));
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("paste", (event) => this.take(event, event.clipboardData));
    this.box.addEventListener("input", () => this.changed());
  }

  get text(): string {
    return this.box.value;
  }

  /** The whole request: the box, then pasted texts and files that were kept out of it. */
  get request(): string {
    return [this.box.value, ...this.attachments.map((one) => one.text)].filter((part) => part.trim()).join("\n\n");
  }

  focus(): void {
    this.box.focus();
  }

  set(text: string): void {
    const large = isLarge(text);
    this.restore({ box: large ? "" : text, attachments: large ? [pastedText(text)] : [] });
  }

  clear(): void {
    this.set("");
  }

  get typed(): Typed {
    return { box: this.box.value, attachments: this.attachments };
  }

  restore(typed: Typed): void {
    this.box.value = typed.box;
    this.attach(typed.attachments);
  }

  /** Files may be dropped anywhere on `pane`, and it shows that while some are over it. */
  takeDrops(pane: HTMLElement): void {
    pane.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "copy";
      pane.classList.add("dropping");
    });
    pane.addEventListener("dragleave", (event) => {
      if (!pane.contains(event.relatedTarget as Node | null)) pane.classList.remove("dropping");
    });
    pane.addEventListener("drop", (event) => {
      pane.classList.remove("dropping");
      this.take(event, event.dataTransfer);
    });
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
    if (this.stopButton.hidden && !this.sendButton.disabled) this.actions.send(this.request);
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

  private take(event: Event, data: DataTransfer | null): void {
    if (!data) return;
    // What is copied from a document or a table may come with its picture: its text is meant.
    const files = event.type === "paste" && data.types.includes("text/html") ? [] : filesIn(data);
    const text = data.getData("text/plain");
    if (files.length === 0 && !isLarge(text)) return;
    event.preventDefault();
    if (files.length > 0) void this.takeFiles(files);
    else this.attach([...this.attachments, pastedText(text)]);
  }

  /** Attaches those that are text and fit into the message; until all are read, nothing is sent. */
  private async takeFiles(files: GivenFile[]): Promise<void> {
    this.reading++;
    this.sendButton.disabled = true;
    const read: Attachment[] = [];
    const reasons: string[] = [];
    for (const file of files) {
      try {
        read.push(await textFile(file, this.limitBytes, this.limitBytes - charsOf([...this.attachments, ...read])));
      } catch (error) {
        reasons.push((error as Error).message);
      }
    }
    this.sendButton.disabled = --this.reading > 0;
    this.attach([...this.attachments, ...read]);
    if (read.length > 0) this.actions.attached(read.length);
    if (reasons.length > 0) this.actions.refuse(reasons);
    this.box.focus();
  }

  private attach(attachments: readonly Attachment[]): void {
    this.attachments = attachments;
    this.drawAttached();
    this.changed();
  }

  private drawAttached(): void {
    this.attachedRow.hidden = this.attachments.length === 0;
    this.attachedRow.replaceChildren(...this.attachments.map((one) => this.chip(one)));
  }

  private chip(one: Attachment): HTMLElement {
    const { name, lines, kb } = one;
    const size = t("lines_kb", { n: lines, kb });
    const remove = (): void => {
      this.attach(this.attachments.filter((other) => other !== one));
      this.box.focus();
    };
    return h(
      "span",
      null,
      icon("doc", true),
      name ? h("span", { class: "mono", title: name }, name) : t("pasted", { size }),
      name && h("span", { class: "size" }, size),
      button({ icon: "close", kind: "q", small: true, name: name ? t("remove_file", { name }) : t("remove_pasted"), onClick: remove }),
    );
  }

  private changed(): void {
    this.drawCount();
    const whole = this.request;
    this.actions.draft(this.attachments.length && whole.length <= LARGEST_DRAFT ? whole : this.box.value);
  }

  private drawCount(): void {
    const length = this.uncounted + this.box.value.length + charsOf(this.attachments);
    const tokens = this.baseTokens + Math.ceil(length / CHARS_PER_TOKEN);
    const exact = length === 0;
    setText(this.count, this.context ? `${exact ? "" : "≈\u2009"}${num(tokens)} ${t("of")} ${num(this.context)}` : "");
    this.count.title = t("count_title");
    this.count.classList.toggle("over", this.context > 0 && tokens > this.context);
  }
}

function charsOf(attachments: readonly Attachment[]): number {
  return attachments.reduce((sum, one) => sum + one.text.length, 0);
}

function isLarge(text: string): boolean {
  return text.length > LARGE_CHARS || (text.length > LARGE_LINES && countLines(text) > LARGE_LINES);
}
