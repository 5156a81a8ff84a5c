"""An HTTP server over the engine: `onnxlm serve`. Needs the extra `serve`.

process.py    the uvicorn process: signals, draining; logging.py writes its log
app.py        every route, and what stands before them: auth.py, limits.py
state.py      what the routes share: models, limits.py, metrics.py, health.py
openai/       completions, chat, responses: endpoint.py takes a request from its body to its last byte,
              and the routes differ in their builder
anthropic/    the Messages API, and ollama/ Ollama's, over the same builders
page/         the page to chat at
"""
