/** Pages of accounts: rendered by the server; this adds the theme, "Show", and the still of the last public run. */
import "../../styles/site.css";
import "../../styles/instrument.css";
import "../parts/pages.css";
import "./signin.css";
import type { ModelCard } from "../../api/types";
import { GAP, num, t } from "../../i18n";
import { plateParts } from "../../instrument/instrument";
import { Samples } from "../../instrument/rate";
import { h } from "../../shell/dom";
import { followSystemTheme, switchTheme } from "../../shell/theme";
import { RecordedCurve } from "../parts/recorded-curve";

interface LastRun {
  recorded_at: string;
  model: Partial<ModelCard>;
  trace: [number, number][];
  timings: { decode_tokens_per_s: number | null };
}

function drawLastRun(panel: HTMLElement, run: LastRun): void {
  const rate = run.timings.decode_tokens_per_s;
  const samples = new Samples();
  for (const [tokens, ms] of run.trace) samples.add(tokens, ms);
  if (rate === null || samples.count < 3) return;
  const curve = new RecordedCurve(samples, samples.lastMs, run.model.bound_tokens_per_s ?? null, { bound: t("read_bound"), name: t("account.last_run_curve") });
  curve.place(samples.lastMs);
  curve.element.setAttribute("role", "img");
  const at = new Date(run.recorded_at);
  const when = `${at.toISOString().slice(0, 10)}, ${at.toISOString().slice(11, 16)}${GAP}UTC`;
  const plate = plateParts({ ...(run.model as ModelCard), title: run.model.title ?? "", ready: true }).map(([text, strong]) => h("span", null, strong ? h("b", null, text) : text));
  panel.setAttribute("role", "region");
  panel.setAttribute("aria-label", t("account.last_run"));
  panel.append(
    h("h2", null, `${t("account.last_run")}, ${when}`),
    h("p", { class: "fig" }, h("span", null, num(rate)), h("small", null, t("unit_rate"))),
    curve.element,
    h("div", { class: "plate" }, ...plate),
  );
}

function showPassword(toggle: HTMLButtonElement): void {
  const input = document.getElementById(toggle.dataset.show ?? "") as HTMLInputElement | null;
  if (!input) return;
  const hidden = input.type === "password";
  input.type = hidden ? "text" : "password";
  toggle.textContent = (hidden ? toggle.dataset.hideText : toggle.dataset.showText) ?? "";
  toggle.setAttribute("aria-pressed", String(hidden));
}

followSystemTheme();
document.querySelectorAll("[data-theme-switch]").forEach((element) => element.addEventListener("click", () => switchTheme()));
document.querySelectorAll<HTMLButtonElement>("[data-show]").forEach((toggle) => toggle.addEventListener("click", () => showPassword(toggle)));
const panel = document.getElementById("last-run");
const data = document.getElementById("last-run-data")?.textContent;
if (panel && data) drawLastRun(panel, JSON.parse(data) as LastRun);
