import { links, type DemoLink } from "../../api/links";
import { t } from "../../i18n";
import { wordsOf } from "../../i18n/errors";
import { button, h } from "../../shell/dom";
import { openSheet } from "../../shell/layers";
import "./links.css";

const LIVES = [1, 7, 30, 365];

export function addressOf(link: Pick<DemoLink, "url">): string {
  return new URL(link.url, location.origin).href;
}

/** The choice of how long a link works; the value of `null` is for ever. */
export function lifeChoice(chosen: number | null): { element: HTMLSelectElement; days: () => number | null } {
  const element = h("select", { class: "field" });
  for (const days of [null, ...LIVES]) {
    const option = h("option", { value: days ?? "" }, days === null ? t("links.never") : t("links.n_days", { n: days }));
    option.selected = days === chosen;
    element.append(option);
  }
  return { element, days: () => (element.value ? Number(element.value) : null) };
}

export function labelled(text: string, field: HTMLElement): HTMLElement {
  return h("label", { class: "row" }, h("span", null, text), field);
}

/** Asks what to share and for how long, then shows the address. */
export function openShareDialog(detail: { conversationId: string; title: string }): void {
  const title = h("input", { class: "field", maxlength: 200, value: detail.title, dir: "auto" });
  const scope = h("select", { class: "field" }, h("option", { value: "conversation" }, t("links.whole_chat")), h("option", { value: "answer" }, t("links.one_answer")));
  const note = h("p", { class: "m-sub" }, t("links.whole_note"));
  scope.addEventListener("change", () => (note.textContent = t(scope.value === "answer" ? "links.answer_note" : "links.whole_note")));
  const life = lifeChoice(30);
  const name = h("input", { class: "field", maxlength: 100, autocomplete: "name" });
  const embed = h("input", { type: "checkbox" });
  const error = h("p", { class: "fielderr", role: "alert" });
  const make = button({ label: t("links.make"), kind: "p" });
  make.type = "submit";
  const form = h(
    "form",
    { class: "sharebox" },
    labelled(t("links.name"), title),
    labelled(t("links.what"), scope),
    note,
    labelled(t("links.lives"), life.element),
    labelled(t("links.owner_name"), name),
    h("label", { class: "check" }, embed, t("links.allow_embed")),
    error,
    h("div", { class: "foot" }, h("a", { href: "/links/" }, t("links.all")), make),
  );
  const body = h("div", null, form);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    make.disabled = true;
    links
      .create({
        conversation_id: detail.conversationId,
        scope: scope.value as DemoLink["scope"],
        title: title.value,
        expires_in_days: life.days(),
        allow_embed: embed.checked,
        owner_name: name.value,
      })
      .then((link) => body.replaceChildren(made(link)))
      .catch((problem: unknown) => {
        make.disabled = false;
        error.textContent = wordsOf(problem);
      });
  });
  openSheet(t("links.share"), body);
}

function made(link: DemoLink): HTMLElement {
  const address = addressOf(link);
  const field = h("input", { class: "field", readonly: true, value: address });
  field.addEventListener("focus", () => field.select());
  const copy = button({ label: t("links.copy"), kind: "p", onClick: () => void copied(copy, address) });
  const box = h("div", { class: "sharebox" }, labelled(t("links.address"), field), h("p", { class: "m-sub" }, t("links.made_note")), h("div", { class: "foot" }, h("a", { href: link.url }, t("links.open")), copy));
  queueMicrotask(() => copy.focus());
  return box;
}

/** Copies and says so in the button's own words. */
export async function copied(from: HTMLElement, text: string): Promise<void> {
  await navigator.clipboard.writeText(text);
  const label = from.querySelector(".lb") ?? from;
  label.textContent = t("copied");
}
