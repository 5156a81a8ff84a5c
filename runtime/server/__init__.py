"""An OpenAI-compatible HTTP server over the engine: `onnxlm serve`. Needs the extra `serve`.

app.py              every route, and what stands before them
service.py          what the routes share: models, limits, figures
generation_endpoint.py   one request from its body to its last byte; chat and completion differ in their job
chat_job.py, completion_job.py   body → prompts and parameters, and the shape of the answer
process.py          the uvicorn process: signals, draining
"""
