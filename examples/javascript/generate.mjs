// Greedy generation from a bundle, by FORMAT.md alone: token ids in, token ids out.
//
//   npm install --ignore-scripts        (the script would only fetch CUDA libraries)
//   node generate.mjs BUNDLE 16 "1,504,260,2"
//
// A tokenizer for JavaScript that reads the bundle's tokenizer.json: the package @huggingface/tokenizers.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import ort from "onnxruntime-node";

const TYPES = {
  float32: Float32Array, float16: Uint16Array, int8: Int8Array, uint8: Uint8Array, int32: Int32Array,
};

/** A bundle's sessions and its cache: tensors [1, heads, capacity, width] that every step reads and replaces. */
class Bundle {
  static async open(folder, capacity) {
    const bundle = new Bundle();
    bundle.manifest = JSON.parse(await readFile(join(folder, "manifest.json"), "utf8"));
    for (const role of ["prefill", "decode"]) {
      bundle[role] = await ort.InferenceSession.create(join(folder, bundle.manifest.graphs[role].file));
    }
    bundle.length = 0; // tokens in the cache
    bundle.cache = {};
    for (const port of bundle.manifest.graphs.prefill.inputs.filter((port) => port.role.startsWith("past_"))) {
      const shape = port.shape.map((size) => ({ batch: 1, capacity })[size] ?? size);
      const size = shape.reduce((a, b) => a * b, 1);
      bundle.cache[port.name] = new ort.Tensor(port.dtype, new TYPES[port.dtype](size), shape);
    }
    return bundle;
  }

  /** Append tokens; the logits [vocabulary] after the last of them. */
  async step(role, ids) {
    const graph = this.manifest.graphs[role];
    const total = this.length + ids.length;
    const values = {
      input_ids: () => new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]),
      seqlens_k: () => new ort.Tensor("int32", Int32Array.of(total - 1), [1]),
      total_sequence_length: () => new ort.Tensor("int32", Int32Array.of(total), []),
      logits_index: () => new ort.Tensor("int64", BigInt64Array.of(0n, BigInt(ids.length - 1)), [1, 2]),
      query_seqlens: () => new ort.Tensor("int32", Int32Array.of(ids.length), [1]),
    };
    const feeds = { ...this.cache };
    for (const port of graph.inputs) if (values[port.role]) feeds[port.name] = values[port.role]();
    const results = await this[role].run(feeds);
    for (const kind of ["key", "value", "state"]) { // the i-th past of a kind belongs to the i-th present of that kind
      const presents = graph.outputs.filter((port) => port.role === `present_${kind}`);
      graph.inputs.filter((port) => port.role === `past_${kind}`).forEach((past, i) => {
        this.cache[past.name] = results[presents[i].name];
      });
    }
    this.length = total;
    return results[graph.outputs.find((port) => port.role === "logits").name].data;
  }
}

function likeliest(logits) {
  let best = 0;
  for (let id = 1; id < logits.length; id++) if (logits[id] > logits[best]) best = id;
  return best;
}

const [folder, count, prompt] = process.argv.slice(2);
if (!prompt) {
  console.error('usage: node generate.mjs BUNDLE COUNT "ID,ID,…"');
  process.exit(2);
}
const ids = prompt.split(",").map(Number);
const bundle = await Bundle.open(folder, ids.length + Number(count));
const ends = new Set(bundle.manifest.tokens.eos);
const answer = [likeliest(await bundle.step("prefill", ids))];
while (answer.length < Number(count) && !ends.has(answer.at(-1))) {
  answer.push(likeliest(await bundle.step("decode", [answer.at(-1)])));
}
console.log(answer.join(","));
