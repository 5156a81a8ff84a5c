"""Write models/families/class_defaults.json from the installed transformers.

    python tests/bench/class_defaults.py

It holds what transformers' config classes take for keys that a config.json leaves out, and which text model a
multimodal one holds where its text_config does not say. tests/test_models/test_class_defaults.py compares it.
"""

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

from models.decoder.config import IRRELEVANT
from models.families.registry import FAMILIES

TARGET = Path(__file__).parents[2] / "models" / "families" / "class_defaults.json"


def class_defaults(kind: type) -> dict[str, Any]:
    """Values that the class states for keys that count; a scaled rope is made when a config is."""
    stated = {field.name: field.default for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    found = {
        key: value
        for key, value in stated.items()
        if value is not None and value is not dataclasses.MISSING and key not in IRRELEVANT
    }
    rope = kind().to_dict().get("rope_parameters") or {}
    scaled = rope.get("rope_type", "default") != "default"
    return found | ({"rope_parameters": rope} if scaled else {})


def text_model(kind: type) -> str | None:
    """The model type of a multimodal config's text model, where a family of ours is called so."""
    if "text_config" not in getattr(kind, "sub_configs", {}):
        return None
    model_type = getattr(kind().text_config, "model_type", None)
    return model_type if model_type in FAMILIES else None


def tables() -> dict[str, Any]:
    """Everything that the file holds."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    texts = {}
    for name in sorted(CONFIG_MAPPING.keys()):
        try:
            texts[name] = text_model(CONFIG_MAPPING[name])
        except Exception as error:  # noqa: BLE001  # classes that are none without something more
            print(name, error)
    return {
        "defaults": {name: class_defaults(CONFIG_MAPPING[name]) for name in sorted(FAMILIES) if name in CONFIG_MAPPING},
        "text_models": {name: found for name, found in texts.items() if found and found != name},
    }


def main() -> None:
    """Write the file, a line a model type."""
    parts = []
    for name, rows in tables().items():
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in rows.items())
        parts.append(f' "{name}": {{\n{lines}\n }}')
    TARGET.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    main()
