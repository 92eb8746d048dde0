import { num, seconds } from "../i18n";
import type { EndReason, Preview, Run, RunListener, WorkerHost } from "../sandbox/runner";
import type { RunError } from "../sandbox/protocol";
import { button, h, icon, setText } from "../shell/dom";
import { CodeText } from "./code-text";
import { ConsolePane } from "./console";
import { downloadFile, downloadZip } from "./download";
import type { Editor } from "./editor";
import { codeOf, ConversationFiles, type PlainFile, type StoredFile, type Version } from "./files";
import { lineIcon } from "./icons";
import { drawLine, StreamView } from "./stream-view";
import { languageFamily } from "./tokens";
import "./workbench.css";

export type { PlainFile, StoredFile } from "./files";

/** One file while an answer writes it. */
export interface CodeFile {
  append(text: string, engineMs: number): void;
  /** `complete` is false where the answer ended inside the block. */
  finish(complete: boolean): void;
}

export interface Workbench {
  beginFile(opts: { conversationId: string; messageId: string; name: string; language: string }): CodeFile;
  showConversation(id: string, files: StoredFile[]): void;
  open(messageId: string, name: string): void;
  clear(): void;
  /** Called whenever the set of hand-edited files that the model lacks changes; an empty list takes the last one back. */
  onAskWithCode(cb: (files: PlainFile[]) => void): void;
  onFixIt(cb: (info: PlainFile & { error: string }) => void): void;
  /** A request with these hand-edited files was accepted. */
  codeWasSent(files: PlainFile[]): void;
}

type Translate = (key: string, vars?: object) => string;

/** Conversations whose files stay in memory: the shown one and those a stream may still write to. */
const MOST_CONVERSATIONS = 8;

/**
 * Builds the code pane and the console into the two elements. When the reader runs a file, the event `workbench-output` leaves
 * the code pane, for a layout that shows one pane at a time.
 */
export function createWorkbench(codePane: HTMLElement, consolePane: HTMLElement, opts: { t: Translate }): Workbench {
  return new Bench(codePane, consolePane, opts.t);
}

class Bench implements Workbench {
  private readonly conversations = new Map<string, ConversationFiles>();
  private files: ConversationFiles | null = null;
  private shown: Version | null = null;
  private editor: Editor | null = null;
  private diffBase: string | null = null;
  private run: Run | null = null;
  private runKind: "worker" | "preview" | "live" | null = null;
  /** The live preview, and up to where (line, characters of that line) it has been fed. */
  private live: { version: Version; preview: Preview; line: number; fed: number } | null = null;
  private host: WorkerHost | null = null;
  private marked: { version: Version; line: number; message: string } | null = null;
  private lastError: (PlainFile & { error: string }) | null = null;
  private runStarted = 0;
  private clock = 0;
  private scopeLine = -2;
  private scopeText: CodeText | null = null;
  private editTimer = 0;
  private askWithCode: (files: PlainFile[]) => void = () => {};
  private askToFix: (info: PlainFile & { error: string }) => void = () => {};

  private readonly tabs: HTMLElement;
  private readonly version: HTMLSelectElement;
  private readonly versionBox: HTMLElement;
  private readonly edit: HTMLButtonElement;
  private readonly diff: HTMLButtonElement;
  private readonly copy: HTMLButtonElement;
  private readonly download: HTMLButtonElement;
  private readonly menu: HTMLElement;
  private readonly runButton: HTMLButtonElement;
  private readonly scope: HTMLElement;
  private readonly scopeNumber = h("span", { class: "wb-sn" });
  private readonly scopeCode = h("span", { class: "c" });
  private readonly panel: HTMLElement;
  private readonly stream: StreamView;
  private readonly editHost: HTMLElement;
  private readonly jump: HTMLButtonElement;
  private readonly note: HTMLElement;
  private readonly hint: HTMLElement;
  private readonly diffRow: HTMLElement;
  private readonly diffSelect: HTMLSelectElement;
  private readonly empty: HTMLElement;
  private readonly console: ConsolePane;

