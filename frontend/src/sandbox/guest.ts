/**
 * Code that runs inside the sandbox. Each exported function is sent there as text, so it must not use anything from outside its
 * own body: no import, no helper of this module. What it needs comes in as an argument.
 */

type Post = (message: unknown) => void;

/** A short text for any value, as a console shows it. */
export function inspect(value: unknown, depth = 2, seen: unknown[] = []): string {
  const kind = typeof value;
  if (value === null || kind === "undefined" || kind === "number" || kind === "boolean" || kind === "symbol") return String(value);
  if (kind === "bigint") return `${String(value)}n`;
  if (kind === "string") return depth < 2 || seen.length ? JSON.stringify(value) : (value as string);
  if (kind === "function") return `[function ${(value as { name?: string }).name || "anonymous"}]`;
  try {
    if (value instanceof Error) return value.stack || String(value);
    if (seen.includes(value)) return "[circular]";
    const inside = [...seen, value];
    const show = (item: unknown): string => inspect(item, depth - 1, inside);
    if (Array.isArray(value)) {
      if (depth < 0) return `[array of ${value.length}]`;
      const shown = value.slice(0, 100).map(show);
      return `[${shown.join(", ")}${value.length > 100 ? `, … ${value.length - 100} more` : ""}]`;
    }
    if (value instanceof Map) return `Map {${[...value].slice(0, 100).map(([k, v]) => `${show(k)} => ${show(v)}`).join(", ")}}`;
    if (value instanceof Set) return `Set {${[...value].slice(0, 100).map(show).join(", ")}}`;
    const name = (value as object).constructor?.name ?? "";
    if (typeof Node === "function" && value instanceof Node) return value instanceof Element ? value.outerHTML.slice(0, 200) : value.nodeName;
    if (depth < 0) return `[${name || "object"}]`;
    const pairs = Object.entries(value as object).slice(0, 100).map(([k, v]) => `${k}: ${show(v)}`);
    return `${name && name !== "Object" ? `${name} ` : ""}{${pairs.join(", ")}}`;
  } catch {
    return "[object]";
  }
}

/**
 * Collects output, keeps the first lines of it and counts the rest. The first `atOnce` pieces are posted at once, later ones at
 * most every 50 ms: code that never lets a timer run still gets its output out.
 */
export function outlet(post: Post, mostLines: number, mostCharacters: number, atOnce: number): { write: (kind: string, text: string) => void; flush: () => void } {
  let items: [string, string][] = [];
  let lines = 0;
  let characters = 0;
  let posts = 0;
  let dropped = 0;
  let last = 0;
  let timer: ReturnType<typeof setTimeout> | 0 = 0;
  const later = setTimeout;
  const flush = (): void => {
    clearTimeout(timer);
    timer = 0;
    if (!items.length && !dropped) return;
    post({ type: "output", items, dropped });
    items = [];
    dropped = 0;
    posts++;
    last = performance.now();
  };
  const write = (kind: string, text: string): void => {
    const more = text.split("\n").length - 1;
    if (lines >= mostLines || characters >= mostCharacters) dropped += more;
    else {
      lines += more;
      characters += text.length;
      const kept = text.length > mostCharacters ? `${text.slice(0, mostCharacters)}\n` : text;
      const previous = items[items.length - 1];
      if (previous && previous[0] === kind) previous[1] += kept;
      else items.push([kind, kept]);
      if (posts < atOnce) return flush();
    }
    if (performance.now() - last > 50) flush();
    else timer ||= later(flush, 50);
  };
  return { write, flush };
}

