const WAIT_MS = 120; // for the word of a click whose focus came first
const CLICK_MS = 1000;
const LOST_MS = 1000; // what lost the focus longer ago had lost it to nothing

/**
 * A page in a frame may call `focus()` when it likes, and then what is typed goes there. Here the focus goes back to where it was,
 * unless a person pressed something in the frame (`pressed`, said by the frame's own first script) or came in by the Tab key.
 */
export class FocusGuard {
  private last: HTMLElement | null = null;
  private left = -Infinity;
  private press = -Infinity;
  private tab: { from: Element | null } | null = null; // a press of Tab of which nothing has shown where it led
  private timer = 0;
  private readonly ends = new AbortController();

  constructor(private readonly frame: HTMLIFrameElement) {
    const options = { capture: true, signal: this.ends.signal };
    const hold = (target: EventTarget | null): void => {
      if (!(target instanceof HTMLElement) || target === frame) return;
      this.tab = null;
      this.last = target;
      this.press = -Infinity; // the person has left the frame
    };
    hold(document.activeElement);
    document.addEventListener("focusin", (event) => hold(event.target), options);
    document.addEventListener("focusout", () => (this.left = performance.now()), options);
    document.addEventListener("pointerdown", () => (this.tab = null), options);
    for (const name of ["keydown", "keyup"] as const) document.addEventListener(name, () => this.forgetIdleTab(), options);
    const last = { signal: this.ends.signal }; // after the listeners of what has the focus, and for `blur` the window's own alone
    document.addEventListener("keydown", (event) => this.rememberTab(event), last);
    window.addEventListener("blur", () => this.taken(), last);
  }

  /** A person pressed a pointer in the frame. */
  pressed(): void {
    this.press = performance.now();
    if (this.timer) clearTimeout(this.timer);
    else if (document.activeElement !== this.frame && this.press - this.left < CLICK_MS) this.frame.focus();
    this.timer = 0;
  }

  end(): void {
    clearTimeout(this.timer);
    this.ends.abort();
  }

  private rememberTab(event: KeyboardEvent): void {
    const leads = event.key === "Tab" && !event.defaultPrevented && !event.altKey && !event.ctrlKey && !event.metaKey;
    if (leads) this.tab = { from: document.activeElement };
  }

  /** A later key finds the focus where it was: that press of Tab led nowhere. Where nothing had the focus, this cannot be told. */
  private forgetIdleTab(): void {
    const from = this.tab?.from;
    if (from && from !== document.body && from === document.activeElement) this.tab = null;
  }

  /** The window has lost the focus, on a busy machine long after the key or the grab that took it. */
  private taken(): void {
    const now = performance.now();
    const byTab = this.tab !== null;
    this.tab = null;
    if (document.activeElement !== this.frame || now - this.press < CLICK_MS || byTab) return;
    const mayBeAClick = this.frame.matches(":hover") || matchMedia("(pointer: coarse)").matches;
    const held = now - this.left < LOST_MS ? this.last : null; // else nothing had the focus
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => this.giveBack(held), mayBeAClick ? WAIT_MS : 0);
  }

  private giveBack(to: HTMLElement | null): void {
    this.timer = 0;
    if (document.activeElement !== this.frame) return;
    if (to?.isConnected) to.focus({ preventScroll: true });
    else this.frame.blur();
    window.focus();
  }
}