  constructor(
    private readonly codePane: HTMLElement,
    private readonly consolePane: HTMLElement,
    private readonly t: Translate,
  ) {
    name(codePane, t("workbench.code"));
    name(consolePane, t("workbench.output"));
    this.tabs = h("div", { class: "wb-tabs", role: "tablist", "aria-label": t("workbench.files") });
    this.version = h("select", { class: "wb-select", "aria-label": t("workbench.version") });
    this.versionBox = h("span", { class: "wb-selbox wb-wide" }, this.version, icon("down", true));
    this.edit = button({ icon: "edit", label: t("workbench.edit"), kind: "q", class: "wb-wide wb-edit", onClick: () => void this.openEditor() });
    this.diff = button({ label: t("workbench.diff"), kind: "q", class: "wb-wide", onClick: () => void this.toggleDiff() });
    this.diff.prepend(lineIcon("diff"));
    this.diff.setAttribute("aria-pressed", "false");
    this.copy = button({ icon: "copy", kind: "q", name: t("workbench.copy"), onClick: () => void this.copyCode() });
    this.download = button({ icon: "download", kind: "q", name: t("workbench.download"), onClick: () => this.toggleMenu() });
    this.download.setAttribute("aria-haspopup", "menu");
    this.download.setAttribute("aria-expanded", "false");
    this.menu = h(
      "div",
      { class: "wb-menu", role: "menu", "aria-label": t("workbench.download"), hidden: true },
      this.menuItem("workbench.download.one", () => downloadFile(this.plain())),
      this.menuItem("workbench.download.all", () => void downloadZip("code.zip", this.files!.bundle(this.shown!))),
    );
    this.runButton = button({ label: t("workbench.run"), icon: "play", class: "wb-run", onClick: () => this.runOrStop() });
    this.scope = h("div", { class: "wb-scope", "aria-hidden": "true" }, this.scopeNumber, this.scopeCode);
    this.stream = new StreamView(t("workbench.code"));
    this.editHost = h("div", { class: "wb-edithost", hidden: true });
    this.jump = button({ label: t("workbench.jump"), small: true, class: "wb-jump", key: "F", onClick: () => this.toEnd() });
    this.jump.hidden = true;
    this.note = h("p", { class: "wb-note", hidden: true });
    this.hint = h("p", { class: "wb-hint", id: "wb-hint", hidden: true });
    this.diffSelect = h("select", { class: "wb-select", id: "wb-diff-with" });
    this.diffRow = h("div", { class: "wb-diffrow", hidden: true }, h("label", { for: "wb-diff-with" }, t("workbench.diff.with")), h("span", { class: "wb-selbox" }, this.diffSelect, icon("down", true)), h("span", { class: "wb-same" }));
    this.empty = h("p", { class: "wb-empty" }, t("workbench.empty"));
    this.panel = h("div", { class: "wb-panel", role: "tabpanel", id: "wb-panel" }, this.scope, this.stream.element, this.editHost, this.jump, this.hint);
    codePane.append(
      h("div", { class: "wb-bar" }, this.tabs, h("span", { class: "wb-sp" }), this.versionBox, this.edit, this.diff, this.copy, h("span", { class: "wb-menubox" }, this.download, this.menu), this.runButton),
      this.note,
      this.diffRow,
      this.empty,
      this.panel,
    );
    this.console = new ConsolePane(consolePane, codePane, t);
    this.listen();
    this.render();
  }

  // --- What the chat calls -------------------------------------------------------------------------------------------

  beginFile(opts: { conversationId: string; messageId: string; name: string; language: string }): CodeFile {
    const files = this.conversation(opts.conversationId);
    const version = files.add(opts.messageId, opts.name, opts.language, new CodeText(opts.language), false);
    if (!this.files) this.files = files;
    if (this.files === files) {
      this.select(version);
      if (languageFamily(opts.language) === "html") void this.startLive(version);
    }
    return {
      append: (text, engineMs) => {
        if (version.text.complete) return;
        version.text.append(text, engineMs);
        if (this.shown === version) this.stream.schedule();
        if (this.live?.version === version) this.feedLive();
      },
      finish: (complete) => {
        if (version.text.complete) return;
        version.text.complete = true;
        version.closed = complete;
        files.restore(version);
        if (this.live?.version === version) this.endLive();
        if (this.shown !== version) return;
        this.stream.schedule();
        this.stream.follow(false);
        this.follows();
        this.render();
        this.announceEdits();
      },
    };
  }

  showConversation(id: string, given: StoredFile[]): void {
    const same = this.files?.id === id;
    const files = this.conversation(id);
    files.reconcile(given);
    if (!same) {
      this.stopRun();
      this.console.clear();
    }
    this.files = files;
    const all = [...files.names.values()].flat();
    const keep = same && this.shown && all.includes(this.shown) ? this.shown : null;
    const next = keep ?? all.find((version) => !version.text.complete) ?? this.newest(given) ?? null;
    if (next !== this.shown || !next) this.select(next);
    else this.render();
    this.announceEdits();
  }

  open(messageId: string, fileName: string): void {
    const version = this.files?.find(messageId, fileName);
    if (version && version !== this.shown) this.select(version);
  }

