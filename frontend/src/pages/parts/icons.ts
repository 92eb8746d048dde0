import { icon } from "../../shell/dom";

/** Icons that only these pages have, on the same 20 px grid. */
function drawn(d: string, small = false): SVGSVGElement {
  const svg = icon("plus", small);
  svg.querySelector("path")?.setAttribute("d", d);
  return svg;
}

export const forkIcon = (): SVGSVGElement => drawn("M6 4v12M6 11c5 0 8-1.5 8-5M12 7.5L14 5.500l2 2");
export const tableIcon = (): SVGSVGElement => drawn("M3.5 4.500a.5.5 0 0 1 .5-.5h12a.5.5 0 0 1 .5.5v11a.5.5 0 0 1-.5.5H4a.5.5 0 0 1-.5-.5zM3.5 8h13M8 8v8", true);
