import { api } from "../api/http";
import { PlaygroundSocket } from "../api/socket";
import type { AcceptedFrame, Boot, ErrorFrame, GenerateFrame } from "../api/types";
import { t } from "../i18n";
import { button, h, randomId } from "../shell/dom";
import { Frame } from "../shell/frame";
import { galleryPrompts, openGallery } from "../shell/gallery";
import { openShortcuts } from "../shell/help";
import { openPalette } from "../shell/palette";
import { switchTheme } from "../shell/theme";
import { Generation } from "../store/generation";
import { remember, SettingsStore } from "../store/settings";
import { Board } from "./board";
import { Lane } from "./lane";
import { Replay } from "./replay";
import "./race.css";

const BUDGET_MS = 7;
const PACES = [100, 300];
const KEY = "race-prompt";

/** Two lanes, one prompt. Lane B is another model, the same one with its own draw, or a paced replay of A. */
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
  private readonly waiting = new Map<string, { run: Generation; lane: Lane }>();
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
    this.a = new Lane("A", models, this.settings.value.model, () => this.reset(), () => this.stop(this.a));
    this.b = new Lane("B", [...models, ...paces], second, () => this.reset(), () => this.stop(this.b));
    this.prompt = h("textarea", { class: "field", rows: 1, "aria-label": t("race_ask"), dir: "auto", enterkeyhint: "go" });
    this.prompt.value = localStorage.getItem(KEY) ?? galleryPrompts()[0]?.prompt ?? "";
    this.startButton = button({ icon: "play", label: t("race_start"), kind: "p", onClick: () => this.start() });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      this.start();
    });
    const ask = h("div", { class: "ask" }, this.prompt, h("div", { class: "racts" }, button({ icon: "swap", name: t("race_swap"), onClick: () => this.swap() }), this.startButton));
    const main = h("main", { id: "main", class: "rc", tabindex: "-1" }, h("h1", { class: "vh" }, t("race")), ask, this.error, this.board.element, h("div", { class: "lanes" }, this.a.element, this.b.element));
    root.replaceChildren(h("a", { class: "skip", href: "#main" }, t("skip")), this.status, h("div", { class: "app race" }, this.frame.top, this.frame.rail, main));
    this.socket = new PlaygroundSocket(boot.socket_path, {
      link: (state) => this.frame.setLink(state),
      accepted: (frame) => this.accepted(frame),
      refused: (frame) => this.refused(frame),
      unanswered: () => this.showError(t("error_unanswered")),
    });
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

  private pace(): number | null {
    return this.b.select.value.startsWith("replay:") ? Number(this.b.select.value.slice(7)) : null;
  }

  private reset(): void {
    if (this.running) return;
    this.a.bind(null, this.card(this.a.select.value), null);
    this.b.bind(null, this.card(this.b.select.value), this.pace());
    this.replay = null;
    this.schedule();
  }

  private card(name: string): Boot["models"][number] | null {
    return this.boot.models.find((card) => card.name === name) ?? null;
  }

  private start(): void {
    this.error.replaceChildren();
    const text = this.prompt.value.trim();
    if (!text) return this.showError(t("error_empty"));
    if (this.running) return;
    remember(KEY, text);
    const run = this.request(this.a, text, {});
    if (!run) return this.showError(t("error_offline"));
    const pace = this.pace();
    this.replay = pace === null ? null : new Replay(run, pace);
    if (this.replay) {
      this.b.bind(this.replay.run, null, pace);
      this.replay.run.subscribe(() => this.schedule());
    } else this.b.bind(new Generation("", this.b.select.value, null), this.card(this.b.select.value), null);
    this.said = "";
    this.say(t("status_generating"));
    this.startButton.querySelector(".lb")?.replaceChildren(t("race_again"));
    clearInterval(this.timer);
    this.timer = window.setInterval(() => this.schedule(), 50);
  }

  private request(lane: Lane, text: string, where: Partial<GenerateFrame>): Generation | null {
    const params = { ...this.settings.params(), model: lane.select.value };
    const requestId = randomId();
    const frame: GenerateFrame = { type: "generate", request_id: requestId, messages: [{ role: "user", content: text }], params, ...where };
    const run = new Generation("", params.model, params.max_tokens);
    this.waiting.set(requestId, { run, lane });
    if (!this.socket.generate(frame)) {
      this.waiting.delete(requestId);
      return null;
    }
    run.subscribe(() => this.schedule());
    lane.bind(run, this.card(params.model), null);
    return run;
  }

  /** Lane B hangs its answer beside A's, as another version of the same chat. */
  private accepted(frame: AcceptedFrame): void {
    const found = this.waiting.get(frame.request_id);
    if (!found) return;
    this.waiting.delete(frame.request_id);
    found.run.id = frame.generation_id;
    this.socket.follow(found.run);
    if (found.lane === this.a && this.replay === null) {
      this.request(this.b, this.prompt.value.trim(), { conversation_id: frame.conversation_id, user_message_id: frame.user_message_id });
    }
    if (found.lane === this.a) void api.rename(frame.conversation_id, `${t("race")}: ${this.prompt.value.trim().slice(0, 60)}`).catch(() => {});
  }

  private refused(frame: ErrorFrame): void {
    const found = frame.request_id ? this.waiting.get(frame.request_id) : undefined;
    if (frame.request_id) this.waiting.delete(frame.request_id);
    found?.run.apply({ ...frame, generation_id: "" });
    this.showError(frame.message);
  }

  private stop(lane: Lane): void {
    if (lane === this.b && this.replay) this.replay.stop();
    else if (lane.run && !lane.run.ended && lane.run.id) this.socket.stop(lane.run.id);
  }

  private swap(): void {
    if (this.running || this.pace() !== null) return;
    [this.a.select.value, this.b.select.value] = [this.b.select.value, this.a.select.value];
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
    this.board.update(this.a.run, this.b.run, ratio, t(this.replay ? "race_same" : this.boot.models.length > 1 ? "race_two" : "race_one_model"));
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