  clear(): void {
    this.stopRun();
    this.console.clear();
    this.files = null;
    this.select(null);
    this.announceEdits();
  }

  onAskWithCode(cb: (files: PlainFile[]) => void): void {
    this.askWithCode = cb;
  }

  onFixIt(cb: (info: PlainFile & { error: string }) => void): void {
    this.askToFix = cb;
  }

  codeWasSent(files: PlainFile[]): void {
    if (files.length === 0 || !this.files) return;
    this.files.markSent(files);
    this.announceEdits();
    this.renderHint();
  }

  // --- Files and versions --------------------------------------------------------------------------------------------

  private conversation(id: string): ConversationFiles {
    let files = this.conversations.get(id);
    if (files) this.conversations.delete(id);
    files ??= new ConversationFiles(id, () => this.say(this.t("workbench.full")));
    this.conversations.set(id, files);
    for (const [old, other] of this.conversations) {
      if (this.conversations.size <= MOST_CONVERSATIONS) break;
      const writing = [...other.names.values()].flat().some((version) => !version.text.complete);
      if (other !== files && other !== this.files && !writing) this.conversations.delete(old);
    }
    return files;
  }

  private newest(given: { messageId: string; name: string }[]): Version | undefined {
    const last = given[given.length - 1];
    return last && this.files?.find(last.messageId, last.name);
  }

  private plain(): PlainFile {
    const { name: fileName, language } = this.shown!;
    return { name: fileName, language, code: codeOf(this.shown!) };
  }

  private select(version: Version | null): void {
    this.leaveEditor();
    if (this.shown) this.shown.scrollTop = this.stream.scrollTop;
    this.shown = version;
    this.scopeLine = -2;
    this.say("");
    this.render();
    this.showStream();
  }

  /** Draws the shown version in the light view: as written, or as edited. */
  private showStream(): void {
    const version = this.shown;
    const text = version?.edited != null ? CodeText.of(version.language, version.edited) : (version?.text ?? null);
    if (version?.edited != null && text) keepTimes(text, version.text);
    this.stream.element.hidden = false;
    this.stream.show(text, version?.scrollTop ?? 0);
    if (this.marked?.version === version && this.marked) this.stream.mark(this.marked.line, this.marked.message);
    this.follows();
  }

  private announceEdits(): void {
    this.askWithCode(this.files?.editedFiles() ?? []);
  }

  // --- The bar -------------------------------------------------------------------------------------------------------

  /** Brings the bar in line with the state. Called when a file, a version or a run begins or ends, never per token. */
  private render(): void {
    const version = this.shown;
    this.empty.hidden = version !== null;
    this.panel.hidden = version === null;
    this.codePane.classList.toggle("wb-idle", version === null);
    this.renderTabs();
    const versions = version ? this.files!.names.get(version.name)! : [];
    this.fillVersions(this.version, versions, version);
    this.versionBox.hidden = !version;
    this.codePane.classList.toggle("wb-several", versions.length > 1 || versions.some((one) => one.edited !== null));
    const complete = version?.text.complete ?? false;
    this.edit.hidden = !complete || this.editor !== null;
    this.diff.hidden = !version;
    this.diff.disabled = !complete || (versions.length < 2 && version?.edited == null);
    this.copy.disabled = this.download.disabled = !version;
    if (version) {
      const label = complete && !this.editor ? "workbench.view.hint" : "workbench.view";
      this.stream.element.setAttribute("aria-label", this.t(label, { name: version.name }));
    }
    this.renderRun();
    this.renderHint();
  }

  private renderTabs(): void {
    const names = [...(this.files?.names.keys() ?? [])];
    const focused = this.tabs.contains(document.activeElement);
    while (this.tabs.childElementCount > names.length) this.tabs.lastElementChild!.remove();
    names.forEach((fileName, index) => {
      const tab = this.tabs.children[index] ?? this.tabs.appendChild(this.newTab(index));
      setText(tab, fileName);
    });
    this.tabs.hidden = names.length === 0;
    const at = this.shown ? names.indexOf(this.shown.name) : -1;
    const selected = this.tabs.children[at] as HTMLElement | undefined;
    const before = this.tabs.querySelector("[aria-selected=true]");
    if (before !== selected) {
      before?.setAttribute("aria-selected", "false");
      before?.setAttribute("tabindex", "-1");
      selected?.setAttribute("aria-selected", "true");
      selected?.setAttribute("tabindex", "0");
      if (names.length > 1) requestAnimationFrame(() => selected?.scrollIntoView({ block: "nearest", inline: "nearest" }));
    }
    if (selected) this.panel.setAttribute("aria-labelledby", selected.id);
    if (focused) selected?.focus();
  }

