// Starts both halves of the page.
import { startChat } from "./chat.js";
import { startStatus } from "./status.js";

startChat();
startStatus();
