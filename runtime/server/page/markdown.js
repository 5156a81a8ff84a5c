// Markdown as elements: built node by node, so that nothing a model writes can become a tag, a script or a request.

const make = (tag, ...children) => {
  const node = document.createElement(tag);
  node.append(...children);
  return node;
};

/** A fragment for a text; what is not understood stays as it is. */
export function markdown(text) {
  const lines = text.split("\n");
  const out = document.createDocumentFragment();
  while (lines.length) out.append(block(lines));
  return out;
}

function block(lines) {
  const line = lines[0];
  const fence = line.match(/^\s*(```+|~~~+)\s*(\S*)/);
  if (fence) return code(lines, fence[1], fence[2]);
  const heading = line.match(/^(#{1,6})\s+(.*)$/);
  if (heading) return lines.shift(), make(`h${Math.min(6, heading[1].length + 2)}`, ...inline(heading[2]));
  if (/^\s*([-*_])\s*(\1\s*){2,}$/.test(line)) return lines.shift(), make("hr");
  if (/^\s*>/.test(line)) return make("blockquote", markdown(take(lines, /^\s*>/).map((l) => l.replace(/^\s*> ?/, "")).join("\n")));
  if (LIST.test(line)) return list(lines);
  if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[1] ?? "")) return table(lines);
  if (!line.trim()) return lines.shift(), document.createDocumentFragment();
  return paragraph(lines);
}

const LIST = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const BREAKS = /^\s*(```|~~~|#{1,6}\s|>)/;

function take(lines, pattern) {
  const found = [];
  while (lines.length && pattern.test(lines[0])) found.push(lines.shift());
  return found;
}

function code(lines, mark, language) {
  lines.shift();
  const found = [];
  while (lines.length && !lines[0].trim().startsWith(mark)) found.push(lines.shift());
  lines.shift();
  const copy = make("button", "Copy");
  copy.type = "button";
  copy.className = "copy";
  copy.addEventListener("click", () => copyText(found.join("\n"), copy));
  const box = make("pre", copy, make("code", found.join("\n")));
  if (language) box.dataset.language = language;
  return box;
}

export async function copyText(text, button) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else copyOldWay(text);
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
}

/** Without TLS, browsers give a page of another machine no clipboard. */
function copyOldWay(text) {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function list(lines) {
  const [, indent, mark] = lines[0].match(LIST);
  const ordered = /\d/.test(mark);
  const box = make(ordered ? "ol" : "ul");
  if (ordered) box.start = parseInt(mark, 10);
  while (lines.length) {
    const found = lines[0].match(LIST);
    if (!found || found[1].length < indent.length || /\d/.test(found[2]) !== ordered) break;
    lines.shift();
    const inner = [found[3]];
    const deeper = new RegExp(`^\\s{${indent.length + 2},}\\S|^\\s*$`);
    while (lines.length && deeper.test(lines[0]) && (lines[0].trim() || deeper.test(lines[1] ?? "x"))) {
      inner.push(lines.shift().slice(indent.length + 2));
    }
    box.append(make("li", ...(inner.length > 1 ? [markdown(inner.join("\n"))] : inline(inner[0]))));
  }
  return box;
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const head = cells(lines.shift());
  lines.shift();
  const rows = take(lines, /\|/).map(cells);
  const row = (tag, content) => make("tr", ...content.map((cell) => make(tag, ...inline(cell))));
  return make("table", make("thead", row("th", head)), make("tbody", ...rows.map((each) => row("td", each))));
}

function paragraph(lines) {
  const found = [lines.shift()];
  while (lines.length && lines[0].trim() && !BREAKS.test(lines[0]) && !LIST.test(lines[0])) found.push(lines.shift());
  const parts = found.flatMap((line, i) => (i ? [make("br"), ...inline(line)] : inline(line)));
  return make("p", ...parts);
}

const INLINE = [
  [/^(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)/, (m) => make("code", m[2])],
  [/^\*\*(?=\S)([\s\S]*?\S)\*\*/, (m) => make("strong", ...inline(m[1]))],
  [/^\*(?=[^\s*])([\s\S]*?[^\s*])\*(?!\*)/, (m) => make("em", ...inline(m[1]))],
  [/^~~(?=\S)([\s\S]*?\S)~~/, (m) => make("del", ...inline(m[1]))],
  [/^\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/, (m) => link(m[2], inline(m[1]))],
  [/^https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"]/, (m) => link(m[0], [m[0]])],
];

function inline(text) {
  const out = [];
  let plain = "";
  while (text) {
    const found = /^[`*~[h]/.test(text) && INLINE.map(([rule, build]) => [text.match(rule), build]).find(([m]) => m);
    if (found) {
      if (plain) out.push(plain);
      plain = "";
      out.push(found[1](found[0]));
      text = text.slice(found[0][0].length);
    } else {
      plain += text[0];
      text = text.slice(1);
    }
  }
  return plain ? [...out, plain] : out;
}

/** A link that is followed only by a click, and tells the other side nothing. */
function link(address, content) {
  const node = make("a", ...content);
  node.href = address;
  node.rel = "noopener noreferrer nofollow";
  node.target = "_blank";
  return node;
}