  private newTab(index: number): HTMLElement {
    const tab = h("button", { type: "button", class: "wb-tab", role: "tab", id: `wb-tab-${index}`, "aria-selected": "false", "aria-controls": "wb-panel", tabindex: "-1" });
    tab.addEventListener("click", () => {
      const version = this.files!.names.get(tab.textContent!)!.at(-1)!;
      if (version.name !== this.shown?.name) this.select(version);
    });
    return tab;
  }

  private versionName(versions: Version[], version: Version): string {
    return this.t(version.edited === null ? "workbench.version.n" : "workbench.version.edited", { n: versions.indexOf(version) + 1 });
  }

  private fillVersions(select: HTMLSelectElement, versions: Version[], chosen: Version | null): void {
    select.replaceChildren(...versions.map((version, index) => h("option", { value: index, selected: version === chosen }, this.versionName(versions, version))));
  }

  private renderRun(): void {
    const version = this.shown;
    const working = this.runKind === "worker";
    const can = version !== null && runnable(version.language);
    const label = this.t(working ? "workbench.stop" : "workbench.run");
    this.runButton.querySelector(".ic")!.replaceWith(icon(working ? "stop" : "play", true));
    setText(this.runButton.querySelector(".lb")!, label);
    this.runButton.disabled = !working && !(can && version.text.complete);
    this.runButton.title = working ? `${label} (Esc)` : `${label} (${/Mac|iP/.test(navigator.platform) ? "⌘" : "Ctrl"} Enter)`;
    this.console.stop.hidden = this.runKind === null;
    if (this.runKind || this.lastError || this.console.element.dataset.ended) return;
    if (version && !can) this.console.setStatus(this.t("workbench.status.cannot"));
    else if (version && !version.text.complete) this.console.setStatus(this.t("workbench.status.waiting"));
    else this.console.setStatus(version ? this.t("workbench.status.ready") : "");
  }

  private renderHint(): void {
    this.hint.hidden = this.editor === null || this.diffBase !== null;
    setText(this.hint, this.t("workbench.editor.hint"));
    if (this.shown?.edited != null) this.say(this.t(this.shown.sent ? "workbench.edited.sent" : "workbench.edited"), { label: this.t("workbench.revert"), act: () => this.revert() });
    else if (this.note.dataset.kind === "edited") this.say("");
  }

  /** One line under the bar, with at most one action. */
  private say(text: string, action?: { label: string; act: () => void }): void {
    this.note.hidden = !text;
    this.note.dataset.kind = action ? "edited" : "";
    if (this.note.firstChild?.textContent === text && this.note.childNodes.length === (action ? 2 : 1)) return;
    this.note.replaceChildren(h("span", null, text));
    if (action) this.note.append(button({ label: action.label, kind: "q", small: true, onClick: action.act }));
  }

  private async copyCode(): Promise<void> {
    try {
      await navigator.clipboard.writeText(this.editor && this.diffBase === null ? this.editor.code() : codeOf(this.shown!));
      this.copy.title = this.t("workbench.copied");
      this.copy.classList.add("wb-did");
      setTimeout(() => {
        this.copy.title = this.t("workbench.copy");
        this.copy.classList.remove("wb-did");
      }, 1500);
    } catch {
      this.say(this.t("workbench.copyFailed"));
    }
  }

  private menuItem(key: string, act: () => void): HTMLButtonElement {
    const item = h("button", { type: "button", role: "menuitem", tabindex: "-1" }, this.t(key));
    item.addEventListener("click", () => {
      this.closeMenu();
      act();
    });
    return item;
  }

  private toggleMenu(): void {
    if (!this.menu.hidden) return this.closeMenu();
    if ((this.files?.names.size ?? 0) < 2) return downloadFile(this.plain());
    this.menu.hidden = false;
    this.download.setAttribute("aria-expanded", "true");
    (this.menu.firstElementChild as HTMLElement).focus();
  }

  private closeMenu(): void {
    if (this.menu.hidden) return;
    this.menu.hidden = true;
    this.download.setAttribute("aria-expanded", "false");
    this.download.focus();
  }

  // --- Reading: follow and the enclosing definition ------------------------------------------------------------------

  private follows(): void {
    const writing = this.shown !== null && !this.shown.text.complete;
    this.console.setFollowing(writing && this.stream.following);
    this.jump.hidden = !writing || this.stream.following;
  }

  private toEnd(): void {
    if (this.shown && !this.shown.text.complete) this.stream.follow(true);
    else this.stream.element.scrollTop = this.stream.element.scrollHeight;
    this.stream.element.focus({ preventScroll: true });
  }

