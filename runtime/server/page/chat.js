// The conversation: messages, one answer at a time, and its pace.
import { post } from "./events.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "max_tokens"];
const find = (id) => document.getElementById(id);
const messages = []; // what the server is sent: role and content
let stopping = null; // aborts the answer that is being written

export function startChat() {
  find("compose").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  find("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  find("stop").addEventListener("click", () => stopping?.abort());
  find("clear").addEventListener("click", clear);
}

function clear() {
  stopping?.abort();
  messages.length = 0;
  find("messages").replaceChildren();
  find("pace").textContent = "";
}

async function send() {
  const text = find("prompt").value.trim();
  if (!text || stopping) return;
  find("prompt").value = "";
  messages.push({ role: "user", content: text });
  show("user", text);
  await answer();
}

async function answer() {
  const conversation = messages.slice();
  const bubble = show("assistant", "");
  const pace = new Pace();
  let note = "";
  stopping = new AbortController();
  busy(true);
  try {
    note = await write(bubble, pace);
  } catch (error) {
    note = error.name === "AbortError" ? "stopped" : error.message;
    if (error.name !== "AbortError") bubble.classList.add("failed");
  }
  stopping = null;
  busy(false);
  find("pace").textContent = pace.words();
  annotate(bubble, [note, pace.words()].filter(Boolean).join(" · "));
  // A new chat may have begun meanwhile: then this answer belongs to nothing.
  const same = messages.length === conversation.length && messages.every((message, i) => message === conversation[i]);
  if (same) messages.push({ role: "assistant", content: bubble.firstChild.data });
}

async function write(bubble, pace) {
  let reason = "";
  let thought = null;
  for await (const event of post("/v1/chat/completions", request(), stopping.signal)) {
    if (event.usage) pace.end(event.usage);
    for (const choice of event.choices) {
      if (choice.delta.reasoning) {
        thought ??= think(bubble);
        thought.lastChild.data += choice.delta.reasoning;
        pace.add();
      }
      if (choice.delta.content) {
        bubble.firstChild.data += choice.delta.content;
        pace.add();
        find("pace").textContent = pace.words();
      }
      reason = choice.finish_reason ?? reason;
    }
    follow();
  }
  return reason === "length" ? "the limit of tokens was reached" : "";
}

function request() {
  const system = find("system").value.trim();
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

function show(role, text) {
  const bubble = document.createElement("div");
  bubble.className = `message ${role}`;
  bubble.append(document.createTextNode(text)); // text, never HTML
  find("messages").append(bubble);
  bubble.scrollIntoView({ block: "end" });
  return bubble;
}

/** A box for thoughts above the answer, closed until somebody wants to read them. */
function think(bubble) {
  const box = document.createElement("details");
  const title = document.createElement("summary");
  box.className = "message assistant";
  title.textContent = "Thoughts";
  box.append(title, document.createTextNode(""));
  bubble.before(box);
  return box;
}

function annotate(bubble, words) {
  const note = document.createElement("small");
  note.textContent = words;
  bubble.append(note);
  follow();
}

function follow() {
  const box = find("messages");
  if (box.scrollHeight - box.scrollTop - box.clientHeight < 120) box.scrollTop = box.scrollHeight;
}

function busy(yes) {
  find("send").disabled = yes;
  find("stop").disabled = !yes;
}
