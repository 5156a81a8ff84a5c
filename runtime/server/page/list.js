// The list of conversations.
import * as store from "./store.js";

const find = (id) => document.getElementById(id);

export function startList() {
  find("new").addEventListener("click", () => {
    store.begin();
    changed();
  });
  document.addEventListener("kept", draw);
  draw();
}

function changed() {
  document.dispatchEvent(new Event("chosen"));
  find("list").classList.remove("open");
  draw();
}

function draw() {
  find("conversations").replaceChildren(...store.all().map(entry));
}

function entry(conversation) {
  const item = document.createElement("li");
  const name = document.createElement("button");
  const drop = document.createElement("button");
  name.type = drop.type = "button";
  name.textContent = conversation.title || "…";
  name.className = "name";
  name.setAttribute("aria-current", String(conversation.id === store.open().id));
  name.addEventListener("click", () => {
    store.choose(conversation.id);
    changed();
  });
  drop.textContent = "×";
  drop.title = "Delete this conversation";
  drop.className = "drop";
  drop.addEventListener("click", () => {
    const own = conversation.id === store.open().id;
    store.remove(conversation.id);
    if (own) changed();
    else draw();
  });
  item.append(name, drop);
  return item;
}
