// Starts the parts of the page.
import { startChat } from "./chat.js";
import { startKey } from "./key.js";
import { startList } from "./list.js";
import { startStatus } from "./status.js";

startKey();
startList();
startChat();
startStatus();
for (const [button, drawer] of [["open_list", "list"], ["open_panel", "panel"]]) {
  document.getElementById(button).addEventListener("click", (event) => {
    const open = document.getElementById(drawer).classList.toggle("open");
    event.currentTarget.setAttribute("aria-expanded", String(open));
  });
}
