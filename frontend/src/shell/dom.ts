/** The few DOM helpers that everything else is written with. No innerHTML anywhere: text is always a text node. */

type Child = Node | string | null | undefined | false;
type Props = Record<string, string | number | boolean | null | undefined | EventListener>;

export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props?: Props | null, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2).toLowerCase(), value);
    else if (name === "class") element.className = String(value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  brand: "M2.5 5h8M2.5 10h11M2.5 15h5.5M16.5 2.5v15",
  plus: "M10 4v12M4 10h12",
  menu: "M3.5 5.5h13M3.5 10h13M3.5 14.5h8",
  gallery: "M3.5 3.5h5v5h-5zM11.5 3.5h5v5h-5zM3.5 11.5h5v5h-5zM11.5 11.5h5v5h-5z",
  race: "M3 6.5h11M11.5 4l2.5 2.5L11.5 9M3 13.5h6M7 11l2.5 2.5L7 16M17 3v14",
  link: "M8.5 11.5l3-3M9 6.5l1.5-1.5a3.2 3.2 0 0 1 4.5 4.5L13.5 11M11 13.5L9.5 15A3.2 3.2 0 0 1 5 10.5L6.5 9",
  stats: "M3 17h14M5 14V9M10 14V4M15 14v-3",
  help: "M4 5h12a1.5 1.5 0 0 1 1.5 1.5v7A1.5 1.5 0 0 1 16 15H4a1.5 1.5 0 0 1-1.5-1.500v-7A1.5 1.5 0 0 1 4 5zM5.5 8.2h.01M8.5 8.2h.01M11.5 8.2h.01M14.5 8.2h.01M6.5 12h7",
  search: "M14 9A5 5 0 1 1 4 9a5 5 0 0 1 10 0zM13 13l3.5 3.5",
  down: "M6 8l4 4 4-4",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  sliders: "M3.5 6h7M14.5 6h2M3.5 14h2M9.5 14h7M14.5 6a2 2 0 1 1-4 0 2 2 0 0 1 4 0zM9.5 14a2 2 0 1 1-4 0 2 2 0 0 1 4 0z",
  stop: "M6 5.500h8a.5.5 0 0 1 .5.5v8a.5.5 0 0 1-.5.5H6a.5.5 0 0 1-.5-.5V6a.5.5 0 0 1 .5-.5z",
  edit: "M12.5 4.500l3 3L7 16H4v-3z",
  again: "M4.5 10a5.5 5.5 0 1 0 1.8-4.100L4 8M4 4v4h4",
  copy: "M7.5 7.500h8.500v8.500H7.500zM4 12.500V4h8.5",
  download: "M10 3.500v9M6.5 9l3.5 3.500L13.5 9M4 16.500h12",
  upload: "M10 12.500v-9M6.5 7L10 3.5 13.5 7M4 16.500h12",
  trash: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.600L14 6",
  close: "M5 5l10 10M15 5L5 15",
  info: "M16.5 10a6.5 6.5 0 1 1-13 0 6.5 6.5 0 0 1 13 0zM10 9.500V14M10 6.500h.01",
  swap: "M4 7h11M12.5 4.500L15 7l-2.5 2.500M16 13H5M7.5 10.500L5 13l2.5 2.5",
  play: "M6 4.500l9 5.5-9 5.500z",
  more: "M5 10h.01M10 10h.01M15 10h.01",
  clip: "M15.5 9.5l-5.7 5.7a3.4 3.4 0 0 1-4.800-4.800l6.300-6.300a2.250 2.250 0 0 1 3.200 3.200l-6.200 6.200a1.100 1.100 0 0 1-1.600-1.600l5.300-5.300",
  doc: "M6 3.500h5.500L15 7v9.500H6zM11.5 3.500V7H15",
  theme: "M16.5 10a6.5 6.5 0 1 1-13 0 6.5 6.5 0 0 1 13 0z",
} as const;

export type IconName = keyof typeof ICONS;

export function icon(name: IconName, small = false): SVGSVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", small ? "ic s" : "ic");
  svg.append(path(ICONS[name]));
  if (name === "theme") {
    const half = path("M10 3.500v13a6.5 6.5 0 0 0 0-13z");
    half.setAttribute("class", "fill");
    svg.append(half);
  }
  return svg;
}

function path(d: string): SVGPathElement {
  const element = document.createElementNS(SVG, "path");
  element.setAttribute("d", d);
  return element;
}

/** Lamp shapes on a 12 px grid: a state is a shape and a word before it is a colour. */
const LAMPS: Record<string, [string, boolean]> = {
  idle: ["M9.750 6a3.750 3.750 0 1 1-7.5 0 3.750 3.750 0 0 1 7.5 0z", false],
  queued: ["M10 6a4 4 0 1 1-8 0 4 4 0 0 1 8 0zM6 3.500V6l1.8 1", false],
  loading: ["M2 9.500h8M2 6h5M2 2.500h2.5", false],
  prefill: ["M2 5l3-3M2 9.500L9.5 2M5.5 10L10 5.5", false],
  streaming: ["M2.5 1.800v8.400L10 6z", true],
  complete: ["M2 6.500l2.7 2.700L10 3.2", false],
  stopped: ["M2.5 2.500h7v7h-7z", true],
  interrupted: ["M6 1.500v2.700M6 7.800v2.700M1.5 6h2.700M7.8 6h2.7", false],
  failed: ["M2.5 2.500l7 7M9.5 2.500l-7 7", false],
  reconnecting: ["M2.5 6a3.5 3.5 0 1 0 1.2-2.600L2 5M2 2.200V5h2.8", false],
};

export function lamp(state: string): SVGSVGElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 12 12");
  svg.setAttribute("aria-hidden", "true");
  const [d, filled] = LAMPS[state] ?? (LAMPS.idle as [string, boolean]);
  const shape = path(d);
  if (filled) shape.setAttribute("class", "fill");
  svg.append(shape);
  return svg;
}

/** A native select with our arrow. */
export function withArrow(select: HTMLSelectElement): HTMLElement {
  return h("span", { class: "selwrap" }, select, icon("down", true));
}

export interface ButtonOptions {
  label?: string;
  icon?: IconName;
  kind?: "p" | "q" | "stop" | "";
  small?: boolean;
  /** Name and tooltip of an icon-only button, or an added class. */
  name?: string;
  key?: string;
  class?: string;
  onClick?: (event: MouseEvent) => void;
}

export function button(options: ButtonOptions): HTMLButtonElement {
  const classes = ["btn", options.kind ?? "", options.small ? "sm" : "", options.icon && !options.label ? "i" : "", options.class ?? ""];
  const element = h("button", { type: "button", class: classes.filter(Boolean).join(" "), "aria-label": options.name, title: options.name });
  if (options.icon) element.append(icon(options.icon, Boolean(options.label)));
  if (options.label) element.append(h("span", { class: "lb" }, options.label));
  if (options.key) element.append(h("kbd", { class: "hide-s" }, options.key));
  if (options.onClick) element.addEventListener("click", options.onClick as EventListener);
  return element;
}

export function setText(node: Node, text: string): void {
  if (node.textContent !== text) node.textContent = text;
}

export function downloadFile(name: string, type: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const anchor = h("a", { href: url, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** A random id; also where the page is not a secure context (a phone on the local network by plain HTTP). */
export function randomId(): string {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = [...crypto.getRandomValues(new Uint8Array(16))];
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