  private showScope(top: number): void {
    const text = this.scopeText;
    if (!text) return;
    let line = top;
    while (line < text.indexed && line < top + 5 && !text.lines[line]!.trim()) line++;
    const holder = text.enclosing[line] ?? -1;
    if (holder === this.scopeLine) return;
    this.scopeLine = holder;
    setText(this.scopeNumber, holder < 0 ? "" : String(holder + 1));
    if (holder < 0) setText(this.scopeCode, "");
    else drawLine(this.scopeCode, text.language, text.lines[holder]!.trimStart(), "");
  }

  // --- Editing -------------------------------------------------------------------------------------------------------

  private async openEditor(caret?: { line: number; column: number }): Promise<void> {
    const version = this.shown;
    if (!version?.text.complete || this.editor || this.diffBase !== null) return;
    const { openEditor } = await import("./editor");
    if (this.shown !== version || this.editor) return;
    version.scrollTop = this.stream.scrollTop;
    this.editHost.hidden = false;
    this.editor = openEditor({ ...this.editorOptions(version), readOnly: false, onChange: (code) => this.changed(version, code) });
    this.stream.element.hidden = true;
    if (caret) this.editor.setCaret(caret.line, caret.column);
    if (this.marked?.version === version) this.editor.mark(this.marked.line, this.marked.message);
    this.editor.focus();
    this.render();
  }

  private editorOptions(version: Version): Omit<Parameters<typeof import("./editor")["openEditor"]>[0], "readOnly" | "onChange"> {
    const text = version.edited === null ? version.text : keepTimes(CodeText.of(version.language, version.edited), version.text);
    return {
      parent: this.editHost,
      code: codeOf(version),
      language: version.language,
      label: this.t("workbench.view", { name: version.name }),
      describedBy: "wb-hint",
      times: text.times,
      scrollTop: version.scrollTop,
      lineHeight: this.stream.lineHeight,
      t: this.t,
      onEscape: () => setText(this.hint, this.t("workbench.editor.leave")),
      onTopLine: (line) => this.showScope(line),
    };
  }

  private changed(version: Version, code: string): void {
    const before = [version.edited === null, version.sent];
    this.files!.setEdit(version, code);
    this.scopeText = null;
    if (before[0] !== (version.edited === null) || before[1]) this.render();
    else setText(this.hint, this.t("workbench.editor.hint"));
    clearTimeout(this.editTimer);
    this.editTimer = window.setTimeout(() => {
      this.announceEdits();
      if (this.editor && this.shown === version) this.indexScope(code);
    }, 250);
  }

  private indexScope(code: string): void {
    const text = CodeText.of(this.shown!.language, code);
    text.index(30);
    this.scopeText = text;
    this.scopeLine = -2;
    this.showScope(Math.max(0, Math.ceil((this.editor!.scrollTop() - 8) / this.stream.lineHeight)));
  }

  private leaveEditor(): void {
    if (!this.editor) return;
    if (this.shown) this.shown.scrollTop = this.editor.scrollTop();
    this.editor.destroy();
    this.editor = null;
    this.editHost.hidden = true;
    this.diffBase = null;
    this.diffRow.hidden = true;
    this.diff.setAttribute("aria-pressed", "false");
    this.codePane.classList.remove("wb-diffing");
  }

  private revert(): void {
    const version = this.shown!;
    const scrollTop = this.editor?.scrollTop() ?? this.stream.scrollTop;
    this.leaveEditor();
    this.files!.setEdit(version, version.text.text);
    version.scrollTop = scrollTop;
    this.clearMark();
    this.render();
    this.showStream();
    this.stream.element.focus({ preventScroll: true });
    this.announceEdits();
  }

  // --- Diff ----------------------------------------------------------------------------------------------------------

  /** What the shown text can be compared with: its own written text when edited, and every other version. */
  private diffChoices(): { label: string; code: string }[] {
    const version = this.shown!;
    const versions = this.files!.names.get(version.name)!;
    const own = version.edited === null ? [] : [{ label: this.t("workbench.diff.written", { n: versions.indexOf(version) + 1 }), code: version.text.text }];
    const others = versions.filter((other) => other !== version && other.text.complete);
    const before = others.filter((other) => versions.indexOf(other) < versions.indexOf(version)).reverse();
    const after = others.filter((other) => !before.includes(other));
    return [...own, ...[...before, ...after].map((other) => ({ label: this.versionName(versions, other), code: codeOf(other) }))];
  }

