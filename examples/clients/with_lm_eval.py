"""EleutherAI's lm-evaluation-harness: pip install 'lm-eval[api]'

A task of its own beside this program's temporary files; those of the harness are named in the same way.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}
import lm_eval
from lm_eval.tasks import TaskManager

address, model = sys.argv[1:3]
TASK = """
task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}]
"""
rows = [{"question": f"{a} + 1 =", "choices": [f" {a + 1}", f" {a + 3}"], "answer": 0} for a in range(1, 5)]

with tempfile.TemporaryDirectory() as folder:
    data = Path(folder) / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (Path(folder) / "sums.yaml").write_text(TASK.replace("DATA", str(data)))
    found = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": model,
            "base_url": f"{address}/v1/completions",
            "tokenizer_backend": "remote",  # the server's own, at /tokenize
            "max_length": 512,
        },
        tasks=["sums"],
        task_manager=TaskManager(include_path=folder),
        bootstrap_iters=0,
    )
print("ok loglikelihood:", found["results"]["sums"]["acc,none"])
