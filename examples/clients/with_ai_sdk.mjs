// The AI SDK: npm install ai @ai-sdk/openai-compatible zod
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [address, name] = process.argv.slice(2);
const model = createOpenAICompatible({ name: "onnxlm", baseURL: `${address}/v1`, apiKey: "none" })(name);
const prompt = "Add one and three.";
const inputSchema = z.object({ a: z.literal(1), b: z.literal(3) });
let called = 0;
const add = tool({ description: "Add two numbers.", inputSchema, execute: async ({ a, b }) => (called++, String(a + b)) });

console.log("ok chat:", (await generateText({ model, prompt })).text);
console.log("ok stream:", await streamText({ model, prompt }).text);
const answer = await generateText({ model, prompt, tools: { add }, stopWhen: stepCountIs(5) });
if (!called) throw new Error("no tool was called");
console.log("ok tools:", answer.text);