  private async toggleDiff(choice = 0): Promise<void> {
    const version = this.shown;
    if (this.diffBase !== null && choice === 0) {
      this.leaveEditor();
      this.render();
      this.showStream();
      return;
    }
    if (!version?.text.complete) return;
    const choices = this.diffChoices();
    const base = choices[choice];
    if (!base) return;
    const { openDiff } = await import("./editor");
    if (this.shown !== version) return;
    this.leaveEditor();
    this.diffBase = base.code;
    this.codePane.classList.add("wb-diffing");
    this.diff.setAttribute("aria-pressed", "true");
    this.diffSelect.replaceChildren(...choices.map((one, index) => h("option", { value: index, selected: index === choice }, one.label)));
    this.diffRow.hidden = false;
    setText(this.diffRow.lastElementChild!, base.code === codeOf(version) ? this.t("workbench.diff.same") : "");
    (this.diffRow.lastElementChild as HTMLElement).hidden = base.code !== codeOf(version);
    this.editHost.hidden = false;
    this.stream.element.hidden = true;
    this.editor = openDiff({ ...this.editorOptions(version), readOnly: true, onChange: () => {}, onTopLine: () => {} }, base.code);
    this.render();
  }

  // --- Running -------------------------------------------------------------------------------------------------------

  private runOrStop(): void {
    if (this.runKind === "worker") this.run?.stop();
    else void this.start();
  }

  private stopRun(): void {
    const run = this.run;
    this.run = null;
    run?.stop();
    this.live = null;
    this.runKind = null;
    clearInterval(this.clock);
  }

  private async start(): Promise<void> {
    const version = this.shown;
    if (!version?.text.complete || !runnable(version.language)) return;
    this.stopRun();
    this.begin();
    this.codePane.dispatchEvent(new CustomEvent("workbench-output", { bubbles: true }));
    const code = codeOf(version);
    const family = languageFamily(version.language);
    const bundle = this.files!.bundle(version);
    const page = family === "python" ? null : pageFor(version, code, bundle);
    const { Preview, WorkerHost } = await import("../sandbox/runner");
    const guard = page === null ? null : (await import("../sandbox/loop-guard")).guardLoops;
    if (this.shown !== version) return;
    if (page === null) {
      this.runKind = "worker";
      this.host ??= new WorkerHost(this.consolePane);
      this.console.preview.hidden = true;
      const listener = this.listener(version, () => this.run);
      if (family === "python") {
        this.console.setStatus(this.t("workbench.status.starting"), "live");
        this.run = this.host.runPython(bundle, version.name, this.t("workbench.input"), listener);
      } else this.run = this.host.runScript(code, listener);
    } else {
      this.runKind = "preview";
      const preview = this.openPreview(Preview, version, guard!, bundle);
      preview.write(page);
      preview.close();
    }
    this.renderRun();
  }

  private begin(): void {
    this.clearMark();
    this.console.clear();
    this.console.preview.replaceChildren();
    this.lastError = null;
    delete this.console.element.dataset.ended;
    this.console.setOpen(true);
  }

  private openPreview(Type: typeof Preview, version: Version, guard: (code: string) => string, bundle: PlainFile[]): Preview {
    this.console.preview.hidden = false;
    const words = { loop: this.t("workbench.loop"), blocked: this.t("workbench.blocked") };
    const preview: Preview = new Type(this.console.preview, this.t("workbench.console.preview", { name: version.name }), this.listener(version, () => preview), words, guard, bundle);
    this.run = preview;
    this.console.setStatus(this.t(this.runKind === "live" ? "workbench.status.live" : "workbench.status.preview"), "live");
    return preview;
  }

  private async startLive(version: Version): Promise<void> {
    this.stopRun();
    this.begin();
    this.runKind = "live";
    const [{ Preview }, { guardLoops }] = await Promise.all([import("../sandbox/runner"), import("../sandbox/loop-guard")]);
    if (this.shown !== version || this.runKind !== "live") return;
    const preview = this.openPreview(Preview, version, guardLoops, this.files!.bundle(version));
    this.live = { version, preview, line: 0, fed: 0 };
    this.feedLive();
    if (version.text.complete) this.endLive();
    this.renderRun();
  }

  /** Hands the preview what has been written since the last time. */
  private feedLive(): void {
    const live = this.live!;
    const { lines } = live.version.text;
    const last = lines.length - 1;
    for (; live.line <= last; live.line++) {
      const rest = lines[live.line]!.slice(live.fed);
      live.preview.write(live.line < last ? `${rest}\n` : rest);
      if (live.line === last) {
        live.fed += rest.length;
        return;
      }
      live.fed = 0;
    }
  }

