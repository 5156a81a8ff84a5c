"""What test_ray.py runs in a process of its own: a local Ray, the server on it, and a batch. Prints what came of it.

python ray_session.py BUNDLE FOLDER
"""

import json
import sys
from pathlib import Path

import httpx
import ray
import ray.data
from ray import serve

from runtime.ray.batch import answer_dataset
from runtime.ray.serve import application

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "seed": 1, "temperature": 1}


def serving(bundle: str) -> dict[str, object]:
    app = application({"bundle": bundle, "name": "tiny", "max_concurrency": "4", "max_replicas": "1"})
    serve.run(app, route_prefix="/", name="onnxlm")
    url = "http://127.0.0.1:8000"
    answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=60).json()
    stream = httpx.post(f"{url}/v1/chat/completions", json=CHAT | {"stream": True}, timeout=60).text
    parts = [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]
    text = "".join(part["choices"][0]["delta"].get("content", "") for part in parts)
    status = httpx.get(f"{url}/health").status_code
    serve.shutdown()
    return {"answer": answer["choices"][0]["message"]["content"], "stream": text, "health": status}


def batch(bundle: str, folder: Path) -> dict[str, object]:
    rows = [{"id": i, "prompt": f"number {i}", "seed": i, "temperature": 1.0} for i in range(10)]
    rows[3]["temperature"] = -1.0
    lines, tables, results = folder / "in.jsonl", folder / "in.parquet", {}
    lines.write_text("\n".join(map(json.dumps, rows)))
    ray.data.from_items(rows).write_parquet(str(tables))
    for name, dataset in {
        "jsonl": ray.data.read_json(str(lines), lines=True),
        "parquet": ray.data.read_parquet(str(tables)),
    }.items():
        answered = answer_dataset(dataset, bundle, {"max_tokens": 5}, batch_size=4)
        results[name] = sorted(answered.take_all(), key=lambda row: row["id"])
    return results


def main() -> None:
    bundle, folder = sys.argv[1], Path(sys.argv[2])
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
    result = batch(bundle, folder) | serving(bundle)
    ray.shutdown()
    (folder / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
