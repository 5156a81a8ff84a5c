"""An OpenAI-compatible HTTP server over the engine: `onnxlm serve`. Needs the extra `serve`.

app.py              every route, and what stands before them
service.py          what the routes share: models, limits, figures
turnstile.py        a crowd comes in a few at a time
generation_endpoint.py   one request from its body to its last byte; the routes differ in their job
chat_request.py     messages → a request for the engine
chat_job.py, response_job.py, completion_job.py   body → request, and the shape of the answer
process.py          the uvicorn process: signals, draining; log_thread.py writes its log
"""
