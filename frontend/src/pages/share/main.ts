import "../../styles/site.css";
import "../../styles/instrument.css";
import "../../workbench/workbench.css";
import "../parts/pages.css";
import "./share.css";
import type { ModelCard } from "../../api/types";
import { links } from "../../api/links";
import { wordsAndCode } from "../../chat/said";
import { GAP, num, t } from "../../i18n";
import { wordsOf } from "../../i18n/errors";
import { deviceName } from "../../instrument/instrument";
import { button, h } from "../../shell/dom";
import { followSystemTheme } from "../../shell/theme";
import { downloadFile } from "../../workbench/download";
import { dateLanguage } from "../parts/dates";
import { publicTop } from "../parts/top";
import { forkIcon } from "../parts/icons";
import { Player } from "./player";
import type { Answer } from "./recording";

interface Demo {
  title: string;
  url: string;
  owner_name: string;
  expires_at: string | null;
  recorded_at: string;
  model: Partial<ModelCard>;
  turns: { prompt: string; answer: Answer }[];
  embed: boolean;
}

/** The page of a shared demo, or, embedded, its instrument, transport and code alone. */
class DemoPage {
  private player: Player | null = null;
  private readonly side = h("aside", { class: "side", "aria-label": t("share.about") });
  private readonly main = h("div", { class: "sh" });
  private readonly copy = button({ icon: "copy", name: t("share.copy"), onClick: () => void this.copyCode() });
  private readonly runButton = button({ icon: "play", label: t("share.run"), onClick: () => this.player?.runFile() });
  private readonly note = h("p", { class: "vh", role: "status" });

  constructor(
    private readonly demo: Demo,
    root: HTMLElement,
  ) {
    if (demo.embed) {
      root.append(h("main", { id: "main", class: "page embed" }, h("h1", { class: "vh" }, demo.title), this.main));
    } else {
      const page = h("div", { class: "page" }, publicTop(t("share.kind"), h("a", { class: "btn", href: "/" }, t("share.open_playground"))));
      page.append(h("main", { id: "main", class: "demo" }, this.heading(), this.main, this.note));
      root.append(h("a", { class: "skip", href: "#main" }, t("skip")), page);
    }
    this.show(demo.turns.length - 1);
  }

  private show(index: number): void {
    const turn = this.demo.turns[index]!;
    this.player?.close();
    this.player = new Player(turn.answer, this.demo.model);
    this.player.onPart = () => this.drawRun();
    this.drawRun();
    if (this.demo.embed) this.main.replaceChildren(this.player.element);
    else {
      this.drawSide(index);
      this.main.replaceChildren(this.side, this.player.element);
    }
  }

  private drawRun(): void {
    this.runButton.disabled = !this.player?.canRun;
  }