  private endLive(): void {
    this.live!.preview.close();
    this.live = null;
    this.runKind = "preview";
    this.console.setStatus(this.t("workbench.status.preview"), "live");
  }

  private listener(version: Version, current: () => Run | null): RunListener {
    const mine = (): boolean => this.run !== null && this.run === current();
    return {
      loading: (done, total) => {
        const mb = (bytes: number): string => num(bytes / 1e6, 1);
        const text = done < total ? this.t("workbench.status.loading", { done: mb(done), total: mb(total) }) : this.t("workbench.status.starting");
        this.console.setStatus(text, "live");
      },
      started: () => {
        this.runStarted = performance.now();
        if (this.runKind === "worker") this.tick();
      },
      output: (items, dropped) => this.console.write(items, dropped),
      error: (error) => void this.failed(version, error),
      end: (reason) => {
        if (mine() || this.run === null) this.ended(reason);
      },
    };
  }

  private tick(): void {
    clearInterval(this.clock);
    const show = (): void => this.console.setStatus(this.t("workbench.status.running", { s: num((performance.now() - this.runStarted) / 1000, 1) }), "live");
    show();
    this.clock = window.setInterval(show, 250);
  }

  private async failed(version: Version, given: RunError): Promise<void> {
    let error = given;
    if (!given.line && given.message.startsWith("SyntaxError") && languageFamily(version.language) === "javascript") {
      const line = (await import("../sandbox/loop-guard")).syntaxErrorLine(codeOf(version));
      error = { ...given, line, details: line ? `${given.details}\n    at line ${line}` : given.details };
    }
    this.console.write([["err", error.details.endsWith("\n") ? error.details : `${error.details}\n`]], 0);
    if (this.lastError && this.runKind !== "worker") return;
    const where = error.line ? this.t("workbench.status.error", { name: shortError(error.message), line: error.line }) : this.t("workbench.status.errorAnywhere", { name: shortError(error.message) });
    this.lastError = { name: version.name, language: version.language, code: codeOf(version), error: error.details };
    this.console.setStatus(where, "bad");
    this.console.fix.hidden = false;
    if (error.line) this.mark(version, error.line - 1, error.message);
  }

  private mark(version: Version, line: number, message: string): void {
    this.clearMark();
    this.marked = { version, line, message };
    if (this.shown !== version) return;
    const view = this.editor ?? this.stream;
    view.mark(line, message);
    if (this.runKind === "worker") view.reveal(line);
  }

  private clearMark(): void {
    this.marked = null;
    this.stream.clearMarks();
    this.editor?.clearMarks();
  }

  private ended(reason: EndReason): void {
    clearInterval(this.clock);
    const s = seconds(performance.now() - this.runStarted);
    this.run = null;
    this.runKind = null;
    this.live = null;
    this.console.element.dataset.ended = reason;
    if (reason === "done" && !this.lastError) this.console.setStatus(this.t("workbench.status.done", { s }));
    else if (reason === "failed" && !this.lastError) this.console.setStatus(this.t("workbench.status.noSandbox"), "bad");
    else if (reason === "stopped" || reason === "limit" || reason === "hung" || reason === "flood") this.console.setStatus(this.t(`workbench.status.${reason}`, { s }), reason === "stopped" ? "" : "bad");
    this.renderRun();
  }

  // --- Events --------------------------------------------------------------------------------------------------------

  private listen(): void {
    this.stream.onFollowChange = () => this.follows();
    this.stream.onTopLine = (line) => {
      if (this.editor) return;
      this.scopeText = this.stream.shownText;
      this.showScope(line);
    };
    this.version.addEventListener("change", () => this.select(this.files!.names.get(this.shown!.name)![Number(this.version.value)]!));
    this.diffSelect.addEventListener("change", () => {
      const choice = Number(this.diffSelect.value);
      if (choice === 0) this.diffBase = null;
      void this.toggleDiff(choice);
    });
    this.console.stop.addEventListener("click", () => this.run?.stop());
    this.console.fix.addEventListener("click", () => this.lastError && this.askToFix(this.lastError));
    this.tabs.addEventListener("keydown", (event) => this.moveInTabs(event));
    this.menu.addEventListener("keydown", (event) => this.moveInMenu(event));
    document.addEventListener("pointerdown", (event) => {
      if (!this.menu.hidden && !this.menu.parentElement!.contains(event.target as Node)) this.menu.hidden = true;
    });
    this.stream.element.addEventListener("click", (event) => this.clicked(event));
    for (const pane of [this.codePane, this.consolePane]) pane.addEventListener("keydown", (event) => this.keyed(event), { capture: true });
    window.addEventListener("pagehide", () => this.files?.flush());
  }

