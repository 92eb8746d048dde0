/**
 * Makes a table one whose rows are cards on a phone (pages.css), each cell with the name of its column, so that nothing of a row
 * lies outside of the screen. The roles say that it is a table still.
 */
export function withCards(table: HTMLTableElement): HTMLTableElement {
  const heads = [...(table.tHead?.rows[0]?.cells ?? [])];
  table.classList.add("cards");
  table.setAttribute("role", "table");
  for (const head of heads) head.setAttribute("role", "columnheader");
  for (const part of [table.tHead, ...table.tBodies]) part?.setAttribute("role", "rowgroup");
  for (const row of table.rows) row.setAttribute("role", "row");
  for (const body of table.tBodies) {
    for (const row of body.rows) {
      [...row.cells].forEach((cell, index) => {
        cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
        cell.dataset["label"] = heads[index]?.textContent ?? "";
      });
    }
  }
  return table;
}
