// The open conversation: turns, one answer at a time, and its pace.
import { post } from "./events.js";
import * as store from "./store.js";
import { addActions, draw, show } from "./turns.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens"];
const find = (id) => document.getElementById(id);
let stopping = null; // aborts the answer that is being written

export function startChat() {
  find("compose").addEventListener("submit", (event) => {
    event.preventDefault();
    if (stopping) stopping.abort();
    else send();
  });
  find("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!stopping) send();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stopping?.abort();
  });
  document.addEventListener("chosen", () => {
    stopping?.abort();
    redraw();
  });
  find("export").addEventListener("click", exportConversation);
  redraw();
}

function redraw() {
  const { turns } = store.open();
  find("messages").replaceChildren(...turns.map((turn) => show(turn, actionsOf(turn))));
  gauge(turns.findLast((turn) => turn.usage)?.usage);
  find("pace").textContent = "";
  find("messages").lastChild?.scrollIntoView({ block: "end" });
}

function actionsOf(turn) {
  if (turn.role === "user") return [["Edit", () => edit(turn)], ["Delete", () => cut(turn)]];
  return [[turn.failed ? "Retry" : "Regenerate", () => again(turn)], ["Delete", () => cut(turn)]];
}

/** Forget a turn and all that follow it. */
function cut(turn) {
  if (stopping) return false;
  const { turns } = store.open();
  turns.splice(turns.indexOf(turn));
  keep(store.open());
  redraw();
  return true;
}

function edit(turn) {
  if (cut(turn)) find("prompt").value = turn.content;
  find("prompt").focus();
}

function again(turn) {
  if (cut(turn)) answer();
}

function keep(conversation) {
  store.save(conversation);
  document.dispatchEvent(new Event("kept"));
}

function send() {
  const text = find("prompt").value.trim();
  if (!text) return;
  find("prompt").value = "";
  const turn = { role: "user", content: text };
  store.open().turns.push(turn);
  find("messages").append(show(turn, actionsOf(turn)));
  answer();
}

async function answer() {
  const conversation = store.open();
  const turn = { role: "assistant", content: "", reasoning: "", calls: [], waiting: true };
  const body = request(conversation.turns);
  const bubble = show(turn, []);
  find("messages").append(bubble);
  bubble.scrollIntoView({ block: "end" });
  const pace = new Pace();
  stopping = new AbortController();
  busy(true);
  try {
    turn.note = await write(body, turn, bubble, pace);
  } catch (error) {
    turn.failed = error.name !== "AbortError";
    turn.note = turn.failed ? error.message : "stopped";
  }
  stopping = null;
  busy(false);
  turn.waiting = false;
  turn.note = [turn.note, pace.words()].filter(Boolean).join(" · ");
  conversation.turns.push(turn);
  keep(conversation);
  if (store.open() !== conversation) return; // another one was opened meanwhile
  draw(bubble, turn);
  addActions(bubble, turn, actionsOf(turn));
  find("pace").textContent = pace.words();
  gauge(turn.usage);
  follow();
}

async function write(body, turn, bubble, pace) {
  let reason = "";
  for await (const event of post("v1/chat/completions", body, stopping.signal)) {
    if (event.usage) {
      turn.usage = event.usage;
      pace.end(event.usage);
    }
    for (const choice of event.choices) {
      take(choice.delta, turn, pace);
      reason = choice.finish_reason ?? reason;
    }
    draw(bubble, turn);
    find("pace").textContent = pace.words();
    follow();
  }
  return reason === "length" ? "the limit of tokens was reached" : "";
}

function take(delta, turn, pace) {
  if (delta.reasoning || delta.content) pace.add();
  turn.reasoning += delta.reasoning ?? "";
  turn.content += delta.content ?? "";
  for (const call of delta.tool_calls ?? []) turn.calls.push({ name: call.function.name, arguments: call.function.arguments });
}

/** The request; an answer that failed is no part of the history, and neither is what only the page knows of a turn. */
function request(turns) {
  const system = find("system").value.trim();
  const history = turns.filter((turn) => !turn.failed && (turn.role === "user" || turn.content));
  const messages = history.map(({ role, content }) => ({ role, content }));
  const body = {
    model: find("model").value,
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of NUMBERS) {
    const value = find(name).valueAsNumber;
    if (!Number.isNaN(value)) body[name] = value;
  }
  return body;
}

/** Tokens per second from the first piece on; a piece is about a token, and the usage corrects that at the end. */
class Pace {
  constructor() {
    this.sent = performance.now();
    this.first = this.last = 0;
    this.tokens = 0;
  }
  add() {
    this.last = performance.now();
    this.first ||= this.last;
    this.tokens += 1;
  }
  end(usage) {
    this.tokens = usage.completion_tokens;
  }
  words() {
    if (!this.first) return "";
    const seconds = (this.last - this.first) / 1000;
    const speed = seconds > 0 ? `${((this.tokens - 1) / seconds).toFixed(1)} tokens/s` : "";
    return [`${this.tokens} tokens`, speed, `first after ${((this.first - this.sent) / 1000).toFixed(2)} s`]
      .filter(Boolean)
      .join(", ");
  }
}

function gauge(usage) {
  const most = Number(find("model").selectedOptions[0]?.dataset.context) || 0;
  const used = usage?.total_tokens ?? 0;
  find("context").value = most ? used / most : 0;
  find("context_used").textContent = most && used ? `${used} of ${most}` : "–";
}

function exportConversation() {
  const { title, turns } = store.open();
  const messages = turns.filter((turn) => !turn.failed).map(({ role, content }) => ({ role, content }));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify({ messages }, null, 1)], { type: "application/json" }));
  link.download = `${(title || "chat").replace(/\W+/g, "-").slice(0, 40)}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function follow() {
  const box = find("messages");
  if (box.scrollHeight - box.scrollTop - box.clientHeight < 120) box.scrollTop = box.scrollHeight;
}

function busy(yes) {
  find("send").textContent = yes ? "Stop" : "Send";
  find("send").classList.toggle("stops", yes);
}
