const WAIT_MS = 120; // for the word of a click whose focus came first
const CLICK_MS = 1000;

/**
 * A page in a frame may call `focus()` when it likes, and then what is typed goes there. Here the focus goes back to where it was,
 * unless a person pressed something in the frame (`pressed`, said by the frame's own first script) or came in by the Tab key.
 */
export class FocusGuard {
  private last: HTMLElement | null = null;
  private left = -Infinity;
  private press = -Infinity;
  private tab = -Infinity;
  private timer = 0;
  private readonly ends = new AbortController();

  constructor(private readonly frame: HTMLIFrameElement) {
    const options = { capture: true, signal: this.ends.signal };
    const hold = (target: EventTarget | null): void => {
      if (!(target instanceof HTMLElement) || target === frame) return;
      this.last = target;
      this.press = -Infinity; // the person has left the frame
    };
    hold(document.activeElement);
    document.addEventListener("focusin", (event) => hold(event.target), options);
    document.addEventListener("focusout", () => (this.left = performance.now()), options);
    document.addEventListener("keydown", (event) => event.key === "Tab" && (this.tab = performance.now()), options);
    window.addEventListener("blur", () => this.taken(), options);
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

  private taken(): void {
    const now = performance.now();
    if (document.activeElement !== this.frame || now - this.press < CLICK_MS || now - this.tab < WAIT_MS) return;
    const mayBeAClick = this.frame.matches(":hover") || matchMedia("(pointer: coarse)").matches;
    const held = now - this.left < WAIT_MS ? this.last : null; // else nothing had the focus
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
