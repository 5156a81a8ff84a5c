// The panel: figures of the chosen model once a second, and its throughput over two minutes.
import { ask } from "./events.js";

const KEPT = 120;
const find = (id) => document.getElementById(id);
let before = null; // {name, tokens, time} at the last look
let speeds = [];

export async function startStatus() {
  for (;;) {
    try {
      show(await (await ask("status")).json());
    } catch (error) {
      state(error instanceof TypeError ? "the server does not answer" : error.message, true);
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function show(status) {
  fill(status.models);
  const faults = Object.values(status.faults);
  state(faults[0] ?? (status.draining ? "shutting down" : `ready · version ${status.version}`), faults.length > 0);
  const model = status.models.find((each) => each.name === find("model").value) ?? status.models[0];
  find("running").textContent = `${model.running} of ${model.rows}`;
  find("waiting").textContent = model.waiting;
  find("kv").value = model.kv_used;
  find("kv_share").textContent = `${(100 * model.kv_used).toFixed(1)} %`;
  find("cached").textContent = `${model.cached_tokens} of ${model.prompt_tokens} prompt tokens`;
  find("finished").textContent = model.finished;
  measure(model);
}

function fill(models) {
  const select = find("model");
  if (select.options.length) return;
  for (const model of models) {
    const option = new Option(model.name, model.name);
    option.dataset.context = model.context;
    select.add(option);
  }
}

function measure(model) {
  const now = performance.now();
  if (before?.name !== model.name) speeds = [];
  else speeds.push((1000 * (model.generated_tokens - before.tokens)) / (now - before.time));
  before = { name: model.name, tokens: model.generated_tokens, time: now };
  speeds = speeds.slice(-KEPT);
  if (speeds.length) find("throughput").textContent = speeds.at(-1).toFixed(1);
  draw();
}

function draw() {
  const canvas = find("plot");
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const top = Math.max(10, ...speeds) * 1.15;
  const place = (i) => [(canvas.width * (KEPT - speeds.length + i)) / (KEPT - 1), canvas.height * (1 - speeds[i] / top)];
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.font = "22px system-ui, sans-serif";
  pen.fillStyle = style.getPropertyValue("--soft");
  pen.fillText(top.toFixed(0), 8, 26);
  pen.fillText("0", 8, canvas.height - 8);
  pen.strokeStyle = style.getPropertyValue("--accent");
  pen.lineWidth = 3;
  pen.beginPath();
  speeds.forEach((_, i) => pen.lineTo(...place(i)));
  pen.stroke();
}

function state(words, bad) {
  find("state").textContent = words;
  find("state").classList.toggle("bad", bad);
}