/** Turns a frame into the host of workers: Python in one, plain JavaScript in others. It runs no code of an answer itself. */
export function hostGuest(port: MessagePort, pythonSource: string, scriptSource: string): void {
  type Assets = { wasm: WebAssembly.Module; loader: string; asm: string; stdlib: Blob; lock: string; runner: string };
  let assets: Assets | null = null;
  let python: Worker | null = null;
  let busy: Worker | null = null;
  let run = 0;
  let items: [string, string][] = [];
  let dropped = 0;
  let timer: ReturnType<typeof setTimeout> | 0 = 0;
  const flush = (): void => {
    clearTimeout(timer);
    timer = 0;
    if (items.length || dropped) port.postMessage({ type: "output", run, items, dropped });
    items = [];
    dropped = 0;
  };
  // Workers post every piece of output at once, so that nothing is lost when one is ended; the page gets them in batches.
  const forward = (worker: Worker, data: { type: string; items: [string, string][]; dropped: number }): void => {
    if (worker !== busy) return;
    if (data.type === "output") {
      items.push(...data.items);
      dropped += data.dropped;
      timer ||= setTimeout(flush, 50);
      return;
    }
    flush();
    if (data.type === "done") busy = null;
    port.postMessage({ ...data, run });
  };
  const start = (source: string): Worker => {
    const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    worker.onmessage = ({ data }) => forward(worker, data);
    worker.onerror = (event) => {
      event.preventDefault();
      const message = event.message || "The worker failed.";
      if (worker === busy) port.postMessage({ type: "error", run, error: { message, line: null, details: message }, fatal: true });
    };
    return worker;
  };
  const bootPython = (): void => {
    python = start(pythonSource);
    python.postMessage({ type: "boot", assets });
  };
  const stop = (): void => {
    flush();
    busy?.terminate();
    if (busy && busy === python) bootPython();
    busy = null;
  };
  port.onmessage = async ({ data }) => {
    if (data.type === "ping") port.postMessage({ type: "pong" });
    else if (data.type === "assets") {
      const wasm = WebAssembly.compile(data.wasm);
      assets = { wasm: await wasm, loader: data.loader, asm: data.asm, stdlib: new Blob([data.stdlib]), lock: data.lock, runner: data.runner };
      bootPython();
      port.postMessage({ type: "python" });
    } else if (data.type === "stop") {
      stop();
      port.postMessage({ type: "stopped", run: data.run });
    } else {
      stop();
      run = data.run;
      busy = data.type === "python" ? python : start(scriptSource);
      busy?.postMessage(data);
    }
  };
  port.postMessage({ type: "ready" });
}

/** The worker that holds Python. It fetches nothing: every file comes by message. */
export function pythonGuest(load: (url: string) => Promise<any>, makeOutlet: typeof outlet, mostLines: number, mostCharacters: number): void {
  const scope = self as unknown as DedicatedWorkerGlobalScope;
  const post = scope.postMessage.bind(scope);
  const text = (source: string): string => URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  let out = makeOutlet(post, mostLines, mostCharacters, Infinity);
  let pyodide: any;
  let run: any;

  const boot = async (assets: { wasm: WebAssembly.Module; loader: string; asm: string; stdlib: Blob; lock: string; runner: string }): Promise<void> => {
    const home = "https://python.invalid/";
    scope.fetch = async (input) => new Response(String(input).endsWith(".zip") ? assets.stdlib : null);
    WebAssembly.instantiateStreaming = async (_source, imports) => ({
      module: assets.wasm,
      instance: await WebAssembly.instantiate(assets.wasm, imports ?? {}),
    });
    const [{ loadPyodide }, { default: createPyodideModule }] = await Promise.all([load(text(assets.loader)), load(text(assets.asm))]);
    pyodide = await loadPyodide({
      indexURL: home,
      packageBaseUrl: home,
      lockFileContents: assets.lock,
      createPyodideModule,
      env: { HOME: "/home/pyodide", PYTHONUNBUFFERED: "1" },
    });
    for (const [kind, stream] of [["out", "setStdout"], ["err", "setStderr"]] as const) {
      const decoder = new TextDecoder();
      pyodide[stream]({
        isatty: true,
        write: (bytes: Uint8Array) => {
          out.write(kind, decoder.decode(bytes, { stream: true }));
          return bytes.length;
        },
      });
    }
    run = pyodide.runPython(assets.runner);
    scope.fetch = () => Promise.reject(new TypeError("There is no network here."));
  };
  const fatal = (error: unknown): void => {
    const message = String((error as Error)?.message ?? error);
    out.flush();
    post({ type: "error", error: { message, line: null, details: message }, fatal: true });
  };

  let booted: Promise<void> | null = null;
  scope.onmessage = async ({ data }) => {
    if (data.type === "boot") {
      booted = boot(data.assets);
      return;
    }
    try {
      await booted;
    } catch (error) {
      return fatal(error);
    }
    out = makeOutlet(post, mostLines, mostCharacters, Infinity);
    post({ type: "started" });
    let failure: string | null = null;
    try {
      const call = run.callPromising ?? run;
      failure = await call.call(run, data.name, JSON.stringify(data.files), data.inputMessage);
    } catch (error) {
      // Only a fatal fault of the interpreter gets here: Python's own exceptions come back as values.
      return fatal(error);
    }
    out.flush();
    if (failure) post({ type: "error", error: JSON.parse(failure), fatal: false });
    post({ type: "done" });
  };
}

