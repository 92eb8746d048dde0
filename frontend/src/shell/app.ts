import { api, ApiError } from "../api/http";
import { links } from "../api/links";
import { PlaygroundSocket, type Link } from "../api/socket";
import type { AcceptedFrame, Boot, ConversationRow, ErrorBody, ErrorFrame, GenerateFrame, ModelCard } from "../api/types";
import { Composer, type Typed } from "../chat/composer";
import { LogView } from "../chat/log";
import { Instrument } from "../instrument/instrument";
import { openCodeDialog } from "../codegen/dialog";
import { seconds, t } from "../i18n";
import { errorText, freeAgain, wordsOf } from "../i18n/errors";
import { Conversation, promptMessages, type Message } from "../store/conversation";
import { Generation } from "../store/generation";
import { drafts, lastRate, SettingsStore } from "../store/settings";
import { createWorkbench, type PlainFile, type Workbench } from "../workbench";
import { button, h, randomId } from "./dom";
import { exportConversation, importChat, readImport } from "./exchange";
import { Frame } from "./frame";
import { galleryPrompts, openGallery, promptRow } from "./gallery";
import { openShortcuts } from "./help";
import { HistoryList } from "./history";
import { finishUndo, layerOpen, notice, offerUndo, ongoing, openMenu, openQuestion, openSheet, type Layer } from "./layers";
import { openPalette } from "./palette";
import { parametersForm } from "./params";
import { switchTheme } from "./theme";

const FRAME_BUDGET_MS = 7;
const MODEL_POLL_MS = 2000;
/** Ended runs kept with their samples, so that a chat that is opened again has its curve. */
const KEPT_RUNS = 8;

/** A request that was sent and not answered yet. */
interface Pending {
  conversation: Conversation;
  user: Message | null;
  answer: Message;
  run: Generation;
  typed: Typed | null;
  /** The message that was edited. */
  edited: Message | null;
  code: PlainFile[];
}

type View = "chat" | "code" | "output";

/** The playground page: owns the conversation, the socket and the frame loop; the views only draw. */
export class Playground {
  private readonly settings: SettingsStore;
  private readonly socket: PlaygroundSocket;
  private readonly frame: Frame;
  private readonly log: LogView;
  private readonly composer: Composer;
  private readonly instrument: Instrument;
  private readonly workbench: Workbench;
  private readonly history: HistoryList;
  private readonly app = h("div", { class: "app", "data-view": "chat" });
  private readonly status = h("div", { class: "vh", role: "status" });
  private readonly alert = h("div", { class: "vh", role: "alert" });
  private readonly heading = h("h1", { class: "vh" });
  private readonly codePane = h("section", { class: "codepane", "aria-label": t("region_code"), tabindex: "-1" });
  private readonly consolePane = h("section", { class: "consolepane", "aria-label": t("region_output"), tabindex: "-1" });
  private readonly tabs: Record<View, HTMLButtonElement>;
  private readonly runs = new Map<string, Generation>();
  private readonly pending = new Map<string, Pending>();
  private readonly follows = new WeakSet<Generation>();
  /** Of each file name on the shown path, how many answers have written it. */
  private readonly versions = new Map<string, number>();
  private readonly channel = "BroadcastChannel" in window ? new BroadcastChannel("playground") : null;
  private conversation = new Conversation(null, "");
  private editing: Message | null = null;
  private beforeEdit: Typed = { box: "", attachments: [] };
  private codeToSend: PlainFile[] = [];
  private scheduled = false;
  private loadTurn = 0;
  /** The chat of the address, while it loads: what is typed meanwhile is its draft, and what is sent waits for it. */
  private opening: Promise<void> | null = null;
  private historyDrawer: Layer | null = null;
  private link: Link = "reconnecting";
  private modelTimer = 0;

