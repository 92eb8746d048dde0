/** What this browser keeps. Where it keeps nothing (a frame on another site, cookies switched off) the page goes on without. */

export function recalled(key: string): string | null {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

/** `null` and "" forget it; anything but a text is kept as JSON. */
export function remember(key: string, value: unknown): void {
  try {
    if (value === null || value === "") localStorage.removeItem(key);
    else localStorage.setItem(key, typeof value === "string" ? value : JSON.stringify(value));
  } catch {
    /* forbidden or full: not remembered then */
  }
}
