import { t } from "../../i18n";
import { button, h, icon } from "../../shell/dom";
import { switchTheme } from "../../shell/theme";

/** The top bar of a page outside the playground. */
export function publicTop(title: string, ...actions: HTMLElement[]): HTMLElement {
  return h(
    "header",
    { class: "top" },
    h("a", { class: "brand", href: "/" }, icon("brand"), h("span", null, "monokernel")),
    h("span", { class: "ttl hide-s" }, h("span", null, title)),
    h("span", { class: "sp" }),
    ...actions,
    button({ icon: "theme", kind: "q", name: t("switch_theme"), onClick: () => switchTheme() }),
  );
}
