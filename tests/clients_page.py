"""docs/clients.md, from the table in `clients.py` and from what the programs showed: python tests/clients_page.py"""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clients import CLIENTS, Client

DOCS = Path(__file__).parents[1] / "docs"
_HEAD = """# Clients

Each row is a program in `examples/clients` that ran against the server, in an environment of the client's own.
`make clients` installs them all, runs them, and writes this page; the tests run those that are installed. What the
model says is scripted there; calls and JSON are what it writes by the grammar.

| client | version | what it needs | works | does not |
|---|---|---|---|---|
"""
_TAIL = """
transformers.js asks no server: it loads the folder that `onnxlm export --format transformersjs` writes
([Without Python](embed.md)), which `tests/test_examples/test_transformersjs.py` checks in Node and in a browser.

<!-- not run: needs models of its own; its options are checked -->
```sh
make clients                                                  # all of them; needs PyPI and npm
python examples/clients/with_openai.py http://127.0.0.1:8000 smol-int4   # one of them, against a server of yours
```

What a server without `--api-key` takes as a key is any text; most clients refuse to start without one.

## What to do next

- [Serve](serve.md): every path, and what each answers.
- [Tools and reasoning](chat.md): which models call tools, and how thoughts come back.
"""


def page(clients: Mapping[str, Client], results: Mapping[str, Any]) -> str:
    """The page; a client that nobody ran says so."""
    return _HEAD + "".join(_row(client, results.get(name)) for name, client in clients.items()) + _TAIL


def version_of(client: Client, command: list[str]) -> str:
    """The version of the client's first package where its program runs."""
    package = client.install[0].partition("[")[0]
    if client.node:
        found = Path(command[1]).parent / "node_modules" / package / "package.json"
        return str(json.loads(found.read_text())["version"])
    asked = f"from importlib.metadata import version; print(version({package!r}))"
    return subprocess.run([command[0], "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


def _row(client: Client, result: Mapping[str, Any] | None) -> str:
    name = f"[{client.title}](../examples/clients/{client.program})"
    if result is None:
        return f"| {name} | – | {client.needs} | not run yet | |\n"
    works = [check for check in client.checks if check in result["works"]]
    fails = [check for check in client.checks if check not in result["works"]]
    return f"| {name} | {result['version']} | {client.needs} | {', '.join(works)} | {', '.join(fails)} |\n"


if __name__ == "__main__":
    found = json.loads((DOCS / "clients.json").read_text())
    (DOCS / "clients.md").write_text(page(CLIENTS, found))