  private keyed(event: KeyboardEvent): void {
    const plain = !event.ctrlKey && !event.metaKey && !event.altKey;
    const take = (): void => {
      event.preventDefault();
      event.stopPropagation();
    };
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      take();
      if (!this.runButton.disabled && this.runKind !== "worker") void this.start();
    } else if (event.key === "Escape" && !this.menu.hidden) {
      take();
      this.closeMenu();
    } else if (event.key === "Escape" && (this.runKind === "worker" || this.runKind === "preview")) {
      take();
      this.run?.stop();
    } else if (event.target === this.stream.element && plain && this.shown?.text.complete && event.key === "Enter") {
      take();
      void this.openEditor();
    } else if (plain && event.key.toLowerCase() === "f" && !this.editor && !(event.target as HTMLElement).closest("select,input,textarea")) {
      take();
      this.toEnd();
    } else if (event.target === this.stream.element && ["ArrowUp", "PageUp", "Home"].includes(event.key)) this.stream.follow(false);
  }

  /** A click into finished code opens the editor with the caret there; marking text does not. */
  private clicked(event: MouseEvent): void {
    if (event.button !== 0 || !document.getSelection()?.isCollapsed) return;
    const row = (event.target as HTMLElement).closest(".wb-line");
    const line = row ? Number(row.querySelector(".n")!.textContent) - 1 : (this.shown?.text.lineCount ?? 1) - 1;
    const code = row?.querySelector(".c");
    const column = code ? columnAt(code, event.clientX) : 0;
    void this.openEditor({ line, column });
  }

  private moveInTabs(event: KeyboardEvent): void {
    const tabs = [...this.tabs.children] as HTMLElement[];
    const at = tabs.indexOf(document.activeElement as HTMLElement);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (next === undefined || at < 0) return;
    event.preventDefault();
    tabs[(next + tabs.length) % tabs.length]!.click();
  }

  private moveInMenu(event: KeyboardEvent): void {
    const items = [...this.menu.children] as HTMLElement[];
    const at = items.indexOf(document.activeElement as HTMLElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: items.length - 1 }[event.key];
    if (event.key === "Tab") this.closeMenu();
    if (next === undefined) return;
    event.preventDefault();
    items[(next + items.length) % items.length]!.focus();
  }
}

function name(pane: HTMLElement, label: string): void {
  if (!pane.hasAttribute("aria-label") && !pane.hasAttribute("aria-labelledby")) pane.setAttribute("aria-label", label);
  if (pane.tagName !== "SECTION" && !pane.hasAttribute("role")) pane.setAttribute("role", "region");
}

function runnable(language: string): boolean {
  return ["python", "javascript", "html", "css"].includes(languageFamily(language));
}

/** The document to show for a file, or null when it needs none (plain JavaScript runs in a worker). */
function pageFor(version: Version, code: string, bundle: PlainFile[]): string | null {
  const family = languageFamily(version.language);
  if (family === "html") return code;
  const page = bundle.find((file) => languageFamily(file.language) === "html" && file.code.includes(version.name));
  if (page) return page.code;
  if (family === "css") return `<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="${version.name}"><h1>Heading</h1><p>Text with <a href="#">a link</a>.</p><button>Button</button>`;
  if (!/\b(?:document|window|localStorage|alert|requestAnimationFrame)\b/.test(code)) return null;
  return `<!doctype html><meta charset="utf-8"><body><script src="${version.name}"></script>`;
}

/** "ZeroDivisionError" of "ZeroDivisionError: division by zero"; other messages as they are. */
function shortError(message: string): string {
  return /^([A-Za-z_.]*(?:Error|Exception|Exit|Interrupt|Iteration)\w*):/.exec(message)?.[1] ?? message.slice(0, 80);
}

/** Carries the times of unchanged lines at the beginning and end of a file over to its edited text. */
function keepTimes(edited: CodeText, written: CodeText): CodeText {
  const a = edited.lines;
  const b = written.lines;
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) edited.times[head] = written.times[head++]!;
  for (let tail = 1; tail <= Math.min(a.length, b.length) - head && a[a.length - tail] === b[b.length - tail]; tail++) edited.times[a.length - tail] = written.times[b.length - tail]!;
  return edited;
}

function columnAt(code: Element, clientX: number): number {
  const box = code.getBoundingClientRect();
  const length = code.textContent?.length ?? 0;
  const style = getComputedStyle(code);
  const probe = document.createElement("canvas").getContext("2d")!;
  probe.font = style.font;
  return Math.max(0, Math.min(length, Math.round((clientX - box.left) / probe.measureText("0").width)));
}
