// How a turn of a conversation looks: its thoughts, its text, its tool calls, and what can be done with it.
import { copyText, markdown } from "./markdown.js";

const make = (tag, name, ...children) => {
  const node = document.createElement(tag);
  node.className = name;
  node.append(...children);
  return node;
};

/** The element of a turn; `actions` are [label, function] pairs. */
export function show(turn, actions) {
  const bubble = make("article", `message ${turn.role}`);
  draw(bubble, turn);
  addActions(bubble, turn, actions);
  return bubble;
}

/** Draw a turn anew, as far as it is known. */
export function draw(bubble, turn) {
  bubble.classList.toggle("failed", Boolean(turn.failed));
  bubble.dataset.text = turn.content;
  const wasOpen = bubble.querySelector(".thoughts")?.open ?? false;
  const parts = [];
  if (turn.reasoning) parts.push(thoughts(turn.reasoning, wasOpen));
  parts.push(turn.role === "user" ? make("div", "body plain", turn.content) : make("div", "body", markdown(turn.content)));
  for (const call of turn.calls ?? []) parts.push(toolCall(call));
  if (turn.waiting && !turn.content && !turn.reasoning) parts.push(make("span", "waiting", "reading the prompt …"));
  const kept = [...bubble.querySelectorAll(":scope > .actions")];
  bubble.replaceChildren(...parts, ...(turn.note ? [make("small", "", turn.note)] : []), ...kept);
}

export function addActions(bubble, turn, actions) {
  bubble.querySelector(":scope > .actions")?.remove();
  const copy = button("Copy", () => copyText(turn.content, copy));
  bubble.append(make("div", "actions", copy, ...actions.map(([label, action]) => button(label, action))));
}

function button(label, action) {
  const node = make("button", `act ${label.toLowerCase()}`, label);
  node.type = "button";
  node.addEventListener("click", action);
  return node;
}

function thoughts(text, open) {
  const box = make("details", "thoughts", make("summary", "", "Thoughts"), make("div", "plain", text));
  box.open = open;
  return box;
}

function toolCall(call) {
  const box = make("details", "call", make("summary", "", `calls ${call.name}`), make("pre", "", call.arguments));
  return box;
}
