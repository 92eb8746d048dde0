import "../../styles/site.css";
import "../../styles/instrument.css";
import "../parts/pages.css";
import "./stats.css";
import { ApiError } from "../../api/http";
import { stats, type Bar, type Choices, type EngineRow, type ErrorRow, type PeoplePoint, type Percentiles, type Point, type Summary, type UseRow } from "../../api/stats";
import { duration, GAP, marks, num, t } from "../../i18n";
import { wordsOf } from "../../i18n/errors";
import { button, h, lamp } from "../../shell/dom";
import { openMenu, openSheet } from "../../shell/layers";
import { followSystemTheme } from "../../shell/theme";
import { dateLanguage } from "../parts/dates";
import { siteFrame } from "../parts/frame";
import { tableIcon } from "../parts/icons";
import { bars, legend, lines, short, table, type Series } from "./charts";

const WORKERS_MS = 2000;
const CSV_PARTS = ["summary", "series", "people", "spread-rate", "spread-ttft", "spread-queue", "errors", "models", "users", "visitors", "keys", "links", "engines", "link-views"];
const utc = (options: Intl.DateTimeFormatOptions): Intl.DateTimeFormat => new Intl.DateTimeFormat(dateLanguage, { ...options, timeZone: "UTC" });
const hourOf = utc({ hour: "2-digit", minute: "2-digit" });
const dayOf = utc({ day: "numeric", month: "short" });
const momentOf = utc({ day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const ms = (value: number | null): string => (value === null ? "–" : duration(value).join(GAP));
const whole = (value: number | null): string => (value === null ? "–" : num(value));

/** Usage for staff: filters, readouts, charts that can be read as tables, engines now, tables with what an admin can do. */
class StatsPage {
  private readonly filter = new URLSearchParams(location.search);
  private readonly span = h("span", { class: "upd" });
  private readonly note = h("p", { class: "note", role: "status", hidden: true });
  private readonly readouts = h("dl", { class: "kp" });
  private readonly charts = h("div", { class: "g3" });
  private readonly more = h("div", { class: "g3" });
  private readonly spreads = h("div", { class: "g3" });
  private readonly tables = h("div", { class: "g3 tables" });
  private readonly engines = h("div");
  private readonly engineCount = h("span", { class: "upd" });
  private readonly ranges = h("div", { class: "seg", role: "group", "aria-label": t("stats.range") });
  private readonly dates = h("form", { class: "dates", hidden: true });
  private step!: HTMLSelectElement;
  private asTable = new Set<string>();
  private load = 0;

  constructor(root: HTMLElement) {
    if (!this.filter.get("range") && !this.filter.get("from")) this.filter.set("range", "24h");
    const csv = button({ icon: "download", label: t("stats.csv"), onClick: () => this.csvMenu(csv) });
    const bar = h("div", { class: "bar0" }, h("h1", null, t("stats.title")), this.ranges, this.dates, ...this.selects(), h("span", { class: "sp" }), this.span, csv);
    const workers = h("section", { class: "box w" }, h("div", { class: "bh" }, h("h2", null, t("stats.workers_now")), h("span", { class: "sp" }), this.engineCount), this.engines);
    const main = h("main", { id: "main", class: "mn" }, bar, this.note, this.readouts, this.charts, workers, this.more, this.spreads, this.tables);
    const admin = h("a", { class: "btn q", href: "/admin/" }, t("stats.admin"));
    root.append(...siteFrame("stats", main, admin));
    this.makeRanges();
    void this.refresh();
    void this.watchEngines();
  }

  // Filters -------------------------------------------------------------------------------------------------------------

  private makeRanges(): void {
    const names = { "24h": "stats.range_24h", "7d": "stats.range_7d", "30d": "stats.range_30d", dates: "stats.dates" };
    for (const [name, label] of Object.entries(names)) {
      this.ranges.append(h("button", { type: "button", "data-range": name, onClick: () => this.choose(name) }, t(label)));
    }
    this.markRange();
    const from = h("input", { type: "date", class: "field", required: true, "aria-label": t("stats.from"), value: this.filter.get("from") ?? "" });
    const to = h("input", { type: "date", class: "field", required: true, "aria-label": t("stats.to"), value: this.filter.get("to") ?? "" });
    const show = button({ label: t("stats.show") });
    show.type = "submit";
    this.dates.append(from, to, show);
    this.dates.addEventListener("submit", (event) => {
      event.preventDefault();
      this.filter.delete("range");
      this.set("from", from.value, false);
      this.set("to", to.value);
    });
  }

  /** The buttons stay: one of them has the focus. */
  private markRange(): void {
    const range = this.filter.get("range") ?? "dates";
    for (const item of this.ranges.querySelectorAll("button")) item.setAttribute("aria-pressed", String(item.dataset.range === range));
    this.dates.hidden = range !== "dates";
  }

  private choose(name: string): void {
    if (name === "dates") {
      this.filter.delete("range");
      this.markRange();
      this.dates.querySelector("input")?.focus();
      return;
    }
    this.filter.delete("from");
    this.filter.delete("to");
    if (name === "30d" && this.filter.get("by") === "hour") this.clearStep();
    this.set("range", name);
    this.markRange();
  }

  private clearStep(): void {
    this.filter.delete("by");
    this.step.value = "";
  }

  private selects(): HTMLElement[] {
    const select = (name: string, all: string, options: [string, string][] = []): HTMLSelectElement => {
      const element = h("select", { class: "field", "aria-label": all });
      const fill = (items: [string, string][]): void => {
        const chosen = this.filter.get(name) ?? "";
        const known = items.some(([value]) => value === chosen);
        if (chosen && !known) items = [...items, [chosen, chosen]]; // of an address from elsewhere: the page shows what it filters by
        element.replaceChildren(h("option", { value: "" }, all), ...items.map(([value, label]) => h("option", { value }, label)));
        element.value = chosen;
      };
      fill(options);
      element.addEventListener("change", () => this.set(name, element.value));
      fills.set(name, fill);
      return element;
    };
    const fills = new Map<string, (items: [string, string][]) => void>();
    const made = [
      select("model", t("stats.all_models")),
      select("source", t("stats.all_sources"), [
        ["web", t("stats.source_web")],
        ["api", t("stats.source_api")],
      ]),
      select("user", t("stats.all_users")),
      select("by", t("stats.by_itself"), [
        ["hour", t("stats.per_hour")],
        ["day", t("stats.per_day")],
        ["week", t("stats.per_week")],
      ]),
    ];
    this.step = made[3]!;
    void stats.choices().then((choices: Choices) => {
      fills.get("model")?.(choices.models.map((name) => [name, name]));
      fills.get("user")?.(choices.users.map((user) => [user.id, user.name || t("stats.deleted")]));
    });
    return made;
  }

  private set(name: string, value: string, refresh = true): void {
    if (value) this.filter.set(name, value);
    else this.filter.delete(name);
    history.replaceState(null, "", `?${this.filter}`);
    if (refresh) void this.refresh();
  }

  private csvMenu(anchor: HTMLElement): void {
    openMenu(anchor, CSV_PARTS.map((part) => ({ label: t(`stats.part_${part}`), act: () => location.assign(stats.csv(part, this.filter)) })));
  }

  private say(text: string): void {
    this.note.hidden = !text;
    this.note.textContent = text;
  }

  // Figures -------------------------------------------------------------------------------------------------------------

  private async refresh(): Promise<void> {
    const turn = ++this.load;
    const get = <T>(part: string): Promise<T> => stats.part<T>(part, this.filter);
    try {
      const [summary, series, people] = await Promise.all([get<Summary>("summary"), get<Point[]>("series"), get<PeoplePoint[]>("people")]);
      if (turn !== this.load) return;
      this.drawReadouts(summary);
      this.drawCharts(summary, series, people);
      this.say(summary.requests ? "" : t("stats.none", { from: momentOf.format(new Date(summary.start)), to: momentOf.format(new Date(summary.end)) }));
      const [rate, ttft, queue, models, errors] = await Promise.all([get<Bar[]>("spread-rate"), get<Bar[]>("spread-ttft"), get<Bar[]>("spread-queue"), get<UseRow[]>("models"), get<ErrorRow[]>("errors")]);
      const [users, visitors, keys, links, views] = await Promise.all([get<UseRow[]>("users"), get<UseRow[]>("visitors"), get<UseRow[]>("keys"), get<UseRow[]>("links"), get<{ id: string; name: string; views: number }[]>("link-views")]);
      if (turn !== this.load) return;
      this.drawSpreads(rate, ttft, queue, models, errors, summary);
      this.drawTables(users, visitors, keys, links, views);
    } catch (error) {
      if (turn === this.load) this.say(wordsOf(error));
    }
  }

  private drawReadouts(now: Summary): void {
    this.span.textContent = `${momentOf.format(new Date(now.start))} ${t("stats.until")} ${momentOf.format(new Date(now.end))} UTC`;
    const change = (value: number, before: number): [string, string] => {
      if (!before) return ["", t("stats.no_before")];
      const percent = (100 * (value - before)) / before;
      if (percent > 1000) return [`×${GAP}${num(value / before)}`, t("stats.times_before")];
      return [`${percent >= 0 ? "+" : "−"}${num(Math.abs(percent), 1)}${GAP}%`, t("stats.on_before")];
    };
    const failed = now.failed + now.interrupted;
    const item = (name: string, value: string, unit: string, [strong, rest]: [string, string], cls = ""): HTMLElement =>
      h("div", { class: cls }, h("dt", null, name), h("dd", { class: "v" }, value, unit ? h("small", null, ` ${unit}`) : null), h("dd", { class: "s" }, strong ? h("b", null, strong) : null, strong ? " " : "", rest));
    const split = (value: number | null): [string, string] => (value === null ? ["–", ""] : duration(value));
    this.readouts.replaceChildren(
      item(t("stats.requests"), num(now.requests), "", change(now.requests, now.before.requests)),
      item(t("stats.output_tokens"), short(now.completion_tokens), "", change(now.completion_tokens, now.before.completion_tokens)),
      item(t("stats.active_users"), num(now.users + now.visitors), "", [t("stats.signed_in", { n: now.users }), t("stats.visitors", { n: now.visitors })]),
      item(t("stats.queue_p95"), ...split(now.queue_ms.p95), now.peak_waiting === null ? ["", `p50 ${ms(now.queue_ms.p50)}, p99 ${ms(now.queue_ms.p99)}`] : ["", `p99 ${ms(now.queue_ms.p99)}, ${t("stats.peak_waiting", { n: num(now.peak_waiting) })}`]),
      item(t("stats.ttft_p95"), ...split(now.ttft_ms.p95), ["", `p50 ${ms(now.ttft_ms.p50)}, p99 ${ms(now.ttft_ms.p99)}`]),
      item(t("stats.rate_p50"), whole(now.rate.p50), t("unit_rate"), this.ofBound(now) ?? ["", `p95 ${whole(now.rate.p95)}, p99 ${whole(now.rate.p99)}`], "sig"),
      item(t("stats.failed"), now.requests ? num((100 * failed) / now.requests, 2) : "–", now.requests ? "%" : "", [num(failed), t("stats.of_requests", { n: num(now.requests) })]),
    );
  }

  private ofBound({ rate, read_bound }: Summary): [string, string] | null {
    return rate.p50 === null || read_bound === null ? null : [`${num((100 * rate.p50) / read_bound, 1)}${GAP}%`, t("stats.of_bound", { bound: num(read_bound) })];
  }

  private drawCharts(now: Summary, points: Point[], people: PeoplePoint[]): void {
    const { label, full, every } = timeLabels(points);
    const by = timeLabels(people);
    const percentiles = (field: "rate" | "ttft_ms" | "queue_ms", all: Percentiles): Series[] =>
      (["p50", "p95", "p99"] as const).map((name, index) => ({ name, look: ["", "rv", "p99"][index]!, values: points.map((point) => point[field][name]), value: field === "rate" ? whole(all[name]) : ms(all[name]) }));
    const sum = (pick: (point: Point) => number): string => num(points.reduce((total, point) => total + pick(point), 0));
    const counts = (name: string, look: string, pick: (point: Point) => number): Series => ({ name, look, values: points.map(pick), value: sum(pick) });
    const neutral = "var(--bar)";
    this.charts.replaceChildren(
      this.box("decode_rate", t("stats.rate_note"), percentiles("rate", now.rate), "lines", label, full),
      this.box("first_token", t("stats.ttft_note"), percentiles("ttft_ms", now.ttft_ms), "lines", label, full),
      this.box("requests", `${every}, ${t("stats.by_outcome")}`, [counts(t("stats.complete"), neutral, (p) => p.done), counts(t("stats.stopped"), "var(--rival)", (p) => p.stopped), counts(t("stats.failed_low"), "var(--bad)", (p) => p.failed + p.interrupted)], "bars", label, full),
    );
    this.more.replaceChildren(
      this.box("queue_wait", t("stats.queue_note"), percentiles("queue_ms", now.queue_ms), "lines", label, full),
      this.box("tokens", every, [counts(t("stats.output"), neutral, (p) => p.completion_tokens), counts(t("stats.prompt"), "var(--rival)", (p) => p.prompt_tokens)], "bars", label, full),
      this.box("people", by.every, [{ name: t("stats.active"), look: "ink", values: people.map((p) => p.people) }, { name: t("stats.views"), look: "rv", values: people.map((p) => p.views), value: num(now.views) }], "apart", by.label, by.full),
    );
  }

  /** A chart with its switch to a table of the same figures. `apart`: lines of counts of different size, each over an axis of its own. */
  private box(key: string, sub: string, series: Series[], kind: "lines" | "bars" | "apart", label: string[], full: string[]): HTMLElement {
    const title = t(`stats.chart_${key}`);
    const draw = (): Node[] => {
      if (!this.asTable.has(key) && kind === "apart") {
        const last = series.length - 1;
        const one = (part: Series, index: number): HTMLElement => lines(this.describe(title, [part]), index === last ? label : label.map(() => ""), [part], "counts");
        return [legend(series, "lines"), h("div", { class: "apart" }, ...series.map(one))];
      }
      if (!this.asTable.has(key)) return [legend(series, kind === "bars" ? "bars" : "lines"), (kind === "bars" ? bars : lines)(this.describe(title, series), label, series)];
      const rows = full.map((name, index) => [name, ...series.map((one) => { const value = one.values[index]; return value === null || value === undefined ? "–" : num(value, value < 10 && value % 1 ? 1 : 0); })]);
      return [table(title, [t("stats.time_utc"), ...series.map((one) => one.name)], rows)];
    };
    return this.frame(key, title, sub, draw);
  }

  private frame(key: string, title: string, sub: string, draw: () => Node[]): HTMLElement {
    const body = h("div", { class: "bx" }, ...draw());
    const toggle = h("button", { type: "button", class: "btn q i sm", "aria-pressed": String(this.asTable.has(key)), "aria-label": t("stats.as_table", { name: title }), title: t("stats.as_table", { name: title }) }, tableIcon());
    toggle.addEventListener("click", () => {
      if (!this.asTable.delete(key)) this.asTable.add(key);
      toggle.setAttribute("aria-pressed", String(this.asTable.has(key)));
      body.replaceChildren(...draw());
    });
    return h("section", { class: "box" }, h("div", { class: "bh" }, h("h2", null, title), h("span", { class: "sp" }), toggle), h("p", { class: "m-sub" }, sub), body);
  }

  private describe(title: string, series: Series[]): string {
    return `${title}: ${series.map((one) => `${one.name} ${one.value ?? ""}`.trim()).join(", ")}`;
  }

  private drawSpreads(rate: Bar[], ttft: Bar[], queue: Bar[], models: UseRow[], errors: ErrorRow[], now: Summary): void {
    const spread = (key: string, sub: string, data: Bar[], unit: string, look: string): HTMLElement => {
      const name = t(`stats.chart_${key}`);
      const edges = marks([...data.map((bar) => bar.from), ...data.slice(-1).map((bar) => bar.to)]);
      const series: Series[] = [{ name: t("stats.requests"), look, values: data.map((bar) => bar.count) }];
      return this.frame(key, name, sub, () =>
        this.asTable.has(key) ? [table(name, [unit, t("stats.requests")], data.map((bar, index) => [`${edges[index]} – ${edges[index + 1]}`, num(bar.count)]))] : [bars(name, edges.slice(0, -1), series)],
      );
    };
    const modelRows = models.map((row) => [row.name, num(row.requests), short(row.completion_tokens), whole(row.rate_p50 ?? null), ms(row.ttft_p50 ?? null), num(row.failed + row.interrupted)]);
    const modelHeads = ["model", "requests", "output", "rate_p50_short", "ttft_short", "failed"].map((name) => t(`stats.${name}`));
    const shareOf = (row: ErrorRow): string => (now.requests && row.kind !== "refused" ? `${num((100 * row.requests) / now.requests, 2)}${GAP}%` : "–");
    const errorRows = errors.map((row) => [reason(row), num(row.requests), shareOf(row)]);
    this.spreads.replaceChildren(
      spread("rate_spread", t("stats.spread_rate_note"), rate, t("unit_rate"), "var(--signal)"),
      spread("ttft_spread", t("stats.spread_ttft_note"), ttft, "ms", "var(--bar)"),
      spread("queue_spread", t("stats.spread_ttft_note"), queue, "ms", "var(--bar)"),
      this.list(t("stats.errors"), t("stats.errors_note"), [t("stats.kind"), t("stats.requests"), t("stats.share")], errorRows, t("stats.no_errors")),
      this.list(t("stats.models"), "", modelHeads, modelRows, t("stats.nothing"), "two"),
    );
  }

  private list(title: string, sub: string, heads: string[], rows: (string | Node)[][], empty: string, cls = ""): HTMLElement {
    return h("section", { class: `box ${cls}` }, h("div", { class: "bh" }, h("h2", null, title)), sub ? h("p", { class: "m-sub" }, sub) : null, rows.length ? table(title, heads, rows) : h("p", { class: "m-sub" }, empty));
  }

  private drawTables(users: UseRow[], visitors: UseRow[], keys: UseRow[], links: UseRow[], views: { id: string; name: string; views: number }[]): void {
    const figures = (row: UseRow): string[] => [num(row.requests), short(row.completion_tokens), num(row.failed + row.interrupted)];
    const heads = (name: string): string[] => [t(name), ...["requests", "output", "failed"].map((part) => t(`stats.${part}`))];
    const act = (row: { name: string }, label: string, ask: string, what: () => Promise<void>): HTMLElement | string =>
      row.name ? h("button", { type: "button", class: "lk", onClick: () => this.ask(label, t(ask, { name: row.name }), what) }, label) : "";
    const named = (row: { name: string }): string => row.name || t("stats.deleted");
    const seen = new Map(views.map((row) => [row.id, row.views]));
    const linkRows = [...links, ...views.filter((row) => !links.some((link) => link.id === row.id)).map((row) => ({ ...row, requests: 0, prompt_tokens: 0, completion_tokens: 0, failed: 0, interrupted: 0 }) as unknown as UseRow)];
    this.tables.replaceChildren(
      this.list(t("stats.users"), "", [...heads("stats.user"), t("stats.actions")], users.map((row) => [named(row), ...figures(row), act(row, t("stats.block"), "stats.block_ask", () => stats.block(row.id))]), t("stats.nothing")),
      this.list(t("stats.visitors_title"), t("stats.visitors_note"), heads("stats.visitor"), visitors.map((row) => [t("stats.visitor_named", { id: row.id.slice(0, 8) }), ...figures(row)]), t("stats.nothing")),
      this.list(t("stats.keys"), "", [...heads("stats.key"), t("stats.actions")], keys.map((row) => [named(row), ...figures(row), act(row, t("stats.revoke"), "stats.revoke_key_ask", () => stats.revokeKey(row.id))]), t("stats.nothing")),
      this.list(t("stats.links"), t("stats.links_note"), [t("stats.link"), t("stats.views"), t("stats.requests"), t("stats.output"), t("stats.actions")], linkRows.map((row) => [named(row), num(seen.get(row.id) ?? 0), num(row.requests), short(row.completion_tokens), act(row, t("stats.revoke"), "stats.revoke_ask", () => stats.revokeLink(row.id))]), t("stats.nothing")),
    );
  }

  /** Asks once, names the object and what happens, then does it. */
  private ask(label: string, text: string, what: () => Promise<void>): void {
    const yes = button({ label, kind: "p" });
    const layer = openSheet(label, h("div", { class: "asks" }, h("p", null, text), h("div", { class: "foot" }, yes)));
    yes.addEventListener("click", () => {
      layer.close();
      what().then(() => this.say(t("stats.did", { what: label })), (error: unknown) => this.say(wordsOf(error)));
    });
  }

  // Engines -------------------------------------------------------------------------------------------------------------

  private async watchEngines(): Promise<void> {
    try {
      if (!document.hidden) this.drawEngines(await stats.workers());
    } catch (error) {
      this.engineCount.textContent = error instanceof ApiError ? wordsOf(error) : "";
    }
    setTimeout(() => void this.watchEngines(), WORKERS_MS);
  }

  private drawEngines({ waiting, engines }: { waiting: number | null; engines: EngineRow[] }): void {
    this.engineCount.textContent = `${t("stats.n_engines", { n: engines.filter((engine) => engine.alive).length })}, ${t("stats.n_waiting", { n: waiting ?? 0 })}`;
    if (this.engines.contains(document.activeElement) && this.engines.querySelector("tbody")?.childElementCount === engines.length) {
      this.engines.querySelectorAll("tbody tr").forEach((row, index) => this.fillEngine(row as HTMLElement, engines[index]!, false));
      return; // what has the focus stays
    }
    if (engines.length === 0) {
      this.engines.replaceChildren(h("p", { class: "m-sub" }, t("stats.no_engine")));
      return;
    }
    const heads = ["engine", "state", "rate_now", "gpus", "model", "request", "memory", "heartbeat", "actions"];
    const head = h("tr", null, ...heads.map((name) => h("th", { scope: "col", class: name === "rate_now" || name === "heartbeat" ? "n" : "" }, name === "actions" ? h("span", { class: "vh" }, t("stats.actions")) : t(`stats.${name}`))));
    const rows = engines.map((engine) => {
      const row = h("tr");
      this.fillEngine(row, engine, true);
      return row;
    });
    this.engines.replaceChildren(h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": t("stats.workers_now") }, h("table", null, h("thead", null, head), h("tbody", null, ...rows))));
  }

  private fillEngine(row: HTMLElement, engine: EngineRow, whole: boolean): void {
    const late = engine.heartbeat_s > 4;
    const shape = late ? "interrupted" : engine.state === "busy" ? (engine.prefill ? "prefill" : "streaming") : engine.state === "ready" ? (engine.draining ? "stopped" : "idle") : engine.state;
    const word = late ? "late" : engine.draining ? "draining" : engine.state === "busy" ? (engine.prefill ? "prefill" : "streaming") : engine.state;
    const detail = engine.state === "loading" || engine.state === "failed" ? engine.detail : "";
    const memory = engine.memory ? memoryCell(engine.memory) : ["–"];
    const request = engine.generation ? [engine.generation.slice(0, 8), engine.prefill ? `, ${num(engine.prefill[0])} ${t("share.of", { total: num(engine.prefill[1]) })}` : ""] : ["–"];
    const cells: [string, (Node | string)[]][] = [
      ["", [h("span", { class: `lamp s-${shape}` }, lamp(shape), t(`stats.state_${word}`)), detail ? h("small", { class: "why" }, detail) : ""]],
      ["n big", [engine.rate ? num(engine.rate) : "–"]],
      ["", [engine.gpus ? `${engine.gpus} × ${(engine.device ?? "").replace(/^NVIDIA /, "")}` : (engine.device ?? "–")]],
      ["", [engine.model]],
      ["mono2", request],
      ["", memory],
      [late ? "n hold" : "n", [`${num(engine.heartbeat_s, late ? 0 : 1)}${GAP}s`]],
    ];
    const made = cells.map(([cls, content]) => h("td", { class: cls }, ...content));
    const acts = `${engine.alive} ${engine.draining} ${engine.generation ?? ""}`;
    if (whole) {
      row.append(h("th", { scope: "row" }, `${engine.host} / ${engine.slot}`), ...made, h("td", { class: "n acts" }, ...this.engineActs(engine)));
    } else {
      made.forEach((cell, index) => row.children[index + 1]?.replaceWith(cell));
      const box = row.lastElementChild!;
      const focused = box.contains(document.activeElement);
      if (row.dataset.acts !== acts) box.replaceChildren(...this.engineActs(engine));
      if (focused && !box.contains(document.activeElement)) box.querySelector("button")?.focus();
    }
    row.dataset.acts = acts;
  }

  private engineActs(engine: EngineRow): HTMLElement[] {
    if (!engine.alive) return [];
    const name = `${engine.host} / ${engine.slot}`;
    const link = (key: string, what: () => Promise<void>): HTMLElement => h("button", { type: "button", class: "lk", onClick: () => this.ask(t(`stats.${key}`), t(`stats.${key}_ask`, { name }), what) }, t(`stats.${key}`));
    const acts = [
      engine.draining ? link("resume", () => stats.engine("resume", engine.worker, engine.slot)) : link("drain", () => stats.engine("drain", engine.worker, engine.slot)),
      link("restart", () => stats.engine("restart", engine.worker, engine.slot)),
    ];
    if (engine.generation) acts.unshift(link("cancel", () => stats.cancel(engine.generation!)));
    return acts;
  }
}

/** Names of the points for the axis and for the table, and "per hour", "per day" or "per week". */
function timeLabels(points: { start: string }[]): { label: string[]; full: string[]; every: string } {
  const days = points.length > 1 ? (Date.parse(points[1]!.start) - Date.parse(points[0]!.start)) / 86_400_000 : 1;
  const hourly = days < 1;
  return {
    label: points.map(({ start }) => (!hourly ? dayOf.format(new Date(start)) : points.length <= 25 ? hourOf.format(new Date(start)) : start.includes("T00:") ? dayOf.format(new Date(start)) : "")),
    full: points.map(({ start }) => (hourly ? momentOf : dayOf).format(new Date(start))),
    every: t(hourly ? "stats.per_hour" : days > 1 ? "stats.per_week" : "stats.per_day"),
  };
}

/** Why requests failed, were stopped or refused: in words, with the server's code as its tooltip. */
function reason({ kind, name }: ErrorRow): HTMLElement {
  const key = `stats.code_${name}`;
  const said = kind === "stop" ? t("stats.stopped_by_people") : t(key) === key ? name : t(key);
  const text = kind === "refused" ? t("stats.refused", { name: said }) : said;
  return h("span", { title: kind === "stop" ? text : `${text} (${name})` }, text);
}

function memoryCell({ used, total }: { used: number; total: number }): (Node | string)[] {
  const fill = h("i");
  fill.style.width = `${Math.min(100, (100 * used) / total)}%`;
  const gb = (bytes: number): string => num(bytes / 1e9, bytes < 1e10 ? 1 : 0);
  return [h("span", { class: "mem", "aria-hidden": "true" }, fill), `${gb(used)} ${t("share.of", { total: gb(total) })}${GAP}GB`];
}

followSystemTheme();
const root = document.getElementById("app");
if (root) new StatsPage(root);
