import { api } from "../api/http";
import type { ConversationRow } from "../api/types";
import { language, num, t } from "../i18n";
import { button, h, icon } from "./dom";
import { openMenu } from "./layers";

export interface HistoryActions {
  open(id: string): void;
  rename(row: ConversationRow): void;
  remove(row: ConversationRow): void;
  removeAll(): void;
  exportAs(id: string, kind: "json" | "markdown"): void;
  importFile(): void;
  currentId(): string | null;
}

/** The list of chats with search; used in the drawer and, on wide screens, as a column. */
export class HistoryList {
  readonly element = h("div", { class: "histbox" });
  private readonly list = h("div", { class: "histlist" });
  private readonly search: HTMLInputElement;
  private rows: ConversationRow[] = [];
  private next: string | null = null;
  private timer = 0;
  private asked = 0;
  private readonly hidden = new Set<string>();

  constructor(private readonly actions: HistoryActions) {
    this.search = h("input", { type: "search", placeholder: t("search_chats"), "aria-label": t("search_chats") });
    this.search.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => void this.refresh(), 150);
    });
    this.element.append(
      h("label", { class: "searchbox" }, icon("search", true), this.search),
      this.list,
      h(
        "div",
        { class: "histfoot" },
        button({ icon: "upload", label: t("import"), kind: "q", onClick: () => actions.importFile() }),
        button({ icon: "trash", label: t("delete_all"), kind: "q", onClick: () => actions.removeAll() }),
      ),
    );
  }

  async refresh(): Promise<void> {
    const turn = ++this.asked;
    try {
      const page = await api.conversations(this.search.value.trim());
      if (turn !== this.asked) return;
      this.rows = page.items;
      this.next = page.next;
      this.draw();
    } catch {
      if (turn === this.asked) this.list.replaceChildren(h("p", { class: "none" }, t("list_failed")));
    }
  }

  /** Hides a row while its deletion can still be undone. */
  hide(id: string, hidden: boolean): void {
    if (hidden) this.hidden.add(id);
    else this.hidden.delete(id);
    this.draw();
  }

  mark(): void {
    const current = this.actions.currentId();
    for (const item of this.list.querySelectorAll<HTMLElement>("li")) {
      const on = item.dataset.id === current;
      item.classList.toggle("on", on);
      if (on) item.querySelector("a")?.setAttribute("aria-current", "page");
      else item.querySelector("a")?.removeAttribute("aria-current");
    }
  }

  private draw(): void {
    const rows = this.rows.filter((row) => !this.hidden.has(row.id));
    const query = this.search.value.trim();
    if (rows.length === 0) {
      this.list.replaceChildren(h("p", { class: "none" }, query ? t("no_chat_contains", { query }) : t("no_chats")));
      return;
    }
    const out: HTMLElement[] = [];
    let group = "";
    let items = h("ul");
    for (const row of rows) {
      const label = dayLabel(new Date(row.updated_at));
      if (label !== group) {
        group = label;
        items = h("ul");
        out.push(h("h2", null, label), items);
      }
      items.append(this.item(row));
    }
    if (this.next) out.push(button({ label: t("more_chats"), kind: "q", onClick: () => void this.more() }));
    this.list.replaceChildren(...out);
    this.mark();
  }

  private item(row: ConversationRow): HTMLElement {
    const running = row.state === "queued" || row.state === "running";
    const speed = running ? t("running") : row.decode_tokens_per_s ? num(row.decode_tokens_per_s) : "";
    const open = (event: Event): void => {
      if ((event as MouseEvent).ctrlKey || (event as MouseEvent).metaKey) return;
      event.preventDefault();
      this.actions.open(row.id);
    };
    const title = row.title || t("untitled");
    const link = h("a", { href: `/c/${row.id}`, onClick: open }, h("span", { dir: "auto" }, title), h("small", { title: running || !speed ? null : t("unit_rate") }, speed));
    const more = button({
      icon: "more",
      kind: "q",
      small: true,
      name: t("chat_menu", { title }),
      onClick: () =>
        openMenu(more, [
          { label: t("rename"), icon: "edit", act: () => this.actions.rename(row) },
          { label: t("export_markdown"), icon: "download", act: () => this.actions.exportAs(row.id, "markdown") },
          { label: t("export_json"), icon: "download", act: () => this.actions.exportAs(row.id, "json") },
          { label: t("delete"), icon: "trash", act: () => this.actions.remove(row) },
        ]),
    });
    return h("li", { "data-id": row.id }, link, more);
  }

  private async more(): Promise<void> {
    const page = await api.conversations(this.search.value.trim(), this.next ?? "");
    this.rows.push(...page.items);
    this.next = page.next;
    this.draw();
  }
}

function dayLabel(date: Date): string {
  const day = (value: Date): number => Math.floor((value.getTime() - value.getTimezoneOffset() * 60_000) / 86_400_000);
  const ago = day(new Date()) - day(date);
  if (ago <= 0) return t("today");
  if (ago === 1) return t("yesterday");
  return new Intl.DateTimeFormat(language, ago < 7 ? { weekday: "long" } : { dateStyle: "medium" }).format(date);
}
