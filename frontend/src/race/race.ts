import type { Boot } from "../api/types";

/** The race page. */
export class Race {
  constructor(_boot: Boot, root: HTMLElement) {
    root.textContent = "";
  }
}
