"""Options to recipes: presets, files, and combinations that contradict each other."""

import json

import pytest

from quantizer.gate import parse_gate
from quantizer.presets import PRESETS, Storage, make_recipe, read_recipe
from quantizer.storage.scheme import QuantConfig, Scheme
from runtime.bundle.manifest import Quality
from runtime.errors import QuantizationError


def test_nothing_said_is_the_balanced_preset():
    assert make_recipe() == PRESETS["balanced"]
    assert make_recipe(budget=4.8, seed=3).budget == 4.8


def test_storage_is_taken_at_its_word_and_needs_no_text():
    recipe = make_recipe(storage=Storage(bits=8, group_size=64))
    assert recipe.linear == QuantConfig(Scheme(8, 64))
    assert (recipe.budget, recipe.needs_text) == (None, False)
    assert make_recipe(method="gptq", storage=Storage(bits=4, residual_channels=32)).linear.residual_channels == 32
    assert make_recipe(method="gptq", storage=Storage(bits=8)).linear == QuantConfig(Scheme(8, 32, True, scale_bits=8))


def test_residual_channels_mean_gptq():
    assert make_recipe(storage=Storage(bits=4, residual_channels=32)) == make_recipe(
        method="gptq", storage=Storage(residual_channels=32)
    )
    auto = make_recipe(storage=Storage(bits=4, group_size=64, residual_channels="auto"))
    assert (auto.method, auto.linear, auto.residual_share) == ("gptq", QuantConfig(Scheme(4, 64, scale_bits=8)), 0.03)
    assert make_recipe(storage=Storage(residual_channels=0)).method == "search"


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"preset": "fast", "method": "gptq"}, "leave out one"),
        ({"budget": 5.0, "storage": Storage(bits=4)}, "budget chooses bits"),
        ({"preset": "small", "storage": Storage(group_size=64)}, "budget chooses bits"),
        ({"method": "search", "storage": Storage(residual_channels=32)}, "use method gptq"),
        ({"method": "rtn", "storage": Storage(residual_channels="auto")}, "use method gptq"),
        (
            {"preset": "balanced", "storage": Storage(residual_channels="auto")},
            "budget chooses bits, groups and residual channels",
        ),
        ({"method": "gptq", "storage": Storage(residual_channels=7)}, "multiple of the group size"),
        ({"budget": 0.5}, "choose a number"),
    ],
)
def test_contradictions_are_errors(choices, message):
    with pytest.raises(QuantizationError, match=message):
        make_recipe(**choices)


def test_recipe_file(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(
        'method = "gptq"\npermute = true\nbudget = 4.8\n'
        "[linear]\nscheme = {bits = 4, group_size = 64}\n[embedding]\nscheme = {bits = 8, symmetric = true}\n"
    )
    recipe = read_recipe(path)
    assert recipe.linear.scheme == Scheme(4, 64)
    assert (recipe.budget, recipe.permute) == (4.8, True)
    path.write_text(path.read_text() + "colour = 1\n")
    with pytest.raises(QuantizationError, match="colour"):
        read_recipe(path)


def test_earlier_spellings_of_recipes_are_read(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(
        'method = "gptq"\nfold = true\n'
        "[linear]\noutliers = 32\nscheme = {bits = 4}\n[table]\nscheme = {bits = 8, symmetric = true}\n"
    )
    recipe = read_recipe(path)
    assert (recipe.smoothing, recipe.linear.residual_channels, recipe.embedding.scheme.bits) == (True, 32, 8)
    path.write_text(path.read_text().replace("fold", "smoothing = true\nfold"))
    with pytest.raises(QuantizationError, match="'fold' is the earlier spelling of 'smoothing'"):
        read_recipe(path)


EMBEDDING = "[embedding]\nscheme = {bits = 8, symmetric = true}\n"


@pytest.mark.parametrize(
    ("keys", "count", "message"),
    [
        ("residual_share = 0.02\nbudget = 5.0", 0, "a budget, or residual channels of linear and embedding"),
        ("residual_share = 0.02", 32, "a budget, or residual channels of linear and embedding"),
        ("residual_share = 0.0", 0, "above 0, at most 1"),
        ("residual_share = 1.5", 0, "above 0, at most 1"),
    ],
)
def test_a_share_of_residual_channels_is_checked(keys, count, message, tmp_path):
    path = tmp_path / "recipe.toml"
    linear = f"[linear]\nscheme = {{bits = 4}}\nresidual_channels = {count}\n"
    path.write_text(f'method = "gptq"\n{keys}\n{linear}{EMBEDDING}')
    with pytest.raises(QuantizationError, match=message):
        read_recipe(path)


QUALITY = Quality(0.05, 0.4, 0.88, 12.0, 11.5, "text", 100, "1.32.0")


def test_gates():
    parse_gate("kl > 0.06").check(QUALITY)
    parse_gate("top1<0.8").check(QUALITY)
    with pytest.raises(QuantizationError, match=r"kl is 0\.05, above 0\.04, which --fail-if forbids"):
        parse_gate("kl>0.04").check(QUALITY)


@pytest.mark.parametrize("text", ["", "kl", "kl>", "kl>x", "speed<3", "kl=0.1", "kl>nan", "kl>1e"])
def test_wrong_gates_say_what_is_right(text):
    with pytest.raises(QuantizationError, match=r"kl>0\.06"):
        parse_gate(text)


def test_presets_survive_json():
    from quantizer.recipe import Recipe
    from runtime.bundle import json_codec

    for recipe in PRESETS.values():
        assert json_codec.decode(Recipe, json.loads(json.dumps(json_codec.encode(recipe)))) == recipe
