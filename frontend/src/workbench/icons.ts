const PATHS = {
  console: "M4 6l4 4-4 4M10 14.500h6",
  diff: "M10 3.500v8M6 7.500h8M6 16h8",
} as const;

/** The icons that only the workbench has, on the same 20 px grid as the others. */
export function lineIcon(name: keyof typeof PATHS): SVGSVGElement {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("class", "ic s");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}
