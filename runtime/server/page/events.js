// Requests to the server: its key, where it asks for one, and server-sent events of a POST, which EventSource cannot send.

let asking = null;

/** As fetch, with the key of this session; where the server wants one, the page asks for it and tries again. */
export async function ask(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem("onnxlm.key");
    const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
    const answer = await fetch(path, { ...options, headers });
    if (answer.status !== 401) return answer;
    asking ??= askForKey();
    await asking;
    asking = null;
  }
}

function askForKey() {
  const dialog = document.getElementById("ask_key");
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      sessionStorage.setItem("onnxlm.key", document.getElementById("key").value.trim());
      resolve();
    }, { once: true });
  });
}

/** Yields the JSON objects of an answer; throws an Error with the server's words. Aborting the signal ends it. */
export async function* post(path, body, signal) {
  const answer = await ask(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
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