  constructor(
    private readonly boot: Boot,
    root: HTMLElement,
  ) {
    this.settings = new SettingsStore(boot.models, boot.default_model);
    this.history = new HistoryList({
      open: (id) => void this.openConversation(id),
      rename: (row) => this.rename(row.id, row.title),
      remove: (row) => void this.remove(row),
      removeAll: () => this.removeAll(),
      exportAs: (id, kind) => void this.exportAs(id, kind),
      importFile: () => this.importFile(),
      currentId: () => this.conversation.id,
    });
    this.frame = new Frame(
      boot,
      {
        newChat: () => this.newChat(),
        chats: () => this.openHistory(),
        gallery: () => openGallery((prompt) => this.usePrompt(prompt)),
        race: () => location.assign("/race"),
        links: () => location.assign("/links/"),
        help: () => openShortcuts(),
        find: () => this.openFind(),
        share: () => this.share(),
        titleMenu: (anchor) => this.openTitleMenu(anchor),
      },
      "new",
    );
    this.log = new LogView(
      {
        edit: (message) => this.startEdit(message),
        regenerate: (message) => this.regenerate(message),
        proceed: () => this.proceed(),
        walk: (message) => this.walk(message),
        copied: () => notice(t("copied")),
      },
      {
        beginFile: (messageId, name, language) => {
          if (this.drawingStored || !this.conversation.id) return null;
          if (matchMedia("(max-width: 899px)").matches) this.show("code");
          return this.workbench.beginFile({ conversationId: this.conversation.id, messageId, name, language });
        },
        openFile: (messageId, name) => {
          this.workbench.open(messageId, name);
          this.show("code");
        },
        showRun: (run) => this.bindInstrument(run),
        nextVersion: (name) => this.nextVersion(name),
      },
      () => this.emptyState(),
    );
    this.composer = new Composer(
      {
        send: (text) => (this.opening ? void this.opening.then(() => this.send(text)) : this.send(text)),
        stop: () => this.stop(),
        openParameters: () => this.openParameters(),
        chooseModel: (name) => this.settings.set({ model: name }),
        draft: (text) => drafts.save(this.draftKey(), text),
        editLast: () => this.editLast(),
        cancelEdit: () => this.endEdit(),
        attached: (count) => this.say(t("status_attached", { n: count })),
        refuse: (reasons) => this.showError(reasons.join("\n"), ""),
      },
      boot.models,
      this.messageBytes,
    );
    this.instrument = new Instrument({
      regenerate: () => {
        const last = this.conversation.last;
        if (last?.role === "assistant") this.regenerate(last);
      },
      proceed: () => this.proceed(),
      retry: () => this.socket.retryNow(),
    });
    this.workbench = createWorkbench(this.codePane, this.consolePane, { t: (key, vars) => t(key, vars) });
    this.codePane.addEventListener("workbench-output", () => this.app.dataset.view === "code" && this.show("output"));
    this.workbench.onAskWithCode((files) => {
      this.codeToSend = files;
    });
    this.workbench.onFixIt((info) => {
      this.send(`${t("fix_request", { name: info.name })}\n\n\`\`\`text\n${info.error}\n\`\`\`\n\n\`\`\`${info.language} ${info.name}\n${info.code}\n\`\`\``);
    });
    const tab = (view: View, label: string): HTMLButtonElement =>
      h("button", { type: "button", role: "tab", "aria-selected": String(view === "chat"), onClick: () => this.show(view) }, label);
    this.tabs = { chat: tab("chat", t("tab_chat")), code: tab("code", t("tab_code")), output: tab("output", t("tab_output")) };
    const events = {
      link: (state: Link) => this.setLink(state),
      accepted: (frame: AcceptedFrame) => this.accepted(frame),
      refused: (frame: ErrorFrame) => this.refused(frame),
      unanswered: (frame: GenerateFrame) => this.unanswered(frame),
    };
    this.socket = new PlaygroundSocket(boot.socket_path, events, this.messageBytes);
    this.layOut(root);
    this.settings.subscribe(() => this.modelChanged());
    this.modelChanged();
    this.listen();
    this.socket.connect();
    void this.start();
  }

  private drawingStored = false;

  private get messageBytes(): number {
    return this.boot.limits["message_bytes"] ?? Infinity;
  }

