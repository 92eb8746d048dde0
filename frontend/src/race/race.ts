import { api } from "../api/http";
import { PlaygroundSocket, type Link } from "../api/socket";
import type { AcceptedFrame, Boot, ErrorFrame, GenerateFrame, Params } from "../api/types";
import { t } from "../i18n";
import { errorText, wordsOf } from "../i18n/errors";
import { button, h, randomId } from "../shell/dom";
import { Frame } from "../shell/frame";
import { galleryPrompts, openGallery } from "../shell/gallery";
import { openShortcuts } from "../shell/help";
import { openPalette } from "../shell/palette";
import { switchTheme } from "../shell/theme";
import { Generation } from "../store/generation";
import { recalled, remember } from "../shell/memory";
import { SettingsStore } from "../store/settings";
import { Board } from "./board";
import { Lane } from "./lane";
import { Replay } from "./replay";
import "./race.css";

const BUDGET_MS = 7;
const PACES = [100, 300];
const KEY = "race-prompt";

/** Two lanes, one prompt: two models, one model with two draws, or a model against a paced replay of its own text. */
export class Race {
  private readonly settings: SettingsStore;
  private readonly socket: PlaygroundSocket;
  private readonly frame: Frame;
  private readonly board = new Board();
  private readonly a: Lane;
  private readonly b: Lane;
  private readonly prompt: HTMLTextAreaElement;
  private readonly startButton: HTMLButtonElement;
  private readonly error = h("div", { class: "errors" });
  private readonly status = h("div", { class: "vh", role: "status" });
  private readonly waiting = new Map<string, Generation>();
  private starting = false;
  private replay: Replay | null = null;
  private said = "";
  private scheduled = false;
  private timer = 0;

