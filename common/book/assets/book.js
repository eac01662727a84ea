// A page opened from a file may not read other pages: search then shows titles without excerpts.
DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = location.protocol !== "file:";

// Diffs in two columns, before and after, where there is room: lines that replace others stand beside them.
function twoColumns(pre) {
  const table = document.createElement("table");
  const old = [], fresh = [];
  const add = (...cells) => {
    const row = table.insertRow();
    for (const [text, kind] of cells) Object.assign(row.insertCell(), { className: kind, textContent: text });
  };
  const flush = () => {
    while (old.length || fresh.length) add(side(old, "gone"), side(fresh, "new"));
  };
  const side = (lines, kind) => (lines.length ? [lines.shift(), kind] : ["", "none"]);
  for (const line of pre.textContent.replace(/\n$/, "").split("\n")) {
    const text = line.slice(1);
    if (line[0] === "-") old.push(text);
    else if (line[0] === "+") fresh.push(text);
    else {
      flush();
      const [shown, kind] = line[0] === "@" ? [line, "place"] : [text, ""];
      add([shown, kind], [shown, kind]);
    }
  }
  flush();
  return table;
}

addEventListener("DOMContentLoaded", () => {
  for (const pre of document.querySelectorAll(".piece .highlight-diff pre")) {
    const table = twoColumns(pre);
    table.className = "sides";
    pre.closest(".highlight-diff").after(table);
  }
});
