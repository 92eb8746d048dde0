import { language, setLanguage, t } from "../i18n";
import { button, h } from "./dom";
import { openSheet } from "./layers";

const MOD = /Mac|iP/.test(navigator.platform) ? "⌘" : "Ctrl";

/** Names of keys: a word that is translated, else what stands on the key. */
const KEYS: [string[], string][] = [
  [["key_enter"], "key_send"],
  [["key_shift", "key_enter"], "key_newline"],
  [["key_esc"], "key_escape"],
  [[MOD, "K"], "key_find"],
  [[MOD, "/"], "key_list"],
  [["F6"], "key_area"],
  [["↑"], "key_edit_last"],
  [[MOD, "key_enter"], "key_run"],
  [["F"], "key_follow"],
];

export function openShortcuts(): void {
  const list = h("dl", { class: "keys" });
  for (const [keys, label] of KEYS) {
    const term = h("dt");
    keys.forEach((key, index) => term.append(index ? " + " : "", h("kbd", null, t(key))));
    list.append(term, h("dd", null, t(label)));
  }
  const languages = h("p", { class: "note" }, `${t("language")} `);
  for (const [code, name] of [["en", "English"], ["fr", "Français"]] as const) {
    const choice = button({ label: name, kind: "q", small: true, onClick: () => setLanguage(code) });
    choice.lang = code;
    choice.setAttribute("aria-pressed", String(code === language));
    languages.append(choice);
  }
  openSheet(t("shortcuts"), h("div", null, list, languages));
}
