// The same folder in Node: greedy tokens behind ids.
//
//   node generate.mjs models/smol q4 12 "1,504,260"

import { AutoModelForCausalLM, Tensor, env } from "@huggingface/transformers";
import { basename, dirname, resolve } from "node:path";

const [folder, dtype, count, prompt] = process.argv.slice(2);
if (!prompt) {
  console.error('usage: node generate.mjs FOLDER DTYPE COUNT "ID,ID,…"');
  process.exit(2);
}
env.allowRemoteModels = false;
env.localModelPath = dirname(resolve(folder));
const model = await AutoModelForCausalLM.from_pretrained(basename(folder), { dtype });
const ids = prompt.split(",").map(BigInt);
const output = await model.generate({
  input_ids: new Tensor("int64", BigInt64Array.from(ids), [1, ids.length]),
  attention_mask: new Tensor("int64", new BigInt64Array(ids.length).fill(1n), [1, ids.length]),
  max_new_tokens: Number(count),
  do_sample: false,
});
console.log(output.tolist()[0].slice(ids.length).join(","));
