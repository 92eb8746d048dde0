import { num, t } from "../../i18n";
import type { Run, RunListener } from "../../sandbox/runner";
import { ConsolePane } from "../../workbench/console";
import { languageFamily } from "../../workbench/tokens";

export interface ShownFile {
  name: string;
  language: string;
  code: string;
}

export function runnable(language: string): boolean {
  return ["python", "html", "javascript"].includes(languageFamily(language));
}

/** Runs a file of the demo in the same sandbox as the workbench, with the same console. */
export class RunPane {
  private readonly console: ConsolePane;
  private host: import("../../sandbox/runner").WorkerHost | null = null;
  private run: Run | null = null;
  private started = 0;

  constructor(
    private readonly pane: HTMLElement,
    codePane: HTMLElement,
  ) {
    this.console = new ConsolePane(pane, codePane, t);
    this.console.stop.addEventListener("click", () => this.run?.stop());
    pane.hidden = true;
  }

  async start(file: ShownFile, files: ShownFile[]): Promise<void> {
    this.run?.stop();
    this.pane.hidden = false;
    this.console.clear();
    this.console.preview.replaceChildren();
    this.console.setOpen(true);
    this.console.stop.hidden = false;
    const { Preview, WorkerHost } = await import("../../sandbox/runner");
    const family = languageFamily(file.language);
    const listener = this.listener(file.name);
    this.console.preview.hidden = family !== "html";
    this.console.setStatus(t("workbench.status.starting"), "live");
    if (family === "html") {
      const { guardLoops } = await import("../../sandbox/loop-guard");
      const words = { loop: t("workbench.loop"), blocked: t("workbench.blocked") };
      const preview = new Preview(this.console.preview, t("workbench.console.preview", { name: file.name }), listener, words, guardLoops, files);
      this.run = preview;
      this.console.setStatus(t("workbench.status.preview"), "live");
      preview.write(file.code);
      preview.close();
      return;
    }
    this.host ??= new WorkerHost(this.pane);
    this.run = family === "python" ? this.host.runPython(files, file.name, t("workbench.input"), listener) : this.host.runScript(file.code, listener);
  }

  private listener(name: string): RunListener {
    return {
      loading: (done, total) => this.console.setStatus(t("workbench.status.loading", { done: num(done / 1e6, 1), total: num(total / 1e6, 1) }), "live"),
      started: () => {
        this.started = performance.now();
        this.console.setStatus(t("share.running", { name }), "live");
      },
      output: (items, dropped) => this.console.write(items, dropped),
      error: (error) => this.console.write([["err", `${error.details || error.message}\n`]], 0),
      end: (reason) => {
        this.console.stop.hidden = true;
        const time = num((performance.now() - this.started) / 1000, 2);
        this.console.setStatus(t(reason === "done" ? "share.ran" : `share.end_${reason}`, { name, time }), reason === "done" ? "" : "bad");
      },
    };
  }
}
