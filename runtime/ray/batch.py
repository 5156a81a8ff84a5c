"""Offline answers to a dataset on a Ray cluster, with Ray Data. Needs the extra `ray`.

ray job submit -- python -m runtime.ray.batch /models/smol-int4 prompts.jsonl answers --replicas 4
"""

from collections.abc import Mapping
from typing import Any

import click

from ..batch_lines import BatchDefaults, batch_request
from ..errors import MissingDependencyError, OnnxlmError, OptionError

ANSWER_COLUMNS = ("answer", "finish_reason", "prompt_tokens", "generated_tokens", "error")


def answer_dataset(
    dataset: Any,
    bundle: str,
    params: Mapping[str, Any] | None = None,
    *,
    replicas: int = 1,
    batch_size: int = 64,
    max_concurrency: int = 16,
    cpus: int = 1,
    gpus: int = 0,
) -> Any:
    """Answer every row of a Ray dataset; lazy, as datasets are.

    Args:
        dataset: rows with `prompt` or `messages`, and if wanted arguments of SamplingParams; other columns are kept.
        bundle: the folder, at the same place on every node.
        params: arguments of SamplingParams for rows that do not say otherwise.
        replicas: processes with a model each.
        batch_size: rows that one of them gets at a time.
        max_concurrency: rows that decode together.
        cpus: cores of each process.
        gpus: GPUs of each process.

    Returns:
        The dataset with the columns of ANSWER_COLUMNS. A row that fails has an `error`, and no answer.
    """
    return dataset.map_batches(
        Answerer,
        fn_constructor_args=(bundle, dict(params or {}), max_concurrency, cpus),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=_data().ActorPoolStrategy(size=replicas),
        num_cpus=cpus,
        num_gpus=gpus,
    )


class Answerer:
    """One process's model; Ray Data calls it with tables."""

    def __init__(self, bundle: str, params: Mapping[str, Any], max_concurrency: int, cpus: int) -> None:
        from ..client import Model
        from ..options import EngineOptions

        self._model = Model(bundle, "auto", EngineOptions(max_concurrency=max_concurrency, threads=cpus))
        self._defaults = BatchDefaults(params)

    def __call__(self, table: Any) -> Any:
        """The table with columns for the answers; their types are fixed, so that all blocks agree."""
        import pyarrow as pa

        answers = self._answers(table.to_pylist())
        types = dict(zip(ANSWER_COLUMNS, (pa.string(), pa.string(), pa.int64(), pa.int64(), pa.string()), strict=True))
        for name, kind in types.items():
            table = table.append_column(name, pa.array([answer.get(name) for answer in answers], kind))
        return table

    def _answers(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        from ..batch import Batch

        answers: list[dict[str, Any]] = [{} for _ in rows]
        requests, places = [], []
        for place, row in enumerate(rows):
            try:
                given = {name: value for name, value in row.items() if value is not None}
                requests.append(batch_request(given, self._defaults, self._model))
                places.append(place)
            except OnnxlmError as error:
                answers[place] = {"error": str(error)}
        for place, completion in zip(places, Batch(self._model).run(requests), strict=True):
            answers[place] = {
                "answer": completion.text if completion.error is None else None,
                "finish_reason": completion.finish_reason,
                "prompt_tokens": completion.prompt_tokens,
                "generated_tokens": len(completion.token_ids),
                "error": None if completion.error is None else str(completion.error),
            }
        return answers


@click.command()
@click.argument("bundle")
@click.argument("source")
@click.argument("target")
@click.option("--replicas", default=1, show_default=True, help="Processes with a model each.")
@click.option("--max-tokens", default=256, show_default=True, help="Most tokens of an answer.")
@click.option("--cpus", default=1, show_default=True, help="Cores of each process.")
@click.option("--gpus", default=0, show_default=True, help="GPUs of each process.")
def main(bundle: str, source: str, target: str, replicas: int, max_tokens: int, cpus: int, gpus: int) -> None:
    """Answer SOURCE, a JSONL or Parquet file or folder, into the folder TARGET, in the same format.

    \b
    Example:
      ray job submit -- python -m runtime.ray.batch /models/smol-int4 prompts.jsonl answers --replicas 4
    """
    data = _data()
    if not source.rstrip("/").endswith((".jsonl", ".json", ".parquet")):
        raise OptionError(f"{source}: expected a name that ends in .jsonl, .json or .parquet.")
    parquet = source.rstrip("/").endswith(".parquet")
    dataset = data.read_parquet(source) if parquet else data.read_json(source, lines=True)
    answered = answer_dataset(dataset, bundle, {"max_tokens": max_tokens}, replicas=replicas, cpus=cpus, gpus=gpus)
    if parquet:
        answered.write_parquet(target)
    else:
        answered.write_json(target)


def _data() -> Any:
    try:
        import ray.data
    except ImportError as error:
        raise MissingDependencyError("Ray Data is not installed: pip install 'onnxlm[ray]'.") from error
    return ray.data


if __name__ == "__main__":
    main()
