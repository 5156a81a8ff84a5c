"""Many replicas of the server on a Ray cluster: the same ASGI application behind Ray Serve. Needs the extra `ray`.

    serve run runtime.ray.serve:application bundle=/models/smol-int4 max_replicas=4 max_concurrency=16

Ray Serve starts and stops replicas by the length of their queues. Its router for shared prefixes takes only its own
language-model deployments, so requests go to the less busy of two replicas, and each has a prefix cache of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ExecutionError, MissingDependencyError, OptionError
from ..options import integer

if TYPE_CHECKING:
    from starlette.applications import Starlette


@dataclass(frozen=True, kw_only=True)
class RayOptions:
    """What `serve run` is told, as name=value.

    Args:
        bundle: the folder, at the same place on every node.
        name: of the model; default: the folder's.
        provider: "auto", "cpu" or "cuda".
        max_concurrency: requests that decode together in one replica.
        max_queue: requests that may wait in one replica.
        min_replicas: always there.
        max_replicas: most replicas.
        cpus: cores that one replica reserves and uses.
        gpus: GPUs that one replica reserves.
        api_key_file: keys, one a line, at the same place on every node.

    Raises:
        OptionError: a value is out of range.
    """

    bundle: str
    name: str | None = None
    provider: str = "auto"
    max_concurrency: int = 16
    max_queue: int = 16
    min_replicas: int = 1
    max_replicas: int = 4
    cpus: int = 1
    gpus: int = 0
    api_key_file: str | None = None

    def __post_init__(self) -> None:
        try:
            for name in ("max_concurrency", "min_replicas", "cpus"):
                integer(name, getattr(self, name), 1)
            integer("max_queue", self.max_queue, 0)
            integer("gpus", self.gpus, 0)
            integer("max_replicas", self.max_replicas, self.min_replicas)
        except ValueError as error:
            raise OptionError(f"{error}.") from None

    @classmethod
    def parse(cls, arguments: Mapping[str, Any]) -> "RayOptions":
        """From words: whole numbers become numbers.

        Raises:
            OptionError: an unknown name, or a wrong value.
        """
        values = {name: _number(value) if name in _NUMBERS else value for name, value in arguments.items()}
        try:
            return cls(**values)
        except TypeError as error:
            raise OptionError(f"{error}. Known are {', '.join(cls.__dataclass_fields__)}; bundle is needed.") from error


_NUMBERS = {"max_concurrency", "max_queue", "min_replicas", "max_replicas", "cpus", "gpus"}


def application(arguments: Mapping[str, Any]) -> Any:
    """A Ray Serve application; `serve run runtime.ray.serve:application bundle=…` calls this.

    Args:
        arguments: see RayOptions.

    Raises:
        OptionError: an argument is unknown or out of range.
        MissingDependencyError: Ray is not installed.
    """
    options = RayOptions.parse(arguments)
    serve = _serve()
    inside = options.max_concurrency + options.max_queue

    def build() -> "Starlette":
        return build_app(options)

    deployment = serve.deployment(
        name="onnxlm",
        ray_actor_options={"num_cpus": options.cpus, "num_gpus": options.gpus},
        max_ongoing_requests=inside,
        health_check_period_s=10,
        graceful_shutdown_timeout_s=120,
        autoscaling_config={
            "min_replicas": options.min_replicas,
            "max_replicas": options.max_replicas,
            "target_ongoing_requests": options.max_concurrency,
        },
    )(serve.ingress(build)(Replica))
    return deployment.bind()


class Replica:
    """One server; Ray Serve adds `app`, the ASGI application, and asks whether it is well."""

    app: "Starlette"

    def check_health(self) -> None:
        """Raise if an engine has stopped or stands still, so that Ray Serve replaces this replica."""
        if faults := self.app.state.service.faults():
            raise ExecutionError(f"{faults}")


def build_app(options: RayOptions) -> "Starlette":
    """Load the model and make the application, on the node of the replica."""
    from ..client import Model
    from ..options import EngineOptions
    from ..server.app import create_app
    from ..server.auth import read_keys
    from ..server.options import ServerOptions

    inside = options.max_concurrency + options.max_queue
    engine = EngineOptions(max_concurrency=options.max_concurrency, max_queue=inside, threads=options.cpus)
    model = Model(options.bundle, options.provider, engine)
    keys = read_keys(Path(options.api_key_file)) if options.api_key_file else ()
    name = options.name or Path(options.bundle).resolve().name
    return create_app({name: model}, ServerOptions(api_keys=keys, max_queue=options.max_queue))


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise MissingDependencyError("Ray Serve is not installed: pip install 'onnxlm[ray]'.") from error
    return serve