  private heading(): HTMLElement {
    const { demo } = this;
    const day = (text: string): string => new Intl.DateTimeFormat(dateLanguage, { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" }).format(new Date(text));
    const meta = h("p", { class: "meta" }, h("span", null, t("share.recorded", { day: day(demo.recorded_at) })), h("span", null, t("share.fixed")));
    if (demo.expires_at) meta.append(h("span", null, t("share.expires", { day: day(demo.expires_at) })));
    if (demo.owner_name) meta.append(h("span", { dir: "auto" }, t("share.by", { name: demo.owner_name })));
    const fork = button({ kind: "p", name: t("share.fork"), onClick: () => void this.fork(fork) });
    fork.append(forkIcon(), h("span", null, t("share.fork_short"), h("span", { class: "hide-xs" }, t("share.fork_rest"))));
    fork.classList.add("fork");
    const download = button({ icon: "download", name: t("share.download"), onClick: () => this.player && downloadFile(this.player.file) });
    const acts = h("div", { class: "acts" }, this.copy, download, this.runButton, fork);
    return h("div", { class: "hd-row" }, h("div", null, h("h1", { dir: "auto" }, demo.title), meta), acts);
  }

  private drawSide(index: number): void {
    const { turns } = this.demo;
    const turn = turns[index]!;
    const prompts = turns.map(({ prompt }, i) =>
      turns.length === 1
        ? h("div", { class: "pr" }, ...wordsAndCode(prompt))
        : h("button", { type: "button", class: "pr", "aria-pressed": String(i === index), onClick: () => this.show(i) }, ...wordsAndCode(prompt)),
    );
    this.side.replaceChildren(h("h2", null, t(turns.length === 1 ? "share.prompt" : "share.prompts")), ...prompts, ...this.comparison(turn.answer), ...this.facts(turn.answer));
  }

  /** The same tokens at other speeds: bars of time, shorter is faster. */
  private comparison(answer: Answer): HTMLElement[] {
    const tokens = answer.usage?.completion_tokens ?? 0;
    const total = answer.timings?.total_ms;
    if (!tokens || !total) return [];
    const rows: [string, number, string][] = [
      [t("share.this_run", { machine: deviceName(this.demo.model as ModelCard) || "–" }), total / 1000, "--signal"],
      [t("share.paced_300"), tokens / 300, "--rival"],
      [t("share.paced_46"), tokens / 46, "--rival"],
    ];
    const longest = Math.max(...rows.map(([, time]) => time));
    const list = h("ul", { class: "cmp" });
    for (const [name, time, colour] of rows) {
      const bar = h("i", { "aria-hidden": "true" });
      bar.style.setProperty("--w", `${(100 * time) / longest}%`);
      bar.style.setProperty("--c", `var(${colour})`);
      list.append(h("li", null, h("span", null, name), h("b", null, `${num(time, 1)}${GAP}s`), bar));
    }
    return [h("h2", null, t("share.same_tokens", { n: tokens })), list];
  }

  private facts(answer: Answer): HTMLElement[] {
    const { model } = this.demo;
    const rows: [string, string][] = [];
    const add = (name: string, value: string | null | undefined): void => void (value && rows.push([t(name), value]));
    add("share.model", model.title);
    add("share.backend", model.backend);
    if (answer.usage) {
      add("share.prompt", t("share.n_tokens", { n: answer.usage.prompt_tokens }));
      const ended = answer.state === "done" ? `share.end_of_${answer.finish_reason || "stop"}` : `share.end_of_${answer.state}`;
      add("share.output", `${t("share.n_tokens", { n: answer.usage.completion_tokens })}, ${t(ended)}`);
    }
    const { temperature, top_p, seed } = answer.params;
    const sampling = [temperature === 0 ? t("share.greedy") : temperature !== undefined && `T ${num(temperature, 1)}`, top_p !== undefined && top_p < 1 && `top-p ${num(top_p, 2)}`, seed !== undefined && `seed ${seed}`];
    add("share.sampling", sampling.filter(Boolean).join(", "));
    if (model.bytes_per_token) add("share.read", `${num(model.bytes_per_token / 1e9, 3)}${GAP}GB`);
    if (rows.length === 0) return [];
    const list = h("dl", { class: "facts" });
    for (const [name, value] of rows) list.append(h("div", null, h("dt", null, name), h("dd", null, value)));
    return [h("h2", null, t("share.run_facts")), list];
  }

  private async copyCode(): Promise<void> {
    await navigator.clipboard.writeText(this.player?.file.code ?? "");
    this.copy.title = t("copied");
    this.note.textContent = t("copied");
  }

  private async fork(from: HTMLButtonElement): Promise<void> {
    from.disabled = true;
    try {
      const made = await links.fork(this.demo.url.split("/").pop()!);
      location.assign(`/c/${made.conversation_id}`);
    } catch (error) {
      from.disabled = false;
      this.note.classList.remove("vh");
      this.note.textContent = wordsOf(error);
    }
  }
}

followSystemTheme();
const boot = document.getElementById("boot")?.textContent;
const root = document.getElementById("app");
if (boot && root) new DemoPage(JSON.parse(boot) as Demo, root);
