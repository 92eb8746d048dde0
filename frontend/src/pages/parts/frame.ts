import { t } from "../../i18n";
import { button, h, icon, type IconName } from "../../shell/dom";
import { openMenu } from "../../shell/layers";
import { switchTheme } from "../../shell/theme";

interface Boot {
  user: { name: string; staff: boolean } | null;
}

function boot(): Boot {
  return JSON.parse(document.getElementById("boot")?.textContent ?? '{"user":null}') as Boot;
}

/** Skip link and application frame (top bar and rail) around a page of its own address. */
export function siteFrame(page: "links" | "stats" | "keys", main: HTMLElement, ...extra: HTMLElement[]): HTMLElement[] {
  const { user } = boot();
  const places: { name: string; icon: IconName; href: string }[] = [
    { name: "new", icon: "plus", href: "/" },
    { name: "race", icon: "race", href: "/race" },
    { name: "links", icon: "link", href: "/links/" },
  ];
  if (user?.staff) places.push({ name: "stats", icon: "stats", href: "/stats/" });
  const rail = h("nav", { class: "rail hide-s", "aria-label": t("region_main") });
  for (const place of places) rail.append(h("a", { href: place.href, "aria-current": place.name === page ? "page" : null }, icon(place.icon), h("span", null, t(place.name))));
  const account = user ? { label: t("account"), href: "/accounts/" } : { label: t("sign_in"), href: "/accounts/login/" };
  const menu = button({ icon: "menu", kind: "q", name: t("menu"), class: "menu show-s", onClick: () => openMenu(menu, [...places.map((place) => ({ label: t(place.name), icon: place.icon, act: () => location.assign(place.href) })), { label: account.label, act: () => location.assign(account.href) }]) });
  const top = h(
    "header",
    { class: "top" },
    menu,
    h("a", { class: "brand", href: "/" }, icon("brand"), h("span", null, "monokernel")),
    h("span", { class: "ttl" }, h("span", null, t(page))),
    h("span", { class: "sp" }),
    ...extra,
    button({ icon: "theme", kind: "q", name: t("switch_theme"), onClick: () => switchTheme() }),
    h("a", { class: "btn q hide-s", href: account.href }, user?.name || account.label),
  );
  return [h("a", { class: "skip", href: "#main" }, t("skip")), h("div", { class: "siteapp" }, top, rail, main)];
}
