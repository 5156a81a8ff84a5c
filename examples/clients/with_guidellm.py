"""GuideLLM: pip install guidellm"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

address, model = sys.argv[1:3]
rows = [{"prompt": f"Add {number} and three.", "output_tokens_count": 8} for number in range(4)]

with tempfile.TemporaryDirectory() as folder:
    data, report = Path(folder) / "prompts.jsonl", Path(folder) / "report.json"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        str(Path(sys.executable).parent / "guidellm"), "run",
        "--backend", f"kind=openai_http,target={address},model={model}",
        "--profile", "kind=synchronous",
        "--constraint", "kind=max_requests,count=3",
        "--data", f"kind=json_file,path={data}",
        "--output", f"kind=json,path={report}",
        "--disable-console",
    ]  # fmt: skip
    subprocess.run(command, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    benchmark = json.loads(report.read_text())["benchmarks"][0]
print("ok benchmark:", benchmark["metrics"]["request_totals"])
