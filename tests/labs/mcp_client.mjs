// Clients of the official TypeScript SDKs: `node mcp_client.mjs SUITE SDK MODE URL`.
//
// SUITE is the folder that `make mcp-suite` fills, SDK is 1 (the old protocol) or 2 (both), MODE is `legacy` or `auto`.
// The client does what a scenario of the conformance suite asks for, and prints what it saw. With GATEWAY, a port, it
// asks there for the server at URL. With TARGET, the server is one of several that are joined there; servers of the old
// protocol then ask the client nothing.

import { createRequire } from "node:module";
import { join } from "node:path";

const [suite, sdk, mode, address] = process.argv.slice(2);
const require = createRequire(join(suite, "node_modules", "client.cjs"));
const scenario = process.env.MCP_CONFORMANCE_SCENARIO ?? "";
const context = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? "{}");
const url = new URL(address);
const signsIn = scenario.startsWith("auth/");
// Tokens are for the URL of the server, so the client takes the gateway for it.
const throughGateway = (input, init = {}) => {
  const asked = new URL(input);
  if (!process.env.GATEWAY || asked.origin !== url.origin) return fetch(input, init);
  const headers = new Headers(init.headers);
  headers.set("x-server", asked.port);
  asked.port = process.env.GATEWAY;
  return fetch(asked, { ...init, headers });
};

// A user who signs in at once wherever the client leads.
class User {
  redirectUrl = "http://localhost:3000/callback";
  clientMetadataUrl = "https://conformance-test.local/client-metadata.json";
  clientMetadata = {
    client_name: "tierwall-client",
    redirect_uris: [this.redirectUrl],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    application_type: "native",
  };
  registered = new Map();
  clientInformation() {
    if (context.client_id) return { client_id: context.client_id, client_secret: context.client_secret };
    return this.registered.get(this.discovered?.authorizationServerUrl);
  }
  saveClientInformation(information) {
    this.registered.set(this.discovered?.authorizationServerUrl, information);
  }
  tokens = () => this.saved;
  saveTokens = (tokens) => void (this.saved = tokens);
  saveCodeVerifier = (verifier) => void (this.verifier = verifier);
  codeVerifier = () => this.verifier;
  saveDiscoveryState = (state) => void (this.discovered = state);
  discoveryState = () => this.discovered;
  async redirectToAuthorization(where) {
    const answer = await fetch(where, { redirect: "manual" });
    this.returned = new URL(answer.headers.get("location")).searchParams;
  }
}
const user = new User();
const signingIn = async (input, init = {}) => {
  const { auth, extractWWWAuthenticateParams } = require("@modelcontextprotocol/client");
  for (let tries = 0; ; tries++) {
    const headers = new Headers(init.headers);
    if (user.saved) headers.set("authorization", `Bearer ${user.saved.access_token}`);
    const answer = await throughGateway(input, { ...init, headers });
    if (![401, 403].includes(answer.status) || tries === 3) return answer;
    const wanted = extractWWWAuthenticateParams(answer);
    if (answer.status === 403 && user.scope) wanted.scope = `${user.scope} ${wanted.scope}`;
    // Whoever refuses a token may have another authority now.
    if (answer.status === 401) user.discovered = user.saved = undefined;
    user.scope = wanted.scope;
    const flow = { serverUrl: url, ...wanted, fetchFn: throughGateway };
    if ((await auth(user, flow)) === "REDIRECT") {
      const [authorizationCode, iss] = ["code", "iss"].map((name) => user.returned.get(name) ?? undefined);
      await auth(user, { ...flow, authorizationCode, iss });
    }
  }
};

const capabilities = { elicitation: { form: { applyDefaults: true } }, sampling: {}, roots: {} };
const information = { name: "tierwall-client", version: "1" };
const elicited = async (request) =>
  scenario ? { action: "accept", content: {} } : { action: "accept", content: { response: "yes", name: "Ada" } };
const sampled = async () => ({ role: "assistant", model: "m", content: { type: "text", text: "Paris" } });
let client, transport;
if (sdk === "1") {
  const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
  const { StreamableHTTPClientTransport } = require("@modelcontextprotocol/sdk/client/streamableHttp.js");
  const { ElicitRequestSchema, CreateMessageRequestSchema } = require("@modelcontextprotocol/sdk/types.js");
  client = new Client(information, { capabilities });
  client.setRequestHandler(ElicitRequestSchema, elicited);
  client.setRequestHandler(CreateMessageRequestSchema, sampled);
  transport = new StreamableHTTPClientTransport(url, { fetch: signsIn ? signingIn : throughGateway });
} else {
  const { Client, StreamableHTTPClientTransport } = require("@modelcontextprotocol/client");
  client = new Client(information, { capabilities, versionNegotiation: { mode } });
  client.setRequestHandler("elicitation/create", elicited);
  client.setRequestHandler("sampling/createMessage", sampled);
  transport = new StreamableHTTPClientTransport(url, { fetch: signsIn ? signingIn : throughGateway });
}

// Return arguments that a schema takes.
function argumentsFor(tool, tools) {
  const properties = tool.inputSchema?.properties ?? {};
  const simple = { number: 5, integer: 5, boolean: true, string: "x", array: [], object: {} };
  const values = Object.entries(properties).map(([name, { type }]) => [name, simple[type] ?? null]);
  if ("schema" in properties) {
    return { schema: tools.find((other) => other !== tool).inputSchema };
  }
  return Object.fromEntries(values);
}

async function play() {
  const { tools } = await client.listTools();
  for (const name of ["Resources", "Prompts"]) {
    try {
      const [first] = Object.values(await client[`list${name}`]())[0];
      if (name === "Resources" && first) await client.readResource({ uri: first.uri });
      if (name === "Prompts" && first) await client.getPrompt({ name: first.name, arguments: {} });
    } catch {
      // The server of this scenario has none of these.
    }
  }
  const calls = context.toolCalls ?? tools.map((tool) => ({ name: tool.name, arguments: argumentsFor(tool, tools) }));
  for (const call of calls) {
    await client.callTool(call).catch((error) => console.error(call.name, String(error)));
  }
}

async function ask() {
  const isNew = sdk === "2" && mode === "auto";
  const asking = isNew ? ["test_input_required_result_elicitation", {}] : ["test_elicitation", { message: "?" }];
  const sampling = isNew ? ["test_input_required_result_sampling", {}] : ["test_sampling", { prompt: "?" }];
  const target = process.env.TARGET;
  const named = (name) => (target ? `${target}_${name}` : name);
  const call = ([name, values]) => client.callTool({ name: named(name), arguments: values });
  const answered = async (question) => (target && !isNew ? "" : (await call(question)).content[0].text);
  const said = {
    tools: (await client.listTools()).tools.length,
    resources: (await client.listResources()).resources.length,
    text: (await call(["test_simple_text", {}])).content[0].text,
    elicited: await answered(asking),
    sampled: await answered(sampling),
    read: (await client.readResource({ uri: `${target ? `${target}+` : ""}test://static-text` })).contents[0].text,
    prompt: (await client.getPrompt({ name: named("test_simple_prompt") })).messages.length,
    version: client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion,
  };
  console.log(JSON.stringify(said));
}

await client.connect(transport);
try {
  await (scenario ? play() : ask());
} finally {
  await client.close();
}
