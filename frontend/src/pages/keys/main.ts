import "../../styles/site.css";
import "../parts/pages.css";
import { ApiError } from "../../api/http";
import { keys, type ApiKey } from "../../api/keys";
import { t } from "../../i18n";
import { wordsOf } from "../../i18n/errors";
import { button, h } from "../../shell/dom";
import { openSheet } from "../../shell/layers";
import { followSystemTheme } from "../../shell/theme";
import "./keys.css";
import { copied, labelled, lifeChoice } from "../links/share-dialog";
import { withCards } from "../parts/cards";
import { dateLanguage } from "../parts/dates";
import { siteFrame } from "../parts/frame";

const day = new Intl.DateTimeFormat(dateLanguage, { day: "numeric", month: "short", year: "numeric" });
const moment = new Intl.DateTimeFormat(dateLanguage, { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
const SCOPES = ["models", "generate"];

/** The API keys of the signed-in user. */
class KeysPage {
  private readonly body = h("div", { class: "linksbody" });
  private readonly note = h("p", { class: "note", role: "status", hidden: true });

  constructor(root: HTMLElement) {
    const make = button({ label: t("keys.make"), kind: "p", icon: "plus", onClick: () => this.make() });
    const intro = h("p", { class: "keysintro" }, t("keys.intro"), " ", h("code", null, `${location.origin}/v1`));
    root.append(...siteFrame("keys", h("main", { id: "main", class: "mn" }, h("div", { class: "bar0" }, h("h1", null, t("keys")), make), intro, this.note, this.body)));
    void this.load();
  }

  private async load(): Promise<void> {
    try {
      const items = await keys.list();
      this.body.replaceChildren(items.length ? this.table(items) : h("p", { class: "empty" }, t("keys.empty")));
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) this.body.replaceChildren(h("p", { class: "empty" }, t("keys.sign_in"), " ", h("a", { href: "/accounts/login/?next=/keys/" }, t("sign_in"))));
      else this.say(error);
    }
  }

  private say(what: unknown): void {
    this.note.hidden = false;
    this.note.textContent = wordsOf(what);
  }

  private table(items: ApiKey[]): HTMLElement {
    const names = ["name", "key", "state", "scopes", "created", "expires", "used"];
    const head = h("tr", null, ...names.map((name) => h("th", { scope: "col" }, t(`keys.${name}`))), h("th", { scope: "col" }, h("span", { class: "vh" }, t("keys.revoke"))));
    const table = h("table", null, h("caption", { class: "vh" }, t("keys")), h("thead", null, head), h("tbody", null, ...items.map((key) => this.row(key))));
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("keys") }, withCards(table));
  }

  private row(key: ApiKey): HTMLElement {
    const revoke = button({ label: t("keys.revoke"), small: true, name: `${t("keys.revoke")}: ${key.name}`, onClick: () => this.ask(key) });
    return h(
      "tr",
      null,
      h("th", { scope: "row", dir: "auto" }, key.name),
      h("td", null, h("code", null, `${key.prefix}…`)),
      h("td", { class: "is-state" }, h("span", { class: `lstate ${key.state}` }, t(`keys.state_${key.state}`))),
      h("td", null, key.scopes.map((scope) => t(`keys.scope_${scope}`)).join(", ")),
      h("td", null, day.format(new Date(key.created_at))),
      h("td", null, key.expires_at ? day.format(new Date(key.expires_at)) : t("links.never")),
      h("td", null, key.last_used_at ? moment.format(new Date(key.last_used_at)) : t("keys.not_used")),
      h("td", { class: "n acts" }, key.state === "live" ? revoke : null),
    );
  }

  private make(): void {
    const name = h("input", { class: "field", maxlength: 100, required: true, autofocus: true });
    const life = lifeChoice(365);
    const scopes = SCOPES.map((scope) => h("input", { type: "checkbox", value: scope, checked: true }));
    const error = h("p", { class: "fielderr", role: "alert" });
    const send = button({ label: t("keys.make"), kind: "p" });
    send.type = "submit";
    const boxes = scopes.map((box) => h("label", { class: "check" }, box, t(`keys.scope_${box.value}`)));
    const form = h("form", { class: "sharebox" }, labelled(t("keys.name"), name), labelled(t("links.lives"), life.element), h("fieldset", { class: "keyscopes" }, h("legend", null, t("keys.scopes")), ...boxes), error, h("div", { class: "foot" }, send));
    const body = h("div", null, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const chosen = scopes.filter((box) => box.checked).map((box) => box.value);
      if (chosen.length === 0) {
        error.textContent = t("keys.no_scope");
        return;
      }
      send.disabled = true;
      keys
        .create({ name: name.value, scopes: chosen, expires_in_days: life.days() })
        .then((key) => body.replaceChildren(made(key.secret)))
        .catch((problem: unknown) => {
          send.disabled = false;
          error.textContent = wordsOf(problem);
        });
    });
    openSheet(t("keys.make"), body, "sheet", () => void this.load());
  }

  private ask(key: ApiKey): void {
    const yes = button({ label: t("keys.revoke"), kind: "p" });
    const layer = openSheet(t("keys.revoke"), h("div", { class: "sharebox" }, h("p", null, t("keys.revoke_ask", { name: key.name })), h("div", { class: "foot" }, yes)));
    yes.addEventListener("click", () => {
      layer.close();
      keys
        .revoke(key.id)
        .catch((error: unknown) => this.say(error))
        .finally(() => void this.load());
    });
  }
}

/** The only time that the key itself is on a screen. */
function made(secret: string): HTMLElement {
  const field = h("input", { class: "field keysecret", readonly: true, value: secret, "aria-label": t("keys.key") });
  field.addEventListener("focus", () => field.select());
  const copy = button({ label: t("copy"), kind: "p", onClick: () => void copied(copy, secret) });
  queueMicrotask(() => copy.focus());
  return h("div", { class: "sharebox" }, labelled(t("keys.key"), field), h("p", { class: "m-sub" }, t("keys.once")), h("div", { class: "foot" }, copy));
}

followSystemTheme();
const root = document.getElementById("app");
if (root) new KeysPage(root);