/** The worker for JavaScript that needs no page. It is done when the code has run and no timer is left. */
export function scriptGuest(load: (url: string) => Promise<unknown>, makeOutlet: typeof outlet, show: typeof inspect, mostLines: number, mostCharacters: number): void {
  const scope = self as unknown as DedicatedWorkerGlobalScope & Record<string, unknown>;
  const post = scope.postMessage.bind(scope);
  const { setTimeout: timeout, clearTimeout: cancelTimeout, setInterval: interval, clearInterval: cancelInterval } = scope;
  const out = makeOutlet(post, mostLines, mostCharacters, Infinity);
  const pending = new Set<number>();
  let evaluated = false;
  let url = "";
  const settle = (): void => {
    // Two turns: promise chains that follow the last timer may set another one.
    timeout(() => timeout(() => {
      if (!evaluated || pending.size) return;
      out.flush();
      post({ type: "done" });
    }, 0), 0);
  };
  scope.setTimeout = ((run: (...values: unknown[]) => void, ms?: number, ...values: unknown[]) => {
    const id = timeout(() => {
      pending.delete(id);
      try {
        run(...values);
      } finally {
        settle();
      }
    }, ms);
    pending.add(id);
    return id;
  }) as typeof setTimeout;
  scope.setInterval = ((run: (...values: unknown[]) => void, ms?: number, ...values: unknown[]) => {
    const id = interval(run, ms, ...values);
    pending.add(id);
    return id;
  }) as typeof setInterval;
  const cancel = (original: (id?: number) => void) => (id?: number): void => {
    original(id);
    pending.delete(id!);
    settle();
  };
  scope.clearTimeout = cancel(cancelTimeout);
  scope.clearInterval = cancel(cancelInterval);
  for (const [name, kind] of [["log", "out"], ["info", "info"], ["debug", "out"], ["warn", "warn"], ["error", "err"], ["table", "out"], ["dir", "out"], ["trace", "out"]] as const) {
    console[name] = (...values: unknown[]) => out.write(kind, `${values.map((value) => show(value)).join(" ")}\n`);
  }
  const fail = (error: unknown, line: number | null): void => {
    const stack = (error as Error)?.stack ?? "";
    const message = error instanceof Error ? `${error.name}: ${error.message}` : show(error);
    const found = line ?? Number(stack.split(url)[1]?.match(/^:(\d+)/)?.[1] ?? 0);
    out.flush();
    post({ type: "error", error: { message, line: found || null, details: found ? `${message}\n    at line ${found}` : message }, fatal: false });
  };
  scope.onerror = ((...values: unknown[]) => {
    fail(values[4] ?? values[0], values[1] === url ? (values[2] as number) : null);
    return true;
  }) as OnErrorEventHandler;
  scope.onunhandledrejection = (event: PromiseRejectionEvent) => {
    event.preventDefault();
    fail(event.reason, null);
  };
  scope.onmessage = async ({ data }) => {
    scope.onmessage = null;
    post({ type: "started" });
    url = URL.createObjectURL(new Blob([data.code], { type: "text/javascript" }));
    try {
      try {
        scope.importScripts(url);
      } catch (error) {
        // Top-level await, import and export are words of a module.
        if (!(error instanceof SyntaxError) || !/await|import|export/.test(error.message)) throw error;
        await load(url);
      }
    } catch (error) {
      fail(error, null);
    }
    evaluated = true;
    settle();
  };
}

