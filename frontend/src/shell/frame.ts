import type { Boot } from "../api/types";
import type { Link } from "../api/socket";
import { t } from "../i18n";
import { button, h, icon, setText, type IconName } from "./dom";
import { openMenu } from "./layers";
import { switchTheme } from "./theme";

export type Page = "new" | "chats" | "race";

export interface FrameActions {
  newChat(): void;
  chats(): void;
  gallery(): void;
  race(): void;
  links(): void;
  help(): void;
  find(): void;
  share(): void;
  titleMenu(anchor: HTMLElement): void;
}

/** Top bar and rail: the same on every page of the application. */
export class Frame {
  readonly top: HTMLElement;
  readonly rail: HTMLElement;
  readonly share: HTMLButtonElement;
  private readonly title = h("span", { dir: "auto" });
  private readonly titleButton: HTMLElement;
  private readonly lightWord = h("span", { class: "hide-s" });
  private readonly light: HTMLElement;

  constructor(boot: Boot, actions: FrameActions, page: Page) {
    if (page === "race") this.titleButton = h("span", { class: "ttl" }, this.title);
    else this.titleButton = h("button", { type: "button", class: "ttl", onClick: () => actions.titleMenu(this.titleButton) }, this.title, icon("down", true));
    this.light = h("span", { class: "light", "data-link": "reconnecting" }, h("i"), this.lightWord);
    this.share = button({ icon: "link", label: t("share"), onClick: () => actions.share(), class: "share" });
    this.share.querySelector(".lb")?.classList.add("vh-xs");
    const menu = button({ icon: "menu", kind: "q", name: t("menu"), class: "menu show-s", onClick: () => this.openRailMenu(menu, boot, actions) });
    const find = button({ icon: "search", label: t("find"), kind: "q", key: "Ctrl K", class: "hide-s", onClick: () => actions.find() });
    const account = boot.user
      ? h("a", { class: "btn q hide-s", href: "/accounts/" }, boot.user.name || t("account"))
      : h("a", { class: "btn q hide-s", href: "/accounts/login/" }, t("sign_in"));
    this.top = h(
      "header",
      { class: "top" },
      menu,
      h("a", { class: "brand", href: "/" }, icon("brand"), h("span", null, "monokernel")),
      this.titleButton,
      h("span", { class: "sp" }),
      this.light,
      find,
      this.share,
      button({ icon: "theme", kind: "q", name: t("switch_theme"), onClick: () => switchTheme() }),
      account,
    );
    const item = (name: IconName, label: string, act: () => void, current: boolean): HTMLElement =>
      h("button", { type: "button", "aria-current": current ? "page" : null, onClick: act }, icon(name), h("span", null, label));
    this.rail = h("nav", { class: "rail hide-s", "aria-label": t("region_main") });
    this.rail.append(
      item("plus", t("new"), actions.newChat, page === "new"),
      item("menu", t("chats"), actions.chats, page === "chats"),
      item("gallery", t("gallery"), actions.gallery, false),
      item("race", t("race"), actions.race, page === "race"),
      item("link", t("links"), actions.links, false),
    );
    if (boot.user?.staff) this.rail.append(h("a", { href: "/stats/" }, icon("stats"), h("span", null, t("stats"))));
    this.rail.append(h("span", { class: "sp" }), item("help", t("help"), actions.help, false));
    this.setLink("reconnecting");
  }

  setTitle(text: string): void {
    setText(this.title, text);
  }

  setPage(page: Page): void {
    [...this.rail.querySelectorAll("button")].slice(0, 4).forEach((item, index) => {
      if (["new", "chats", "", "race"][index] === page) item.setAttribute("aria-current", "page");
      else item.removeAttribute("aria-current");
    });
  }

  setLink(state: Link): void {
    this.light.dataset.link = state;
    setText(this.lightWord, t(`link_${state}`));
    this.light.title = t(`link_${state}`);
  }

  private openRailMenu(anchor: HTMLElement, boot: Boot, actions: FrameActions): void {
    const go = (href: string) => (): void => location.assign(href);
    const items: Parameters<typeof openMenu>[1] = [
      { label: t("new"), icon: "plus", act: actions.newChat },
      { label: t("chats"), icon: "menu", act: actions.chats },
      { label: t("gallery"), icon: "gallery", act: actions.gallery },
      { label: t("race"), icon: "race", act: actions.race },
      { label: t("links"), icon: "link", act: actions.links },
      { label: t("find"), icon: "search", act: actions.find },
      { label: t("help"), icon: "help", act: actions.help },
    ];
    if (boot.user?.staff) items.push({ label: t("stats"), icon: "stats", act: go("/stats/") });
    items.push({ label: boot.user ? t("account") : t("sign_in"), act: go(boot.user ? "/accounts/" : "/accounts/login/") });
    openMenu(anchor, items);
  }
}
