import { language, setLanguage, t } from "../i18n";
import { button, h } from "./dom";
import { openSheet } from "./layers";

const KEYS: [string[], string][] = [
  [["Enter"], "key_send"],
  [["Shift", "Enter"], "key_newline"],
  [["Esc"], "key_escape"],
  [["Ctrl", "K"], "key_find"],
  [["Ctrl", "/"], "key_list"],
  [["F6"], "key_area"],
  [["↑"], "key_edit_last"],
  [["Ctrl", "Enter"], "key_run"],
  [["F"], "key_follow"],
];

export function openShortcuts(): void {
  const list = h("dl", { class: "keys" });
  for (const [keys, label] of KEYS) {
    const term = h("dt");
    keys.forEach((key, index) => term.append(index ? " + " : "", h("kbd", null, key)));
    list.append(term, h("dd", null, t(label)));
  }
  const languages = h("p", { class: "note" }, `${t("language")}: `);
  for (const [code, name] of [["en", "English"], ["fr", "Français"]] as const) {
    const choice = button({ label: name, kind: "q", small: true, onClick: () => setLanguage(code) });
    choice.lang = code;
    choice.setAttribute("aria-pressed", String(code === language));
    languages.append(choice);
  }
  openSheet(t("shortcuts"), h("div", null, list, languages));
}
