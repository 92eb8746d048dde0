import { api } from "../api/http";
import { t } from "../i18n";
import { h, icon } from "./dom";

export interface Command {
  label: string;
  key?: string;
  act: () => void;
}

/** Ctrl+K: chats and commands in one list. Arrow keys move, Enter acts. */
export function openPalette(commands: Command[], openChat: (id: string) => void): void {
  if (document.querySelector("dialog.palette")) return;
  const list = h("ul", { role: "listbox", id: "palette-list", "aria-label": t("find") });
  const input = h("input", { type: "text", placeholder: t("find_placeholder"), "aria-label": t("find"), role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list", autocomplete: "off" });
  const dialog = h("dialog", { class: "sheet palette", "aria-label": t("find") }, h("label", { class: "searchbox" }, icon("search", true), input), list);
  let chats: Command[] = [];
  let shown: Command[] = [];
  let at = 0;
  let timer = 0;

  const select = (index: number): void => {
    at = shown.length === 0 ? 0 : (index + shown.length) % shown.length;
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === at)));
    const chosen = list.children[at];
    if (chosen) {
      input.setAttribute("aria-activedescendant", chosen.id);
      chosen.scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };
  const run = (index: number): void => {
    const command = shown[index];
    if (!command) return;
    dialog.close();
    command.act();
  };
  const query = (): string => input.value.trim();
  /** Commands first: chats come later from the server, and must not move what Enter would do. */
  const draw = (chosen: number): void => {
    const fits = commands.filter((one) => one.label.toLowerCase().includes(query().toLowerCase()));
    shown = [...fits, ...chats];
    list.replaceChildren(
      ...shown.map((one, index) =>
        h("li", { role: "option", id: `palette-${index}`, onClick: () => run(index) }, h("span", { dir: "auto" }, one.label), one.key ? h("kbd", null, one.key) : null),
      ),
    );
    if (shown.length === 0) list.append(h("li", { role: "option", "aria-disabled": "true" }, t("nothing_found")));
    select(chosen);
  };
  const search = async (): Promise<void> => {
    const asked = query();
    try {
      const page = await api.conversations(asked);
      if (asked !== query()) return;
      chats = page.items.slice(0, 8).map((row) => ({ label: row.title || t("untitled"), key: t("chat"), act: () => openChat(row.id) }));
      draw(at);
    } catch {
      /* commands alone, then */
    }
  };

  input.addEventListener("input", () => {
    chats = [];
    draw(0);
    clearTimeout(timer);
    timer = window.setTimeout(() => void search(), 120);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") select(at + 1);
    else if (event.key === "ArrowUp") select(at - 1);
    else if (event.key === "Enter" && !event.isComposing) run(at);
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  const opener = document.activeElement instanceof HTMLElement ? document.activeElement : null;
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (document.activeElement === document.body) opener?.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
  draw(0);
  void search();
}
