// Conversations, kept in this browser and nowhere else.
//
// A conversation is {id, title, turns}; a turn is {role, content, reasoning, calls, note, failed, usage}.

const NAME = "onnxlm.conversations";
const MOST = 100;

let conversations = load();
let current = conversations[0] ?? fresh();

function load() {
  try {
    return JSON.parse(localStorage.getItem(NAME)) ?? [];
  } catch {
    return []; // not ours, or storage is forbidden
  }
}

function fresh() {
  return { id: crypto.randomUUID?.() ?? String(Date.now() + Math.random()), title: "", turns: [] };
}

export const all = () => conversations;
export const open = () => current;

export function begin() {
  current = fresh();
  return current;
}

export function choose(id) {
  current = conversations.find((each) => each.id === id) ?? current;
  return current;
}

export function remove(id) {
  conversations = conversations.filter((each) => each.id !== id);
  if (current.id === id) current = fresh();
  write();
}

/** Keep a conversation, the latest first; one without turns is not kept. */
export function save(conversation) {
  conversation.title ||= conversation.turns[0]?.content.trim().split("\n")[0].slice(0, 60) ?? "";
  conversations = [conversation, ...conversations.filter((each) => each.id !== conversation.id)];
  conversations = conversations.filter((each) => each.turns.length).slice(0, MOST);
  write();
}

function write() {
  try {
    localStorage.setItem(NAME, JSON.stringify(conversations));
  } catch {
    // full or forbidden: the conversation lives as long as the page
  }
}
