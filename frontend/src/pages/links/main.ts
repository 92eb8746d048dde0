import "../../styles/site.css";
import "../parts/pages.css";
import { links, type DemoLink } from "../../api/links";
import { num, t } from "../../i18n";
import { wordsOf } from "../../i18n/errors";
import { button, h } from "../../shell/dom";
import { openMenu, openSheet } from "../../shell/layers";
import { followSystemTheme } from "../../shell/theme";
import { withCards } from "../parts/cards";
import { dateLanguage } from "../parts/dates";
import { siteFrame } from "../parts/frame";
import { addressOf, copied, labelled, lifeChoice } from "./share-dialog";

const day = new Intl.DateTimeFormat(dateLanguage, { day: "numeric", month: "short", year: "numeric" });

/** All links of this user or browser. */
class LinksPage {
  private readonly body = h("div", { class: "linksbody" });
  private readonly note = h("p", { class: "note", role: "status", hidden: true });

  constructor(root: HTMLElement) {
    const main = h("main", { id: "main", class: "mn" }, h("div", { class: "bar0" }, h("h1", null, t("links.title"))), this.note, this.body);
    root.append(...siteFrame("links", main));
    void this.load();
  }

  private async load(): Promise<void> {
    try {
      const items = await links.list();
      this.body.replaceChildren(items.length ? this.table(items) : h("p", { class: "empty" }, t("links.empty")));
    } catch (error) {
      this.say(wordsOf(error));
    }
  }

  private say(text: string): void {
    this.note.hidden = false;
    this.note.textContent = text;
  }

  /** Does it, says so, and shows the list as it is now. */
  private async act(what: () => Promise<unknown>, done: string): Promise<void> {
    try {
      await what();
      this.say(done);
    } catch (error) {
      this.say(wordsOf(error));
    }
    await this.load();
  }

  private table(items: DemoLink[]): HTMLElement {
    const head = h("tr", null, ...["name", "state", "views", "made", "expires"].map((name) => h("th", { scope: "col", class: name === "views" ? "n" : "" }, t(`links.${name}`))), h("th", { scope: "col" }, h("span", { class: "vh" }, t("links.actions"))));
    const rows = items.map((link) => this.row(link));
    const table = h("table", null, h("caption", { class: "vh" }, t("links.title")), h("thead", null, head), h("tbody", null, ...rows));
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("links.title") }, withCards(table));
  }

  private row(link: DemoLink): HTMLElement {
    const name = link.state === "live" ? h("a", { href: link.url, dir: "auto" }, link.title) : h("span", { dir: "auto" }, link.title);
    const scope = h("span", { class: "what" }, t(link.scope === "conversation" ? "links.whole_chat" : "links.one_answer"));
    const copy = button({ label: t("links.copy"), small: true, onClick: () => void copied(copy, addressOf(link)) });
    copy.disabled = link.state !== "live";
    const more = button({ icon: "more", small: true, kind: "q", name: `${t("links.actions")}: ${link.title}`, onClick: () => this.menu(more, link) });
    return h(
      "tr",
      null,
      h("th", { scope: "row" }, name, scope),
      h("td", { class: "is-state" }, h("span", { class: `lstate ${link.state}` }, t(`links.state_${link.state}`))),
      h("td", { class: "n" }, num(link.views)),
      h("td", null, day.format(new Date(link.created_at))),
      h("td", null, link.expires_at ? day.format(new Date(link.expires_at)) : t("links.never")),
      h("td", { class: "n acts" }, copy, more),
    );
  }

  private menu(anchor: HTMLElement, link: DemoLink): void {
    const items: Parameters<typeof openMenu>[1] = [{ label: t("links.edit"), act: () => this.edit(link) }];
    if (link.conversation_id && link.state !== "revoked") items.push({ label: t("links.publish"), act: () => void this.act(() => links.publish(link.id), t("links.published")) });
    if (link.allow_embed && link.state === "live") items.push({ label: t("links.copy_embed"), act: () => void copied(this.note, embedCode(link)) });
    if (link.state !== "revoked") items.push({ label: t("links.revoke"), act: () => this.ask("revoke", link, () => links.revoke(link.id), t("links.revoked")) });
    items.push({ label: t("links.remove"), act: () => this.ask("remove", link, () => links.remove(link.id), t("links.removed")) });
    openMenu(anchor, items);
  }

  private ask(name: "revoke" | "remove", link: DemoLink, what: () => Promise<unknown>, done: string): void {
    const yes = button({ label: t(`links.${name}`), kind: "p" });
    const body = h("div", { class: "sharebox" }, h("p", null, t(`links.${name}_ask`, { title: link.title })), h("div", { class: "foot" }, yes));
    const layer = openSheet(t(`links.${name}`), body);
    yes.addEventListener("click", () => {
      layer.close();
      void this.act(what, done);
    });
  }

  private edit(link: DemoLink): void {
    const title = h("input", { class: "field", maxlength: 200, required: true, value: link.title, dir: "auto" });
    const life = lifeChoice(null);
    const keep = link.expires_at ? h("option", { value: "keep", selected: true }, day.format(new Date(link.expires_at))) : null;
    if (keep) life.element.prepend(keep);
    const name = h("input", { class: "field", maxlength: 100, value: link.owner_name });
    const embed = h("input", { type: "checkbox", checked: link.allow_embed });
    const save = button({ label: t("links.save"), kind: "p" });
    save.type = "submit";
    const form = h("form", { class: "sharebox" }, labelled(t("links.name"), title), labelled(t("links.lives"), life.element), labelled(t("links.owner_name"), name), h("label", { class: "check" }, embed, t("links.allow_embed")), h("div", { class: "foot" }, save));
    const layer = openSheet(t("links.edit"), form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const kept = life.element.value === "keep" ? {} : { expires_in_days: life.days() };
      layer.close();
      void this.act(() => links.update(link.id, { title: title.value, owner_name: name.value, allow_embed: embed.checked, ...kept }), t("links.saved"));
    });
  }
}

function embedCode(link: DemoLink): string {
  return `<iframe src="${addressOf(link)}/embed" width="720" height="560" loading="lazy" referrerpolicy="no-referrer" title="${link.title.replace(/[&"<>]/g, "")}"></iframe>`;
}

followSystemTheme();
const root = document.getElementById("app");
if (root) new LinksPage(root);