  constructor(
    private readonly boot: Boot,
    root: HTMLElement,
  ) {
    this.settings = new SettingsStore(boot.models, boot.default_model);
    const goHome = (): void => location.assign("/");
    this.frame = new Frame(
      boot,
      {
        newChat: goHome,
        chats: goHome,
        gallery: () => openGallery((prompt) => this.usePrompt(prompt)),
        race: () => this.prompt.focus(),
        links: () => location.assign("/links/"),
        help: () => openShortcuts(),
        find: () => this.openFind(),
        share: () => {},
        titleMenu: () => {},
      },
      "race",
    );
    this.frame.setTitle(t("race"));
    this.frame.share.hidden = true;
    const models = boot.models.map((card) => ({ value: card.name, label: card.title }));
    const paces = PACES.map((pace) => ({ value: `replay:${pace}`, label: t("race_replay_of", { n: pace }) }));
    const second = boot.models.find((card) => card.name !== this.settings.value.model)?.name ?? "replay:100";
    const choices = [...models, ...paces];
    const presets = this.settings.choices().map((one) => one.label);
    this.a = new Lane("A", choices, this.settings.value.model, presets, () => this.chosen(this.a), () => this.stop(this.a));
    this.b = new Lane("B", choices, second, presets, () => this.chosen(this.b), () => this.stop(this.b));
    this.prompt = h("textarea", { class: "field", rows: 1, "aria-label": t("race_ask"), dir: "auto", enterkeyhint: "go" });
    this.prompt.value = recalled(KEY) ?? galleryPrompts()[0]?.prompt ?? "";
    this.startButton = button({ icon: "play", label: t("race_start"), kind: "p", onClick: () => this.start() });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      this.start();
    });
    const ask = h("div", { class: "ask" }, this.prompt, h("div", { class: "racts" }, button({ icon: "swap", name: t("race_swap"), onClick: () => this.swap() }), this.startButton));
    const main = h("main", { id: "main", class: "rc", tabindex: "-1" }, h("h1", { class: "vh" }, t("race")), ask, this.error, this.board.element, h("div", { class: "lanes" }, this.a.element, this.b.element));
    root.replaceChildren(h("a", { class: "skip", href: "#main" }, t("skip")), this.status, h("div", { class: "app race" }, this.frame.top, this.frame.rail, main));
    const events = {
      link: (state: Link) => this.frame.setLink(state),
      accepted: (frame: AcceptedFrame) => this.accepted(frame),
      refused: (frame: ErrorFrame) => this.refused(frame),
      unanswered: () => this.showError(t("error_unanswered")),
    };
    this.socket = new PlaygroundSocket(boot.socket_path, events, boot.limits["message_bytes"] ?? Infinity);
    window.addEventListener("keydown", (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        this.openFind();
      } else if (event.key === "Escape" && !document.querySelector("dialog[open]")) for (const lane of [this.a, this.b]) this.stop(lane);
    });
    this.socket.connect();
    this.reset();
    document.title = t("race");
  }

  private get running(): boolean {
    return [this.a.run, this.b.run].some((run) => run !== null && !run.ended);
  }

  private paceOf(lane: Lane): number | null {
    return lane.select.value.startsWith("replay:") ? Number(lane.select.value.slice(7)) : null;
  }

  private other(lane: Lane): Lane {
    return lane === this.a ? this.b : this.a;
  }

  /** A replay needs a model to replay: two replays make the other lane one. */
  private chosen(lane: Lane): void {
    if (this.paceOf(this.a) !== null && this.paceOf(this.b) !== null) this.other(lane).select.value = this.settings.value.model;
    this.reset();
  }

  private reset(): void {
    if (this.running || this.starting) return;
    for (const lane of [this.a, this.b]) {
      const pace = this.paceOf(lane);
      lane.bind(null, this.card(lane.select.value), pace === null ? this.paramsOf(lane) : null, pace);
    }
    this.replay = null;
    this.schedule();
  }

  private paramsOf(lane: Lane): Params {
    const preset = this.settings.choices()[Number(lane.presets.value || -1)]?.preset;
    return { ...this.settings.params(preset), model: lane.select.value };
  }

  private card(name: string): Boot["models"][number] | null {
    return this.boot.models.find((card) => card.name === name) ?? null;
  }

  private start(): void {
    this.error.replaceChildren();
    const text = this.prompt.value.trim();
    if (!text) return this.showError(t("error_empty"));
    if (this.running || this.starting) return;
    remember(KEY, text);
    this.starting = true;
    void this.race(text).then(
      () => (this.starting = false),
      (error: unknown) => {
        this.starting = false;
        this.showError(wordsOf(error));
      },
    );
  }

  /** Both requests leave together: the chat that holds the two answers is made first. */
  private async race(text: string): Promise<void> {
    const paced = [this.a, this.b].find((lane) => this.paceOf(lane) !== null);
    if (paced) {
      const run = this.request(this.other(paced), text, {});
      const pace = this.paceOf(paced) as number;
      this.replay = new Replay(run, pace);
      paced.bind(this.replay.run, null, null, pace);
      this.replay.run.subscribe(() => this.schedule());
    } else {
      this.replay = null;
      const { id } = await api.importConversation({ title: titleOf(text), messages: [{ id: "1", parent_id: null, role: "user", content: text }] });
      const asked = (await api.conversation(id)).messages[0]?.id ?? "";
      const where = { conversation_id: id, user_message_id: asked };
      this.request(this.a, text, where);
      this.request(this.b, text, where);
    }
    this.said = "";
    this.say(t("status_generating"));
    this.startButton.querySelector(".lb")?.replaceChildren(t("race_again"));
    clearInterval(this.timer);
    this.timer = window.setInterval(() => this.schedule(), 50);
  }

  private request(lane: Lane, text: string, where: Partial<GenerateFrame>): Generation {
    const params = this.paramsOf(lane);
    const requestId = randomId();
    const frame: GenerateFrame = { type: "generate", request_id: requestId, messages: [{ role: "user", content: text }], params, ...where };
    const run = new Generation("", params.model, params.max_tokens);
    this.socket.generate(frame);
    this.waiting.set(requestId, run);
    run.subscribe(() => this.schedule());
    lane.bind(run, this.card(params.model), params, null);
    return run;
  }

  private accepted(frame: AcceptedFrame): void {
    const run = this.waiting.get(frame.request_id);
    if (!run) return;
    this.waiting.delete(frame.request_id);
    run.id = frame.generation_id;
    this.socket.follow(run);
    if (this.replay) void api.rename(frame.conversation_id, titleOf(this.prompt.value)).catch(() => {});
  }

  private refused(frame: ErrorFrame): void {
    const found = frame.request_id ? this.waiting.get(frame.request_id) : undefined;
    if (frame.request_id) this.waiting.delete(frame.request_id);
    found?.apply({ ...frame, generation_id: "" });
    this.showError(errorText(frame));
  }

  private stop(lane: Lane): void {
    if (this.replay && lane.run === this.replay.run) this.replay.stop();
    else if (lane.run && !lane.run.ended && lane.run.id) this.socket.stop(lane.run.id);
  }

  private swap(): void {
    if (this.running || this.starting) return;
    [this.a.select.value, this.b.select.value] = [this.b.select.value, this.a.select.value];
    [this.a.presets.value, this.b.presets.value] = [this.b.presets.value, this.a.presets.value];
    this.reset();
  }

  private usePrompt(prompt: string): void {
    this.prompt.value = prompt;
    this.start();
  }

  private schedule(): void {
    if (this.scheduled) return;
    this.scheduled = true;
    const turn = (): void => {
      this.scheduled = false;
      this.turn();
    };
    if (document.hidden) setTimeout(turn, 200);
    else requestAnimationFrame(turn);
  }

  private turn(): void {
    const deadline = performance.now() + BUDGET_MS;
    this.replay?.tick();
    const drawn = this.a.update(deadline);
    const bothDrawn = this.b.update(deadline + BUDGET_MS) && drawn;
    const ratio = this.a.comparable && this.b.comparable ? (this.a.rate ?? 0) / (this.b.rate ?? 1) : null;
    this.board.update(this.a.run, this.b.run, ratio, this.note());
    for (const run of [this.a.run, this.b.run]) if (run && !run.ended && run.id && !run.id.startsWith("replay")) this.socket.ack(run.id, run.lastEventId);
    this.startButton.disabled = this.running;
    if (!this.running && this.a.run) {
      this.say(`${t("state_complete")}. A: ${Math.round(this.a.rate ?? 0)}, B: ${Math.round(this.b.rate ?? 0)} ${t("unit_rate")}`);
      if (this.timer && bothDrawn) {
        clearInterval(this.timer);
        this.timer = 0;
        setTimeout(() => this.schedule(), 150); // the last readings, past their ten-a-second limit
      }
    }
    if (!bothDrawn) this.schedule();
  }

  /** What the ratio compares, and whether the lanes run at once: before the start as far as the engines allow, then as it was. */
  private note(): string {
    if (this.replay) return t("race_same");
    if (!this.a.run || !this.b.run) return this.paceOf(this.a) ?? this.paceOf(this.b) ? t("race_none") : this.outlook();
    const { run: a } = this.a;
    const { run: b } = this.b;
    const sameDraw = this.a.presets.value === this.b.presets.value;
    const what = t(this.a.select.value !== this.b.select.value ? "race_two" : sameDraw ? "race_one_model" : "race_two_sets");
    if (!a?.ended || !b?.ended) return what;
    return `${what} ${t(a.startedAt < b.endedAt && b.startedAt < a.endedAt ? "race_together" : "race_in_turn")}`;
  }

  private outlook(): string {
    const engines = Math.max(...[this.a, this.b].map((lane) => this.card(lane.select.value)?.engines ?? 0));
    return engines === 0 ? t("race_none") : t("race_engines", { n: engines });
  }

  private say(text: string): void {
    if (text === this.said) return;
    this.said = text;
    this.status.textContent = text;
  }

  private showError(text: string): void {
    this.error.replaceChildren(h("div", { class: "rowerr", role: "alert" }, h("p", null, text)));
  }

  private openFind(): void {
    openPalette(
      [
        { label: t("race_start"), act: () => this.start() },
        { label: t("race_swap"), act: () => this.swap() },
        { label: t("new_chat"), act: () => location.assign("/") },
        { label: t("gallery"), act: () => openGallery((prompt) => this.usePrompt(prompt)) },
        { label: t("switch_theme"), act: () => void switchTheme() },
      ],
      (id) => location.assign(`/c/${id}`),
    );
  }
}

function titleOf(prompt: string): string {
  return `${t("race")}: ${prompt.trim().slice(0, 60)}`;
}
