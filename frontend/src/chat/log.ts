import { num, t } from "../i18n";
import { button, h } from "../shell/dom";
import type { Conversation, Message } from "../store/conversation";
import type { StoredFile } from "../workbench";
import { AnswerView, type AnswerHost } from "./answer";
import { wordsAndCode } from "./said";

export interface LogActions {
  edit(message: Message): void;
  regenerate(answer: Message): void;
  proceed(): void;
  walk(message: Message): void;
  copied(): void;
}

const SHORT_LINES = 14;
const SHORT_CHARS = 1600;
/** Of one group, at most about this: groups out of sight are skipped by layout and paint, so a long chat costs what is seen of it. */
const GROUP_MESSAGES = 50;
const GROUP_CHARS = 40_000;

/** The shown path of one conversation. Articles are only ever added, except when another path is chosen. */
export class LogView {
  readonly element: HTMLElement;
  readonly jump: HTMLButtonElement;
  private readonly list = h("div", { class: "lg" });
  private readonly answers = new Map<Message, AnswerView>();
  private conversation: Conversation | null = null;
  private following = true;
  private groupChars = 0; // of the last group

  constructor(
    private readonly actions: LogActions,
    private readonly host: AnswerHost,
    private readonly emptyState: () => HTMLElement,
  ) {
    this.element = h("div", { class: "log", tabindex: "0", role: "region", "aria-label": t("region_log") }, this.list);
    this.jump = button({ label: t("jump_end"), class: "jump", onClick: () => this.follow() });
    this.jump.hidden = true;
    const unfollow = (): void => {
      this.following = false;
    };
    this.element.addEventListener("wheel", (event) => event.deltaY < 0 && unfollow(), { passive: true });
    this.element.addEventListener("scroll", () => this.scrolled(), { passive: true });
    // After layout and before paint: the end stays in view without a layout of its own.
    new ResizeObserver(() => this.following && this.toEnd()).observe(this.list);
    document.addEventListener("selectionchange", () => {
      const selection = document.getSelection();
      if (selection && !selection.isCollapsed && this.element.contains(selection.anchorNode)) unfollow();
    });
  }

  /** Draws the finished part of a path; gives the files of its answers in order. A running answer is added by the caller. */
  show(conversation: Conversation): StoredFile[] {
    this.conversation = conversation;
    this.answers.clear();
    const path = conversation.path();
    const files: StoredFile[] = [];
    if (path.length === 0) this.list.replaceChildren(this.emptyState());
    else this.list.replaceChildren();
    for (const message of path) {
      if (message.role === "user") this.addUser(message);
      else if (message.role === "assistant" && (!message.run || message.run.ended)) {
        const view = this.addAnswer(message);
        const pieces = message.run?.pieces.length ? message.run.pieces : [{ text: message.content, engineMs: -1 }];
        view.drawStored(pieces, message.run?.state !== "stopped");
        this.finish(message);
        files.push(...view.files);
      }
    }
    this.follow();
    return files;
  }

  addUser(message: Message): void {
    this.list.querySelector(".empty")?.remove();
    const article = h("article", { class: "me" }, h("h2", { class: "vh" }, t("you")), this.said(message.content));
    const acts = h("div", { class: "acts" });
    acts.append(button({ icon: "edit", label: t("edit"), kind: "q", small: true, onClick: () => this.actions.edit(message) }));
    this.addWalk(acts, message);
    article.append(acts);
    this.place(article);
    this.groupChars += message.content.length;
  }

  addAnswer(message: Message): AnswerView {
    const view = new AnswerView(() => message.id, message.run, this.host);
    this.answers.set(message, view);
    this.place(view.element);
    return view;
  }

  private place(article: HTMLElement): void {
    let group = this.list.lastElementChild;
    if (!group || group.childElementCount >= GROUP_MESSAGES || this.groupChars > GROUP_CHARS) {
      group = this.list.appendChild(h("div", { class: "turns" }));
      this.groupChars = 0;
    }
    group.append(article);
  }

  answerOf(message: Message): AnswerView | undefined {
    return this.answers.get(message);
  }

  /** Puts the actions under an answer whose run has ended. */
  finish(message: Message): void {
    const view = this.answers.get(message);
    if (!view?.actions.hidden) return;
    this.groupChars += (message.run?.text || message.content).length;
    const acts = view.actions;
    acts.hidden = false;
    acts.append(button({ icon: "again", label: t("regenerate"), kind: "q", small: true, onClick: () => this.actions.regenerate(message) }));
    const run = message.run;
    if (run && (run.state === "stopped" || run.finishReason === "length") && this.conversation?.last === message) {
      acts.append(button({ icon: "play", label: t("continue"), kind: "q", small: true, onClick: () => this.actions.proceed() }));
    }
    const copy = (): void => void navigator.clipboard?.writeText(run?.text || message.content).then(() => this.actions.copied());
    acts.append(button({ icon: "copy", kind: "q", small: true, name: t("copy_answer"), onClick: copy }));
    this.addWalk(acts, message);
    if (run?.error && (run.state === "failed" || run.state === "interrupted")) {
      const said = [h("p", null, run.error.message), h("code", null, `${run.error.code} · ${run.id}`)];
      view.element.append(h("details", { class: "ticket" }, h("summary", null, t("details")), ...said));
    }
  }

  follow(): void {
    this.following = true;
    this.jump.hidden = true;
    this.toEnd();
  }

  private toEnd(): void {
    this.element.scrollTop = 1e9;
  }

  private scrolled(): void {
    const atEnd = this.element.scrollTop + this.element.clientHeight >= this.element.scrollHeight - 32;
    if (atEnd) this.following = true;
    this.jump.hidden = atEnd || this.following;
  }

  private said(content: string): HTMLElement {
    const lines = content.split("\n");
    const short = lines.slice(0, SHORT_LINES).join("\n").slice(0, SHORT_CHARS);
    if (short === content) return h("div", { class: "said" }, ...wordsAndCode(content));
    const more = button({
      label: t("show_all", { n: num(lines.length) }),
      kind: "q",
      small: true,
      onClick: () => box.replaceChildren(...wordsAndCode(content)),
    });
    const box = h("div", { class: "said" }, ...wordsAndCode(`${short}\n…`), more);
    return box;
  }

  private addWalk(acts: HTMLElement, message: Message): void {
    const siblings = this.conversation?.siblings(message) ?? [];
    if (siblings.length < 2) return;
    const at = siblings.indexOf(message);
    const to = (step: number): void => this.actions.walk(siblings[(at + step + siblings.length) % siblings.length] as Message);
    acts.append(
      h(
        "span",
        { class: "walk", role: "group", "aria-label": t("versions") },
        button({ icon: "left", kind: "q", small: true, name: t("previous_version"), onClick: () => to(-1) }),
        t("n_of_m", { n: at + 1, m: siblings.length }),
        button({ icon: "right", kind: "q", small: true, name: t("next_version"), onClick: () => to(1) }),
      ),
    );
  }
}
