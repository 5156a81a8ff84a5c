// The API key: asked for where the server wants one, kept for this session or, if the user says so, in this browser.
const NAME = "onnxlm.key";
const find = (id) => document.getElementById(id);
let key = stored(sessionStorage) || stored(localStorage);
let asking = null; // one question at a time, whoever needs the key
let declined = false; // the user closed the question: it is asked again when the user does something

/** The headers that carry the key. */
export const keyHeaders = () => (key ? { authorization: `Bearer ${key}` } : {});

/** Ask for the key that the server wants; false if the user gives none. `bidden`: the user waits for an answer. */
export async function askForKey(sent, bidden) {
  if (sent !== keyHeaders().authorization) return true; // another request has asked meanwhile
  if (declined && !bidden && !asking) return false;
  asking ??= question(Boolean(sent));
  const given = await asking;
  asking = null;
  declined = !given;
  return given;
}

/** The button that changes the key: shown where one is held or was asked for. */
export function startKey() {
  find("change_key").addEventListener("click", () => {
    keep("", false);
    location.reload();
  });
  showButton();
}

function question(refused) {
  find("key_refused").hidden = !refused;
  find("key").value = "";
  find("ask_key").returnValue = "";
  find("ask_key").showModal();
  return new Promise((resolve) => {
    find("ask_key").addEventListener("close", () => {
      const given = find("ask_key").returnValue === "use" ? find("key").value.trim() : "";
      keep(given, find("keep_key").checked);
      find("key").value = "";
      resolve(Boolean(given));
    }, { once: true });
  });
}

function keep(given, lasting) {
  key = given;
  for (const [storage, wanted] of [[sessionStorage, true], [localStorage, lasting]]) {
    try {
      if (given && wanted) storage.setItem(NAME, given);
      else storage.removeItem(NAME);
    } catch {
      // storage is forbidden: the key lives as long as the page
    }
  }
  showButton(true);
}

function showButton(asked = false) {
  find("change_key").hidden = !key && !asked;
}

function stored(storage) {
  try {
    return storage.getItem(NAME) ?? "";
  } catch {
    return "";
  }
}