  private layOut(root: HTMLElement): void {
    const views = h("div", { class: "views", role: "tablist", "aria-label": t("view") }, this.tabs.chat, this.tabs.code, this.tabs.output);
    views.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const order: View[] = ["chat", "code", "output"];
      const at = order.indexOf((this.app.dataset.view as View) ?? "chat") + (event.key === "ArrowRight" ? 1 : -1);
      const next = order[(at + 3) % 3] as View;
      this.show(next);
      this.tabs[next].focus();
    });
    const chat = h("section", { class: "chat", "aria-label": t("region_conversation") }, this.log.element, this.log.jump, this.composer.errors, this.composer.element);
    this.composer.takeDrops(chat);
    const work = h("div", { class: "work" }, this.instrument.element, views, this.codePane, this.consolePane);
    const main = h("main", { id: "main", tabindex: "-1" }, this.heading, chat, work);
    const hist = h("aside", { class: "hist", "aria-label": t("chats") });
    const par = h("aside", { class: "par", "aria-label": t("parameters") }, h("h2", null, t("parameters")));
    if (matchMedia("(min-width: 1920px)").matches) hist.append(this.history.element);
    matchMedia("(min-width: 1920px)").addEventListener("change", (event) => event.matches && hist.append(this.history.element));
    const wide = matchMedia("(min-width: 2240px)");
    const fill = (): void => {
      if (wide.matches && par.childElementCount === 1) par.append(parametersForm(this.settings));
    };
    wide.addEventListener("change", fill);
    fill();
    this.app.append(this.frame.top, this.frame.rail, hist, main, par);
    root.replaceChildren(h("a", { class: "skip", href: "#main" }, t("skip")), this.status, this.alert, this.app);
  }

  private async start(): Promise<void> {
    const id = this.boot.conversation_id;
    if (id) {
      this.conversation = new Conversation(id, "");
      this.composer.set(drafts.load(id));
      this.opening = this.openConversation(id, false);
      await this.opening;
      this.opening = null;
    } else this.showConversation(new Conversation(null, ""));
    void this.history.refresh();
    if (this.boot.models.some((card) => !card.ready)) void this.refreshModels();
  }

  private listen(): void {
    addEventListener("popstate", () => {
      const match = /^\/c\/([^/]+)/.exec(location.pathname);
      if (match) void this.openConversation(match[1] as string, false);
      else this.showConversation(new Conversation(null, ""));
    });
    window.addEventListener("keydown", (event) => this.key(event));
    addEventListener("pagehide", () => finishUndo());
    document.addEventListener("dragover", (event) => {
      if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault(); // a file that is dropped would take the place of the page
      event.dataTransfer.dropEffect = "none";
    });
    document.addEventListener("visibilitychange", () => this.schedule());
    this.channel?.addEventListener("message", (event: MessageEvent<{ conversation: string }>) => {
      void this.history.refresh();
      if (event.data.conversation === this.conversation.id && !this.running()) void this.openConversation(event.data.conversation, false);
    });
  }

  // ---- Conversations -------------------------------------------------------------------------------------------------------

  private async openConversation(id: string, push = true): Promise<void> {
    const turn = ++this.loadTurn;
    this.historyDrawer?.close();
    try {
      const stored = await api.conversation(id);
      if (turn !== this.loadTurn) return;
      if (push && location.pathname !== `/c/${id}`) history.pushState(null, "", `/c/${id}`);
      this.showConversation(Conversation.fromStored(stored, (known) => this.runs.get(known)));
    } catch (error) {
      if (turn !== this.loadTurn) return;
      this.showConversation(new Conversation(null, ""));
      this.showError(error instanceof ApiError && error.status === 404 ? t("chat_gone") : t("chat_failed"), error instanceof ApiError ? error.code : "");
    }
  }

  private newChat(): void {
    this.historyDrawer?.close();
    if (location.pathname !== "/") history.pushState(null, "", "/");
    this.loadTurn++;
    this.showConversation(new Conversation(null, ""));
    this.show("chat");
    this.composer.focus();
  }

  private showConversation(conversation: Conversation): void {
    // The same chat anew (another tab has changed it): the branch in sight and what is being typed or edited here stay.
    const same = conversation.id !== null && conversation.id === this.conversation.id;
    for (const shown of same ? this.conversation.path() : []) {
      const message = conversation.messages.get(shown.id);
      if (message) conversation.choose(message);
    }
    const edited = same && this.editing ? conversation.messages.get(this.editing.id) : undefined;
    const typing = same && (!this.editing || edited !== undefined);
    this.conversation = conversation;
    this.editing = edited ?? null;
    this.composer.showEditing(this.editing !== null);
    this.clearErrors();
    this.codeToSend = [];
    this.redraw();
    if (!typing) this.composer.set(drafts.load(conversation.id));
    this.history.mark();
  }

  /** An edit has a draft of its own, so that what was being typed comes back after it. */
  private draftKey(): string | null {
    return this.editing ? `edit:${this.editing.id}` : this.conversation.id;
  }

  /** Draws the chosen path: finished answers at once, running ones through the frame loop. */
  private redraw(): void {
    const conversation = this.conversation;
    this.drawingStored = true;
    this.versions.clear();
    const files = this.log.show(conversation);
    this.drawingStored = false;
    if (conversation.id) this.workbench.showConversation(conversation.id, files);
    else this.workbench.clear();
    const path = conversation.path();
    for (const message of path) {
      if (!message.run || message.run.ended) continue;
      this.log.addAnswer(message);
      this.watch(message.run);
    }
    const last = this.lastRun();
    this.bindInstrument(last);
    this.composer.placeholder(path.length === 0);
    const usage = path.at(-1)?.run?.usage;
    if (usage) this.composer.useBase(usage.prompt_tokens + usage.completion_tokens);
    else this.composer.useBase(0, path.reduce((sum, message) => sum + (message.run?.text || message.content).length, 0)); // an import, say
    this.frame.setPage(path.length === 0 ? "new" : "chats");
    this.frame.share.disabled = path.length === 0;
    this.drawTitle();
    this.schedule();
  }

  private watch(run: Generation): void {
    if (this.runs.get(run.id) === run && this.follows.has(run)) return;
    this.remember(run);
    run.subscribe(() => this.schedule());
    this.socket.resume(run);
  }

  private remember(run: Generation): void {
    this.runs.set(run.id, run);
    this.follows.add(run);
    for (const [id, old] of this.runs) {
      if (this.runs.size <= KEPT_RUNS) break;
      if (old.ended) this.runs.delete(id);
    }
  }

  private bindInstrument(run: Generation | null): void {
    const card = this.cardOf(run?.model ?? this.settings.value.model);
    this.instrument.bind(run, card, card ? lastRate.load(card.name) : 0, run === this.lastRun());
    this.drawTitle();
  }

  /** The badge and the bound come from the engine; until it is ready, ask again. */
  private async refreshModels(): Promise<void> {
    clearTimeout(this.modelTimer);
    try {
      this.boot.models.splice(0, this.boot.models.length, ...(await api.models()));
      this.modelChanged();
      if (this.instrument.generation?.samples.count === 0 && !this.instrument.generation.ended) this.bindInstrument(this.instrument.generation);
    } catch {
      /* the page goes on with what it knows */
    }
    if (this.boot.models.some((card) => !card.ready)) this.modelTimer = window.setTimeout(() => void this.refreshModels(), MODEL_POLL_MS);
  }

  private cardOf(name: string): ModelCard | null {
    return this.boot.models.find((card) => card.name === name) ?? null;
  }

  private nextVersion(name: string): number {
    const version = (this.versions.get(name) ?? 0) + 1;
    this.versions.set(name, version);
    return version;
  }

  private walk(message: Message): void {
    this.conversation.choose(message);
    this.redraw();
  }

  /** The newest run of the shown path. */
  private lastRun(): Generation | null {
    return this.conversation.findLast((message) => message.run !== null)?.run ?? null;
  }

  private running(): Generation | null {
    const run = this.conversation.last?.run ?? null;
    return run && !run.ended ? run : null;
  }

  // ---- Requests ------------------------------------------------------------------------------------------------------------

  private send(text: string): void {
    this.clearErrors();
    // "Continue", "Fix it" and the gallery send words of their own: what stands in the box stays there.
    const own = text === this.composer.request;
    const edited = own ? this.editing : null;
    const typed: Typed = own ? this.composer.typed : { box: text, attachments: [] };
    const withCode = this.codeToSend.map((file) => `\`\`\`${file.language} ${file.name}\n${file.code}\n\`\`\``).join("\n\n");
    const content = withCode ? `${text}\n\n${t("my_code")}\n\n${withCode}` : text;
    if (!text.trim()) return this.showError(t("error_empty"), "empty_prompt");
    if (this.running()) return;
    const conversation = this.conversation;
    const parent = edited ? (edited.parentId === null ? null : (conversation.messages.get(edited.parentId) ?? null)) : (conversation.last ?? null);
    const before = parent ? conversation.pathTo(parent) : [];
    const user: Message = { id: `new-${randomId()}`, parentId: parent?.id ?? null, role: "user", content, run: null };
    const sent = this.request(user, before, { parent_id: parent?.id }, typed, edited);
    if (!sent) return;
    this.codeToSend = [];
    if (edited) this.endEdit();
    else if (own) this.composer.clear();
  }

  /** Asks for an answer to `user`; a new message when `typed` is given, else one that is stored already. */
  private request(user: Message, before: Message[], where: Partial<GenerateFrame>, typed: Typed | null, edited: Message | null): boolean {
    const conversation = this.conversation;
    const params = this.settings.params();
    const requestId = randomId();
    const frame: GenerateFrame = {
      type: "generate",
      request_id: requestId,
      ...(conversation.id ? { conversation_id: conversation.id } : {}),
      ...(where.parent_id ? { parent_id: where.parent_id } : {}),
      ...(where.user_message_id ? { user_message_id: where.user_message_id } : {}),
      messages: promptMessages(this.settings.value.system, [...before, user]),
      params,
    };
    try {
      this.socket.generate(frame);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (error.code === "offline") this.showError(t("error_offline"), error.code, "hold");
      else this.showError(wordsOf(error), error.code);
      return false;
    }
    const run = new Generation("", params.model, params.max_tokens);
    const answer: Message = { id: `new-${requestId}`, parentId: user.id, role: "assistant", content: "", run };
    if (typed !== null) conversation.add(user);
    conversation.add(answer);
    this.pending.set(requestId, { conversation, user: typed === null ? null : user, answer, run, typed, edited, code: typed === null ? [] : this.codeToSend });
    run.subscribe(() => this.schedule());
    if (edited || typed === null) this.redrawUntil(answer);
    else {
      this.log.addUser(user);
      this.log.addAnswer(answer);
    }
    this.log.follow();
    this.bindInstrument(run);
    this.composer.placeholder(false);
    this.frame.setPage("chats");
    this.schedule();
    return true;
  }

  /** A new branch: the path up to it is drawn anew, then the growing answer. */
  private redrawUntil(answer: Message): void {
    this.drawingStored = true;
    this.versions.clear();
    const files = this.log.show(this.conversation);
    this.drawingStored = false;
    if (this.conversation.id) this.workbench.showConversation(this.conversation.id, files);
    this.log.addAnswer(answer);
  }

  private accepted(frame: AcceptedFrame): void {
    const pending = this.pending.get(frame.request_id);
    if (!pending) return;
    this.pending.delete(frame.request_id);
    const { conversation, user, answer, run, code } = pending;
    this.workbench.codeWasSent(code);
    run.id = frame.generation_id;
    this.remember(run);
    if (user) conversation.rename(user, frame.user_message_id);
    conversation.rename(answer, frame.assistant_message_id);
    if (conversation.id === null) {
      conversation.id = frame.conversation_id;
      conversation.title = titleFrom(user?.content ?? "");
      if (conversation === this.conversation) {
        history.pushState(null, "", `/c/${conversation.id}`);
        this.workbench.showConversation(conversation.id, []);
        drafts.save(null, "");
      }
    }
    this.socket.follow(run);
    this.frame.share.disabled = false;
    this.drawTitle();
    this.say(t("status_generating"));
    this.channel?.postMessage({ conversation: conversation.id });
  }

  private refused(frame: ErrorFrame): void {
    const pending = frame.request_id ? this.pending.get(frame.request_id) : undefined;
    if (pending && frame.request_id) {
      this.pending.delete(frame.request_id);
      this.takeBack(pending);
    }
    this.showError(errorText(frame), frame.code, frame.code === "rate_limited" || frame.code === "queue_full" ? "hold" : "bad", frame.details);
  }

  private unanswered(frame: GenerateFrame): void {
    const pending = this.pending.get(frame.request_id);
    if (!pending) return;
    this.pending.delete(frame.request_id);
    this.takeBack(pending);
    this.showError(t("error_unanswered"), "connection_lost", "hold");
    void this.history.refresh();
  }

  /** Undoes what the page showed for a request that was not accepted; the typed text returns to the box. */
  private takeBack(pending: Pending): void {
    const { conversation, user, answer, typed, edited } = pending;
    conversation.remove(answer);
    if (user) conversation.remove(user);
    if (conversation !== this.conversation) return;
    this.redraw();
    if (edited) this.startEdit(edited);
    if (typed !== null && (edited || !this.composer.request)) this.composer.restore(typed);
  }

  private stop(): void {
    const run = this.running();
    if (!run) return;
    if (run.id && this.socket.stop(run.id)) return;
    if (run.id) this.showError(t("error_stop_offline"), "offline", "hold");
  }

  private regenerate(answer: Message): void {
    if (this.running() || answer.parentId === null) return;
    const user = this.conversation.messages.get(answer.parentId);
    if (!user) return;
    this.clearErrors();
    const before = this.conversation.pathTo(user).slice(0, -1);
    this.request(user, before, { user_message_id: user.id }, null, null);
  }

  private proceed(): void {
    this.send(t("continue_request"));
  }

  private startEdit(message: Message): void {
    if (this.running()) return;
    if (!this.editing) this.beforeEdit = this.composer.typed;
    this.editing = message;
    this.composer.set(drafts.load(this.draftKey()) || message.content);
    this.composer.showEditing(true);
    this.composer.focus();
  }

  private editLast(): void {
    const last = this.conversation.findLast((message) => message.role === "user");
    if (last) this.startEdit(last);
  }

  private endEdit(): void {
    if (!this.editing) return;
    drafts.save(this.draftKey(), "");
    this.editing = null;
    this.composer.showEditing(false);
    this.composer.restore(this.beforeEdit);
  }

  private usePrompt(prompt: string): void {
    if (this.running()) {
      this.composer.set(prompt);
      this.composer.focus();
    } else this.send(prompt);
  }

  // ---- The frame loop ------------------------------------------------------------------------------------------------------

  private schedule(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    const turn = (): void => {
      this.scheduled = false;
      this.turn();
    };
    if (document.hidden) setTimeout(turn, 200);
    else requestAnimationFrame(turn);
  }

  private turn(): void {
    const deadline = performance.now() + FRAME_BUDGET_MS;
    let all = true;
    for (const message of this.conversation.path()) {
      const run = message.run;
      const view = run ? this.log.answerOf(message) : undefined;
      if (!run || !view || !view.actions.hidden) continue;
      const drawn = view.flush(deadline);
      all &&= drawn;
      if (drawn && run.ended) this.ended(message, run);
    }
    this.instrument.update();
    for (const run of this.runs.values()) {
      if (!run.ended && run.id && run.lastEventId !== "0") this.socket.ack(run.id, run.lastEventId);
    }
    this.composer.running(this.running() !== null);
    this.drawTitle();
    if (!all) this.schedule();
  }

  private ended(message: Message, run: Generation): void {
    this.log.finish(message);
    const rate = run.timings?.decode_tokens_per_s;
    if (rate) lastRate.save(run.model, rate);
    if (run.usage) this.composer.useBase(run.usage.prompt_tokens + run.usage.completion_tokens);
    if (run.state === "failed" || run.state === "interrupted") {
      this.alert.textContent = `${t(`state_${run.state}`)}. ${run.error ? errorText(run.error, run.tokens) : t("sub_interrupted", { n: run.tokens })}`;
    } else if (run.state === "stopped") this.say(t("sub_stopped", { n: run.tokens }));
    else this.say(t("status_complete", { n: run.tokens, s: seconds(run.totalMs ?? 0) }));
    void this.history.refresh();
    if (this.conversation.id) this.channel?.postMessage({ conversation: this.conversation.id });
  }

  private say(text: string): void {
    this.status.textContent = text;
  }

  private drawTitle(): void {
    const title = this.conversation.title || t("new_chat");
    this.frame.setTitle(title);
    if (this.heading.textContent !== title) this.heading.textContent = title;
    const state = this.lastRun()?.state ?? "idle";
    const page = state === "idle" ? title : `${t(`state_${state}`)}, ${title}`;
    if (document.title !== page) document.title = page;
  }

  private setLink(state: Link): void {
    const back = state === "connected" && this.link !== "connected";
    this.link = state;
    this.frame.setLink(state);
    if (back) for (const row of this.composer.errors.querySelectorAll('[data-code="offline"]')) row.remove();
    if (state === "offline") this.showError(t("error_offline"), "offline", "hold");
    this.schedule();
  }

  // ---- Words above the message box -----------------------------------------------------------------------------------------

  private showError(text: string, code: string, tone: "bad" | "hold" = "bad", details?: ErrorBody["details"]): void {
    this.clearErrors();
    const words = h("p", null, text);
    const row = h("div", { class: "rowerr", role: "alert", "data-tone": tone, "data-code": code }, words);
    if (details?.span && details.limit) words.append(" ", countdown(Number(details.retry_after_s)));
    if (code) row.append(h("details", null, h("summary", null, t("details")), h("code", null, code)));
    row.append(button({ icon: "close", kind: "q", small: true, name: t("dismiss"), onClick: () => row.remove() }));
    this.composer.errors.append(row);
  }

  private clearErrors(): void {
    this.composer.errors.replaceChildren();
  }

  private emptyState(): HTMLElement {
    const list = h("ul");
    for (const item of galleryPrompts().slice(0, 4)) list.append(promptRow(item, (prompt) => this.usePrompt(prompt)));
    const quota = this.boot.limits["tokens_per_day"];
    const note = this.boot.anonymous && quota ? t("empty_note_quota", { n: quota }) : t("empty_note");
    return h("div", { class: "empty" }, h("h2", null, t("empty_title")), list, h("p", { class: "note" }, note));
  }

  // ---- Layers and commands -------------------------------------------------------------------------------------------------

  private show(view: View): void {
    this.app.dataset.view = view;
    for (const [name, tab] of Object.entries(this.tabs)) tab.setAttribute("aria-selected", String(name === view));
  }

  private openParameters(): void {
    openSheet(t("parameters"), parametersForm(this.settings), "drawer");
  }

  private openHistory(): void {
    if (matchMedia("(min-width: 1920px)").matches) {
      this.history.element.querySelector("input")?.focus();
      return;
    }
    const home = this.history.element.parentElement;
    this.historyDrawer = openSheet(t("chats"), this.history.element, "drawer left", () => {
      this.historyDrawer = null;
      home?.append(this.history.element);
    });
    void this.history.refresh();
  }

  private openFind(): void {
    openPalette(
      [
        { label: t("new_chat"), act: () => this.newChat() },
        { label: t("gallery"), act: () => openGallery((prompt) => this.usePrompt(prompt)) },
        { label: t("race"), act: () => location.assign("/race") },
        { label: t("parameters"), act: () => this.openParameters() },
        { label: t("switch_theme"), act: () => void switchTheme() },
        { label: t("say_speed"), act: () => this.say(this.instrument.spoken()) },
        { label: t("copy_code"), act: () => this.copyCode() },
        { label: t("stop"), key: t("key_esc"), act: () => this.stop() },
        { label: t("rename"), act: () => this.conversation.id && this.rename(this.conversation.id, this.conversation.title) },
        { label: t("export_markdown"), act: () => this.conversation.id && void this.exportAs(this.conversation.id, "markdown") },
        { label: t("export_json"), act: () => this.conversation.id && void this.exportAs(this.conversation.id, "json") },
        { label: t("import"), act: () => this.importFile() },
        { label: t("delete_all"), act: () => this.removeAll() },
        { label: t("codegen.title"), act: () => this.showCode() },
        { label: t("keys"), act: () => location.assign("/keys/") },
        { label: t("shortcuts"), key: "Ctrl /", act: () => openShortcuts() },
      ],
      (id) => void this.openConversation(id),
    );
  }

  /** The request being typed, or the one last sent, as a program. */
  private showCode(): void {
    const path = [...this.conversation.path()];
    const typed = this.composer.request.trim();
    while (!typed && path.length > 0 && path[path.length - 1]?.role === "assistant") path.pop();
    const messages = promptMessages(this.settings.value.system, path);
    if (typed || path.length === 0) messages.push({ role: "user", content: typed || t("codegen.sample") });
    openCodeDialog({ baseUrl: `${location.origin}/v1`, messages, params: this.settings.params() });
  }

  private copyCode(): void {
    const files = this.conversation.path().flatMap((message) => this.log.answerOf(message)?.files ?? []);
    const last = files[files.length - 1];
    if (last) void navigator.clipboard?.writeText(last.text.text).then(() => notice(t("copied")));
  }

  private openTitleMenu(anchor: HTMLElement): void {
    const { id, title } = this.conversation;
    const items: Parameters<typeof openMenu>[1] = [
      { label: t("new_chat"), icon: "plus", act: () => this.newChat() },
      { label: t("chats"), icon: "menu", act: () => this.openHistory() },
      { label: t("codegen.title"), icon: "doc", act: () => this.showCode() },
    ];
    if (id) {
      items.push(
        { label: t("rename"), icon: "edit", act: () => this.rename(id, title) },
        { label: t("export_markdown"), icon: "download", act: () => void this.exportAs(id, "markdown") },
        { label: t("export_json"), icon: "download", act: () => void this.exportAs(id, "json") },
        { label: t("delete"), icon: "trash", act: () => void this.remove({ id, title, updated_at: "", decode_tokens_per_s: null, state: null }) },
      );
    }
    openMenu(anchor, items);
  }

  private rename(id: string, title: string): void {
    const input = h("input", { class: "field", value: title, "aria-label": t("title"), maxlength: 200, autofocus: true });
    const form = h("form", { class: "presetrow" }, input, button({ label: t("rename"), kind: "p" }));
    form.querySelector("button")?.setAttribute("type", "submit");
    const layer = openSheet(t("rename_title"), form);
    input.select();
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const next = input.value.trim();
      if (!next) return;
      layer.close();
      void api.rename(id, next).then(
        () => {
          if (this.conversation.id === id) this.conversation.title = next;
          this.drawTitle();
          void this.history.refresh();
        },
        (error: Error) => this.showError(wordsOf(error), "rename_failed"),
      );
    });
  }

  /** A chat with links asks once, because they stop working for others; any other can be undone. */
  private async remove(row: ConversationRow): Promise<void> {
    const shared = await links.list().then(
      (all) => all.filter((link) => link.conversation_id === row.id && link.state === "live").length,
      () => 0,
    );
    if (shared === 0) return this.removeWithUndo(row);
    const title = row.title || t("untitled");
    openQuestion(t("delete_title", { title }), t("delete_links", { n: shared }), t("delete"), () => {
      void api.remove(row.id).then(
        () => {
          if (this.conversation.id === row.id) this.newChat();
          void this.history.refresh();
          notice(t("deleted", { title }));
        },
        (error: Error) => this.showError(wordsOf(error), "delete_failed"),
      );
    });
  }

  private removeAll(): void {
    openQuestion(t("delete_all_title"), t("delete_all_text"), t("delete_all"), () => {
      void api.removeAll().then(
        () => {
          this.newChat();
          void this.history.refresh();
          notice(t("deleted_all"));
        },
        (error: Error) => this.showError(wordsOf(error), "delete_failed"),
      );
    });
  }

  private removeWithUndo(row: ConversationRow): void {
    this.history.hide(row.id, true);
    if (this.conversation.id === row.id) this.newChat();
    offerUndo(
      t("deleted", { title: row.title || t("untitled") }),
      () => {
        this.history.hide(row.id, false);
        void this.openConversation(row.id);
      },
      () => {
        void api.remove(row.id).then(
          () => void this.history.refresh(),
          (error: Error) => {
            this.history.hide(row.id, false);
            this.showError(wordsOf(error), "delete_failed");
          },
        );
      },
    );
  }

  private async exportAs(id: string, kind: "json" | "markdown"): Promise<void> {
    try {
      exportConversation(await api.conversation(id), kind);
    } catch (error) {
      this.showError(wordsOf(error), "export_failed");
    }
  }

  private importFile(): void {
    // In the document, because a loose element may be collected while the file dialog is open.
    const input = h("input", { type: "file", hidden: true, accept: ".json,.md,application/json,text/markdown" });
    document.body.append(input);
    input.addEventListener("cancel", () => input.remove());
    input.addEventListener("change", () => {
      const file = input.files?.[0];
      input.remove();
      if (!file) return;
      void this.importChat(file);
    });
    input.click();
  }

  private async importChat(file: File): Promise<void> {
    const progress = ongoing();
    try {
      const chat = await readImport(file);
      const total = chat.messages.length;
      const say = (done: number, s: number): void => progress.say(t(s ? "import_waits" : "import_progress", { done, total, s }));
      const id = await importChat(chat, this.messageBytes, say);
      await this.openConversation(id);
      void this.history.refresh();
    } catch (error) {
      this.historyDrawer?.close();
      this.showError(wordsOf(error), "import_failed");
    }
    progress.end();
  }

  private share(): void {
    document.dispatchEvent(new CustomEvent("playground:share", { detail: { conversationId: this.conversation.id, title: this.conversation.title } }));
  }

  private modelChanged(): void {
    const card = this.settings.card;
    this.composer.useModel(this.settings.value.model, card?.context_tokens ?? 0);
    if (!this.instrument.generation) this.bindInstrument(null);
  }

  private key(event: KeyboardEvent): void {
    const mod = event.ctrlKey || event.metaKey;
    if (mod && event.key.toLowerCase() === "k") {
      event.preventDefault();
      this.openFind();
    } else if (mod && event.key === "/") {
      event.preventDefault();
      openShortcuts();
    } else if (event.key === "Escape" && !layerOpen() && !event.defaultPrevented && !event.isComposing) {
      const inCode = this.codePane.contains(document.activeElement) || this.consolePane.contains(document.activeElement);
      if (!inCode) this.editing ? this.endEdit() : this.stop();
    } else if (event.key === "F6") {
      event.preventDefault();
      this.nextArea(event.shiftKey ? -1 : 1);
    }
  }

  private nextArea(step: number): void {
    const box = this.composer.element.querySelector("textarea") as HTMLElement;
    const areas = [this.log.element, box, this.instrument.element, this.codePane, this.consolePane];
    const at = areas.findIndex((area) => area.contains(document.activeElement));
    const next = (at + step + areas.length) % areas.length;
    if (next === 0 || next === 1) this.show("chat");
    if (next === 3) this.show("code");
    if (next === 4) this.show("output");
    areas[next]?.focus();
  }
}

/** "Free again in 12 s", once a second; not announced, because a screen reader would say every second. */
function countdown(secondsLeft: number): HTMLElement {
  const element = h("span", { "aria-live": "off" });
  const end = performance.now() + secondsLeft * 1000;
  const show = (): void => {
    const left = Math.ceil((end - performance.now()) / 1000);
    element.textContent = left > 0 ? freeAgain(left) : t("error.free");
    if (left <= 0 || !element.isConnected) clearInterval(timer);
  };
  const timer = setInterval(show, 1000);
  element.textContent = freeAgain(Math.ceil(secondsLeft));
  return element;
}

function titleFrom(content: string): string {
  const line = content.trim().split("\n")[0] ?? "";
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}
