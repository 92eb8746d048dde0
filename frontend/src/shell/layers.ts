import { t } from "../i18n";
import { button, h } from "./dom";

export interface Layer {
  dialog: HTMLDialogElement;
  close(): void;
}

let nextId = 0;

/** A modal layer: focus moves in, Escape closes it, focus returns to the opener (all done by <dialog>). */
export function openSheet(title: string, body: Node, kind = "sheet", onClose?: () => void): Layer {
  const id = `layer-${++nextId}`;
  const dialog = h("dialog", { class: kind, "aria-labelledby": id });
  const opener = document.activeElement instanceof HTMLElement ? document.activeElement : null;
  const close = (): void => dialog.close();
  dialog.append(
    h("div", { class: "dlghead" }, h("h2", { id }, title), button({ icon: "close", kind: "q", name: t("close"), onClick: close })),
    h("div", { class: "dlgbody" }, body),
  );
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) close();
  });
  dialog.addEventListener("close", () => {
    const bar = dialog.querySelector(".undo");
    dialog.remove();
    if (bar) topLayer().append(bar);
    onClose?.();
    if (document.activeElement === document.body) opener?.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  return { dialog, close };
}

/** Asks once before something that cannot be undone; the safe answer has the focus. */
export function openQuestion(title: string, text: string, act: string, onYes: () => void): void {
  const yes = button({
    label: act,
    kind: "p",
    onClick: () => {
      layer.close();
      onYes();
    },
  });
  const no = button({ label: t("cancel"), onClick: () => layer.close() });
  const layer = openSheet(title, h("div", null, h("p", null, text), h("div", { class: "answers" }, no, yes)));
  no.focus();
}

/** The innermost open dialog, or the page. */
function topLayer(): HTMLElement {
  const open = document.querySelectorAll<HTMLDialogElement>("dialog[open]");
  return open[open.length - 1] ?? document.body;
}

/** True while some layer is open that Escape closes first. */
export function layerOpen(): boolean {
  return document.querySelector("dialog[open], [popover]:popover-open") !== null;
}

/** A small menu under a button. */
export function openMenu(anchor: HTMLElement, items: { label: string; icon?: Parameters<typeof button>[0]["icon"]; act: () => void }[]): void {
  const menu = h("div", { popover: "auto", class: "menupop", "aria-label": t("menu") });
  const list = h("div", { class: "menuitems" });
  for (const item of items) {
    list.append(
      button({
        label: item.label,
        icon: item.icon,
        kind: "q",
        onClick: () => {
          menu.hidePopover();
          item.act();
        },
      }),
    );
  }
  list.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    event.preventDefault();
    const all = [...list.querySelectorAll("button")];
    const at = all.indexOf(document.activeElement as HTMLButtonElement) + (event.key === "ArrowDown" ? 1 : -1);
    all[(at + all.length) % all.length]?.focus();
  });
  menu.append(list);
  menu.addEventListener("toggle", (event) => {
    if ((event as ToggleEvent).newState === "closed") {
      menu.remove();
      if (document.activeElement === document.body) anchor.focus();
    }
  });
  (anchor.closest("dialog") ?? document.body).append(menu); // what lies outside an open dialog cannot be clicked
  const box = anchor.getBoundingClientRect();
  menu.style.left = `${Math.max(8, Math.min(box.left, innerWidth - 232))}px`;
  menu.style.top = `${box.bottom + 4}px`;
  menu.showPopover();
  if (menu.getBoundingClientRect().bottom > innerHeight) menu.style.top = `${Math.max(8, box.top - menu.offsetHeight - 4)}px`;
  list.querySelector("button")?.focus();
}

const UNDO_MS = 8000;
let undoBar: { element: HTMLElement; commit: () => void; timer: number } | null = null;

/** Something was done; for 8 seconds it can be undone. `commit` runs when the time is up, or a next act comes. */
export function offerUndo(text: string, undo: () => void, commit: () => void): void {
  finishUndo();
  const end = (act: () => void): void => {
    if (!undoBar) return;
    clearTimeout(undoBar.timer);
    undoBar.element.remove();
    undoBar = null;
    act();
  };
  const element = h("div", { class: "undo", role: "status" }, h("span", null, text), button({ label: t("undo"), onClick: () => end(undo) }));
  topLayer().append(element);
  undoBar = { element, commit, timer: window.setTimeout(() => end(commit), UNDO_MS) };
}

/** Commits what still waits for its undo (before leaving the page, or for the next one). */
export function finishUndo(): void {
  if (!undoBar) return;
  const { element, commit, timer } = undoBar;
  clearTimeout(timer);
  element.remove();
  undoBar = null;
  commit();
}

/** A short message that needs no answer ("Copied"), for as long as it takes to read. */
export function notice(text: string): void {
  const element = h("div", { class: "undo", role: "status" }, h("span", null, text));
  document.body.append(element);
  setTimeout(() => element.remove(), Math.max(2500, 100 * text.length));
}

/** Says how far something has come, until `end`. Nothing is shown before the first words. */
export function ongoing(): { say(text: string): void; end(): void } {
  const words = h("span", null);
  const element = h("div", { class: "undo", role: "status" }, words);
  const say = (text: string): void => {
    if (!element.isConnected) topLayer().append(element);
    words.textContent = text;
  };
  return { say, end: () => element.remove() };
}
