// The Node SDKs against a gateway whose backend answers with scripted rounds: node suite.mjs BASE_URL MCP_URL CASE
import OpenAI from "openai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { generateText, streamText } from "ai";

const [baseURL, serverUrl, which] = process.argv.slice(2);
const model = "smollm2";
const tool = { type: "mcp", server_label: "calc", server_url: serverUrl, require_approval: "never" };

const cases = {
  async stream() {
    const client = new OpenAI({ baseURL, apiKey: "x", maxRetries: 0 });
    const stream = client.responses.stream({ model, input: "2+3?", tools: [tool] });
    const kinds = [];
    for await (const event of stream) kinds.push(event.type);
    const final = await stream.finalResponse();
    return { kinds, output: final.output.map((item) => item.type), text: final.output_text };
  },

  async aiStream() {
    const openai = createOpenAI({ baseURL, apiKey: "x" });
    const tools = { calc: openai.tools.mcp({ serverLabel: "calc", serverUrl, requireApproval: "never" }) };
    const result = streamText({ model: openai.responses(model), prompt: "2+3?", tools });
    const parts = [];
    for await (const part of result.fullStream) parts.push(part.type === "error" ? String(part.error) : part.type);
    return { parts, text: await result.text, finish: await result.finishReason };
  },

  async aiJson() {
    const openai = createOpenAI({ baseURL, apiKey: "x" });
    const tools = { calc: openai.tools.mcp({ serverLabel: "calc", serverUrl, requireApproval: "never" }) };
    const result = await generateText({ model: openai.responses(model), prompt: "2+3?", tools });
    return { text: result.text, finish: result.finishReason, content: result.content.map((part) => part.type) };
  },

  async aiApproval() {
    const openai = createOpenAI({ baseURL, apiKey: "x" });
    const tools = { calc: openai.tools.mcp({ serverLabel: "calc", serverUrl, requireApproval: "always" }) };
    const messages = [{ role: "user", content: "2+3?" }];
    const first = await generateText({ model: openai.responses(model), messages, tools });
    const request = first.content.find((part) => part.type === "tool-approval-request");
    const answer = { type: "tool-approval-response", approvalId: request.approvalId, approved: true };
    const replies = [...messages, ...first.response.messages, { role: "tool", content: [answer] }];
    const second = await generateText({ model: openai.responses(model), messages: replies, tools });
    return { asked: request.type, text: second.text, finish: second.finishReason };
  },

  async openResponses() {
    const provider = createOpenResponses({ name: "rejoinder", url: `${baseURL}/responses`, apiKey: "x" });
    const result = streamText({ model: provider(model), prompt: "hello" });
    let text = "";
    for await (const delta of result.textStream) text += delta;
    return { text, finish: await result.finishReason };
  },
};

console.log(JSON.stringify(await cases[which]()));