/** Turns a frame into a preview: hooks the console, then writes the document piece by piece as the page sends it. */
export function pageGuest(port: MessagePort, makeOutlet: typeof outlet, show: typeof inspect, mostLines: number, mostCharacters: number, loopMessage: string, blockedMessage: string): void {
  const post = port.postMessage.bind(port);
  const later = window.setTimeout.bind(window);
  const now = performance.now.bind(performance);
  let out = makeOutlet(post, mostLines, mostCharacters, 200);

  for (const [name, kind] of [["log", "out"], ["info", "info"], ["debug", "out"], ["warn", "warn"], ["error", "err"], ["table", "out"], ["dir", "out"], ["trace", "out"]] as const) {
    console[name] = (...values: unknown[]) => out.write(kind, `${values.map((value) => show(value)).join(" ")}\n`);
  }
  for (const [name, answer] of [["alert", undefined], ["confirm", false], ["prompt", null]] as const) {
    (window as unknown as Record<string, unknown>)[name] = (message: unknown = "") => {
      out.write("info", `${name}: ${show(message)}\n`);
      return answer;
    };
  }

  // The policy has no word for this way out that browsers know.
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection"]) delete (window as unknown as Record<string, unknown>)[name];

  // Nor for the one in a frame within the frame: such a frame goes before it has loaded. The methods are taken now, because the
  // page's code may replace them later; a closed shadow root that comes as markup would hide a frame.
  const fixed = (method: any): any => Function.prototype.call.bind(method);
  const removeNode = fixed(Element.prototype.remove);
  const findIn = fixed(Document.prototype.querySelector);
  const findBelow = fixed(DocumentFragment.prototype.querySelector);
  const attach = fixed(Element.prototype.attachShadow);
  const forbidFrames = (root: Node, find: (root: Node, selector: string) => Element | null): void => {
    const removeFrames = (): void => {
      for (let frame = find(root, "iframe"); frame; frame = find(root, "iframe")) {
        removeNode(frame);
        out.write("warn", `${blockedMessage.replace("{what}", "<iframe>")}\n`);
      }
    };
    new MutationObserver(removeFrames).observe(root, { childList: true, subtree: true });
  };
  Element.prototype.attachShadow = function (init) {
    const root = attach(this, init);
    forbidFrames(root, findBelow);
    return root;
  };
  for (const scope of [Element.prototype, ShadowRoot.prototype]) delete (scope as unknown as Record<string, unknown>)["setHTMLUnsafe"];

  // Called by the code that the loop guard put into every loop: a task that loops for 2 s without a pause is ended.
  let armed = false;
  let since = 0;
  let turns = 0;
  Object.defineProperty(window, "__loop", {
    value: () => {
      if (!armed) {
        armed = true;
        since = now();
        later(() => (armed = false), 0);
      }
      if ((++turns & 255) === 0 && now() - since > 2000) throw new Error(loopMessage);
    },
  });

  // An opaque origin has no storage: pages that keep a list in it get one that lasts as long as the preview.
  for (const name of ["localStorage", "sessionStorage"]) {
    const kept = new Map<string, string>();
    const storage = {
      getItem: (key: string) => kept.get(String(key)) ?? null,
      setItem: (key: string, value: unknown) => void kept.set(String(key), String(value)),
      removeItem: (key: string) => void kept.delete(String(key)),
      clear: () => kept.clear(),
      key: (index: number) => [...kept.keys()][index] ?? null,
      get length() {
        return kept.size;
      },
    };
    Object.defineProperty(window, name, { value: storage });
  }

  const submit = (form: HTMLFormElement, submitter: HTMLElement | null): void => {
    if (!form.noValidate && !form.reportValidity()) return;
    form.dispatchEvent(new SubmitEvent("submit", { bubbles: true, cancelable: true, submitter }));
  };
  HTMLFormElement.prototype.requestSubmit = function (submitter) {
    submit(this, submitter ?? null);
  };

  const listen = (): void => {
    // Before any listener of the page: what it makes up itself is not trusted.
    window.addEventListener("pointerdown", (event) => event.isTrusted && post({ type: "pressed" }), true);
    window.addEventListener("error", (event) => {
      if (!(event instanceof ErrorEvent)) return;
      const message = event.error instanceof Error ? `${event.error.name}: ${event.error.message}` : event.message;
      // The place is in the event, or, where the loop guard threw, in the first frame of the page's own code.
      const own = /^(?:line|file):/.test(event.filename) ? ["", event.filename, event.lineno] : /((?:line|file):[^\s():]+):(\d+):\d+/.exec(String(event.error?.stack));
      post({ type: "error", error: { message, line: Number(own?.[2]) || null, place: own?.[1], details: message }, fatal: false });
    });
    window.addEventListener("unhandledrejection", (event) => {
      const message = event.reason instanceof Error ? `${event.reason.name}: ${event.reason.message}` : String(event.reason);
      post({ type: "error", error: { message, line: null, details: message }, fatal: false });
    });
    document.addEventListener("securitypolicyviolation", (event) => out.write("warn", `${blockedMessage.replace("{what}", event.blockedURI)}\n`));
    // A frame without allow-forms fires no submit event, and it must not follow links: both are done here.
    window.addEventListener("click", (event) => {
      const target = event.composedPath().find((node): node is Element => node instanceof Element && /^(a|area|button|input)$/i.test(node.tagName));
      if (!target || event.defaultPrevented) return;
      if (/^a/i.test(target.tagName)) {
        const href = target.getAttribute("href") ?? target.getAttribute("xlink:href");
        if (href === null || /^(#|javascript:)/i.test(href)) return;
        event.preventDefault();
        out.write("warn", `${blockedMessage.replace("{what}", href)}\n`);
      } else if ((target instanceof HTMLButtonElement || target instanceof HTMLInputElement) && /^(submit|image)$/.test(target.type) && target.form) {
        event.preventDefault();
        submit(target.form, target);
      }
    });
    window.addEventListener("keydown", (event) => {
      const field = event.target;
      if (event.key !== "Enter" || event.defaultPrevented || !(field instanceof HTMLInputElement) || !field.form) return;
      if (!field.form.querySelector("[type=submit],[type=image],button:not([type])")) submit(field.form, null);
    });
  };

  port.onmessage = ({ data }) => {
    if (data.type === "ping") post({ type: "pong" });
    else if (data.type === "open") {
      document.open();
      listen();
      forbidFrames(document, findIn);
    } else if (data.type === "write") document.write(data.html.replace(/shadowrootmode/gi, "data-$&"));
    else if (data.type === "close") document.close();
  };
  post({ type: "ready" });
}
