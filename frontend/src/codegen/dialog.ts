import { t } from "../i18n";
import { button, h, setText } from "../shell/dom";
import { openSheet } from "../shell/layers";
import { writers, type CodeKind, type CodeRequest } from "./request";
import "./codegen.css";

const NAMES: Record<CodeKind, string> = { curl: "curl", python: "Python", javascript: "JavaScript" };

/** The request on screen as a program that makes it through the API. */
export function openCodeDialog(request: CodeRequest): void {
  const code = h("code");
  const pre = h("pre", { class: "codegen", tabindex: "0", "aria-label": t("codegen.title") }, code);
  const tabs = Object.keys(writers).map((kind) => button({ label: NAMES[kind as CodeKind], small: true, onClick: () => show(kind as CodeKind) }));
  const copy = button({ label: t("copy"), kind: "p", icon: "copy" });
  const label = copy.querySelector(".lb") ?? copy;
  const show = (kind: CodeKind): void => {
    code.textContent = writers[kind](request);
    Object.keys(writers).forEach((one, i) => tabs[i]?.setAttribute("aria-pressed", String(one === kind)));
    setText(label, t("copy"));
  };
  copy.addEventListener("click", () => void navigator.clipboard?.writeText(code.textContent ?? "").then(() => setText(label, t("copied"))));
  show("curl");
  const note = h("p", { class: "m-sub" }, t("codegen.note"), " ", h("a", { href: "/keys/" }, t("keys")));
  openSheet(t("codegen.title"), h("div", { class: "codebox" }, h("div", { class: "codekinds", role: "group", "aria-label": t("codegen.language") }, ...tabs), pre, note, h("div", { class: "foot" }, copy)));
}
