import type { ModelCard } from "../api/types";
import { duration, num, seconds, t, GAP } from "../i18n";
import { h } from "../shell/dom";
import { openSheet } from "../shell/layers";
import type { Generation } from "../store/generation";
import { tableOf } from "./curve";
import { deviceName, precision } from "./instrument";

const DTYPES = ["float32", "float16", "bfloat16"];

/** The command that measures a run again, or one of a usual length that the model's context takes. */
export function benchCommand(card: ModelCard, promptTokens: number | null, outputTokens: number): string {
  const context = card.context_tokens || Infinity;
  const prompt = promptTokens ?? Math.min(45, Math.floor(context / 2));
  const output = Math.max(2, outputTokens || Math.min(256, context - prompt));
  const gpus = card.gpus > 0 ? ` --gpus ${card.gpus}` : "";
  const dtype = card.precision && DTYPES.includes(card.precision) ? ` --dtype ${card.precision}` : "";
  return `python -m engine bench ${card.name}${gpus}${dtype} --prompt-tokens ${prompt} --output-tokens ${output}`;
}

/** "How this is measured": definition, clock, window, machine, and the command that reproduces the number. */
export function openMeasured(card: ModelCard | null, run: Generation | null): void {
  const rows: [string, string][] = [];
  if (card) {
    rows.push([t("how_machine"), deviceName(card) || "–"]);
    if (card.driver) rows.push([t("how_driver"), card.driver]);
    rows.push([t("how_precision"), card.precision ? precision(card.precision) : "–"]);
    rows.push([t("how_backend"), card.backend ?? "–"]);
    rows.push([t("how_batch"), "1"]);
    rows.push([t("how_bytes"), card.bytes_per_token ? `${num(card.bytes_per_token / 1e9, 3)}${GAP}GB` : "–"]);
    rows.push([t("how_datasheet"), card.datasheet_bytes_per_s ? `${num(card.datasheet_bytes_per_s / 1e12, 2)}${GAP}TB/s` : t("no_bound")]);
    rows.push([t("how_measured_bw"), card.measured_bytes_per_s ? `${num(card.measured_bytes_per_s / 1e12, 2)}${GAP}TB/s` : t("no_bound")]);
  }
  const prompt = run?.usage?.prompt_tokens ?? run?.promptTokens ?? null;
  if (run) {
    rows.push([t("how_prompt"), prompt === null ? "–" : num(prompt)]);
    rows.push([t("how_output"), num(run.tokens)]);
    if (run.ttftMs !== null) rows.push([t("first_token"), duration(run.ttftMs).join(GAP)]);
    if (run.timings?.decode_tokens_per_s) rows.push([t("decode_rate"), `${num(run.timings.decode_tokens_per_s, 1)}${GAP}${t("unit_rate")}`]);
  }
  rows.push([t("how_date"), new Date().toISOString().slice(0, 10)]);
  const list = h("dl");
  for (const [name, value] of rows) list.append(h("dt", null, name), h("dd", null, value));
  const body = h("div", { class: "howpop" }, h("p", null, t("how_definition")), h("p", null, t("how_window")), list);
  if (card) {
    body.append(h("p", null), h("p", null, t("how_command")), h("pre", { tabindex: "0" }, benchCommand(card, prompt, run?.tokens ?? 0)));
  }
  const points = run ? tableOf(run.samples) : [];
  if (points.length > 0) {
    const rowsOf = h("tbody");
    for (const [from, to, rate] of points) rowsOf.append(h("tr", null, h("td", null, `${seconds(from)} – ${seconds(to)}${GAP}s`), h("td", null, num(rate))));
    const head = h("thead", null, h("tr", null, h("th", { scope: "col" }, t("how_time")), h("th", { scope: "col" }, t("unit_rate"))));
    body.append(h("table", null, h("caption", { class: "vh" }, t("curve_name")), head, rowsOf));
  }
  openSheet(t("how_measured"), body);
}
