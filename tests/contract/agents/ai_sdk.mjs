// The AI SDK with its models of OpenAI: talks, streams, calls tools and sends their results back.
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, apiKey, job, face, name] = process.argv.slice(2);
// Without a face it is the default one, Responses.
const provider = createOpenAI({ baseURL, apiKey });
const model = face === "chat" ? provider.chat(name) : provider(name);
const stored = { providerOptions: { openai: { store: false } }, maxRetries: 0 };
const get_weather = tool({
  description: "Tells the weather.",
  inputSchema: z.object({ city: z.string(), number: z.number() }),
  execute: async ({ city }) => `12 degrees in ${city}`,
});

const jobs = {
  plain: async () => {
    const { text, usage } = await generateText({ model, prompt: "one two", ...stored });
    return { text, tokens: usage.totalTokens };
  },
  stream: async () => {
    const result = streamText({ model, prompt: "one two", ...stored });
    const parts = [];
    for await (const part of result.fullStream) parts.push(part);
    const text = parts.filter((part) => part.type === "text-delta").map((part) => part.text);
    return { text, finish: await result.finishReason, reasoning: await result.reasoningText };
  },
  // Two steps: the second one sends the call and its result.
  tools: async () => {
    const { steps } = await generateText({
      model, prompt: "Hi", tools: { get_weather }, stopWhen: stepCountIs(2), ...stored,
    });
    return { steps: steps.length, inputs: steps[0].toolCalls.map((each) => each.input) };
  },
  toolStream: async () => {
    const result = streamText({
      model, prompt: "Hi", tools: { get_weather }, stopWhen: stepCountIs(2), ...stored,
    });
    await result.consumeStream();
    const steps = await result.steps;
    return { steps: steps.length, results: steps[0].toolResults.map((each) => each.output) };
  },
  turns: async () => {
    const first = await generateText({ model, prompt: "one two", ...stored });
    const messages = [...first.response.messages, { role: "user", content: "three" }];
    const { text } = await generateText({ model, messages, ...stored });
    return { text };
  },
  object: async () => {
    const schema = z.object({ body: z.any() });
    const { object } = await generateObject({ model, prompt: "Hi", schema, ...stored });
    return { object };
  },
  // Without `store: false` the second turn refers to items that nobody stored.
  references: async () => {
    const first = await generateText({ model, prompt: "one two", maxRetries: 0 });
    const messages = [...first.response.messages, { role: "user", content: "three" }];
    await generateText({ model, messages, maxRetries: 0 });
  },
  cancel: async () => {
    const stop = new AbortController();
    const { textStream } = streamText({
      model, prompt: "one two", abortSignal: stop.signal, ...stored,
    });
    for await (const text of textStream) {
      if (text) stop.abort();
    }
    return {};
  },
};

try {
  console.log(JSON.stringify(await jobs[job]()));
} catch (error) {
  console.log(JSON.stringify({ error: error.message, name: error.name, status: error.statusCode }));
}
