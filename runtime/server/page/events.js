// Requests to the server with its key, and server-sent events of a POST, which EventSource cannot send.
import { askForKey, keyHeaders } from "./key.js";

/** As fetch, with the key; where the server wants another one, the page asks for it and tries again. */
export async function ask(path, options = {}, bidden = false) {
  for (;;) {
    const held = keyHeaders();
    const answer = await fetch(path, { ...options, headers: { ...options.headers, ...held } });
    if (answer.status !== 401) return answer;
    if (!(await askForKey(held.authorization, bidden))) throw new Error("The server answers only with an API key.");
  }
}

/** Yields the JSON objects of an answer; throws an Error with the server's words. Aborting the signal ends it. */
export async function* post(path, body, signal) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  }, true);
  if (!answer.ok) throw new Error(await words(answer));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("The connection ended before the answer did.");
    held += value;
    const events = held.split("\n\n");
    held = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue; // a ping
      const data = event.slice(6);
      if (data === "[DONE]") return;
      const value = JSON.parse(data);
      if (value.error) throw new Error(value.error.message);
      yield value;
    }
  }
}

async function words(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `${answer.status} ${answer.statusText}`;
  }
}
