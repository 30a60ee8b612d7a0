"""Models: loading, running, differentiating, training, saving."""

import threading
import time
import warnings

import numpy as np
import pytest

import autobwd


def test_files_of_all_formats_load(model, images, tmp_path):
    model.save("images.json")
    model.save("values.safetensors")
    model.save("written.onnx")
    model.save("written.pdmodel")
    expected = model(images)
    from_json = autobwd.load("images.json", weights="values.safetensors")
    for again in (from_json, autobwd.load("written.onnx"), autobwd.load(tmp_path / "written.pdmodel")):
        np.testing.assert_array_equal(again(images), expected)
        assert list(again.inputs) == ["x"] and list(again.outputs) == ["scores"]


def test_models_of_paddlepaddle_and_hugging_face_run():
    paddle = autobwd.load("images.pdmodel")
    assert len(paddle.inputs) == 1
    logits = autobwd.load("qwen2")(np.array([[5, 7, 9]]))
    assert logits.shape[:2] == (1, 3)


def test_a_language_model_learns_to_continue_its_tokens():
    tokens = np.array([[5, 7, 9, 11]])
    step = autobwd.load("qwen2").loss("next_token").train_step("adamw:0.001", freeze=["*embed_tokens*"])
    losses = [float(step(tokens, tokens)) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_specifications_have_names_of_dimensions(model):
    spec = model.inputs["x"]
    assert (spec.dtype, spec.shape, repr(spec)) == ("float32", ("N", 1, "H", "W"), "float32 [N, 1, H, W]")
    assert model.parameters["head.weight"].shape == (3, 6)


def test_gradients_are_those_of_central_differences(model, images, labels):
    loss = model.loss("cross_entropy", target="labels")
    found = loss.grad().run({"x": images, "labels": labels})
    assert found["loss"] == loss(images, labels)
    bias = model.state_dict()["head.bias"]
    for at in range(3):
        ends = []
        for sign in (1, -1):
            moved = bias.copy()
            moved[at] += sign * 1e-2
            model.load_state_dict({"head.bias": moved})
            ends.append(float(loss(images, labels)))
        difference = (ends[0] - ends[1]) / 2e-2
        assert abs(difference - found["head.bias@GRAD"][at]) < 1e-4


def test_inputs_have_gradients_on_request(model, images, labels):
    gradients = model.loss("cross_entropy").grad(wrt=["x"])
    assert list(gradients.outputs) == ["loss", "x@GRAD"]
    assert gradients(images, labels)[1].shape == images.shape
    assert "gradient" in gradients.explain("x@GRAD")


def test_losses_are_those_of_their_formulas(model, images, labels):
    scores = model(images)
    target = np.full([4, 3], 0.25, np.float32)
    logits = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    expected = {
        "cross_entropy": -logits[np.arange(4), labels].mean(),
        "mse_loss": ((scores - target) ** 2).mean(),
        "l1_loss": np.abs(scores - target).mean(),
        "binary_cross_entropy_with_logits": (np.log1p(np.exp(scores)) - target * scores).mean(),
    }
    for kind, value in expected.items():
        found = model.loss(kind)(images, labels if kind == "cross_entropy" else target)
        assert abs(found - value) < 1e-6, kind


def test_a_training_step_changes_the_values_of_its_model(model, images, labels):
    before, frozen = model.state_dict(), model.freeze()
    scores = frozen(images)
    step = model.loss("cross_entropy").train_step("adam:0.05", freeze=["first*"])
    losses = [float(step(images, labels)) for _ in range(50)]
    assert losses[-1] < losses[0] - 0.1
    after = model.state_dict()
    np.testing.assert_array_equal(after["first.weight"], before["first.weight"])
    assert (after["head.weight"] != before["head.weight"]).any()
    # What the optimizer keeps is of the step alone.
    assert len(step.state_dict()) > len(after)
    np.testing.assert_array_equal(frozen(images), scores)


def test_a_budget_bounds_the_memory_of_a_step_and_changes_no_bit(images, labels):
    shapes = {"x": (64, 1, 64, 64), "target": (64,)}
    x, target = np.ones(shapes["x"], np.float32), np.zeros(64, np.int64)

    def losses(budget):
        loss = autobwd.load("images.onnx").loss("cross_entropy")
        step = loss.train_step("sgd:0.1", budget=budget, shapes=shapes)
        assert budget is None or step.plan(shapes=shapes).total_bytes <= budget
        return [float(step(x, target)) for _ in range(3)], step.plan(shapes=shapes).total_bytes

    free, total = losses(None)
    with pytest.raises(autobwd.Error, match="the budget of 1000 bytes is exceeded"):
        losses(1000)
    assert losses(total)[0] == free


def test_a_parameter_without_gradient_is_a_warning(model):
    loss = model.loss("mse_loss", output="features")
    with pytest.warns(UserWarning, match="head"):
        loss.train_step("sgd:0.1")


def test_a_plan_has_its_memory_by_part(model):
    plan = model.plan(shapes={"x": (2, 1, 8, 10)}, budget="1MB")
    assert plan.total_bytes == sum(plan.memory.values())
    assert plan.to_svg().startswith("<svg") and "conv2d" in str(plan)
    with pytest.raises(autobwd.Error, match="`x` has shape"):
        model.plan()


def test_results_do_not_depend_on_threads(images):
    one, many = (autobwd.load("images.onnx", threads=threads)(images) for threads in (1, 3))
    np.testing.assert_array_equal(one, many)


def test_threads_of_python_run_one_model(model, images):
    expected, found = model(images), []

    def run():
        found.extend(model(images) for _ in range(20))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    for scores in found:
        np.testing.assert_array_equal(scores, expected)


def test_other_threads_go_on_while_a_model_runs(model):
    large, ticks, is_over = np.ones([64, 1, 256, 256], np.float32), [], threading.Event()

    def tick():
        while not is_over.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    start = time.monotonic()
    while time.monotonic() - start < 0.5:
        model(large)
    is_over.set()
    ticker.join()
    assert len(ticks) > 10


@pytest.mark.parametrize(
    "mistake, reason",
    [
        (lambda model: autobwd.load("missing.onnx"), "cannot read `missing.onnx`"),
        (lambda model: autobwd.load("model.pb"), "no format has this extension"),
        (lambda model: autobwd.load("images.pdmodel", dims={"N": 1}), "are for .onnx files"),
        (lambda model: autobwd.load("images.onnx", weights="missing.safetensors"), "missing.safetensors"),
        (lambda model: model(), "`x` is read, but neither fed nor written before"),
        (lambda model: model.run({"z": np.zeros(1)}), "no variable `z`; did you mean `x`"),
        (lambda model: model(np.zeros(1), np.zeros(1)), "2 inputs are given, but the model has `x`"),
        (lambda model: model.run({"x": np.zeros([1, 1, 8, 10], np.float32)}, outputs=["z"]), "no variable `z`"),
        (lambda model: model.loss("hinge"), "no loss `hinge`: known are `cross_entropy`"),
        (lambda model: model.grad(), "is not a loss: a loss has one element"),
        (lambda model: model.grad("nothing"), "no variable `nothing`"),
        (lambda model: model.loss("cross_entropy").train_step("best:1"), "no optimizer `best`"),
        (lambda model: model.loss("cross_entropy").train_step("sgd:1", freeze=["z*"]), "no parameter matches `z"),
        (lambda model: model.loss("cross_entropy").train_step("sgd:1", freeze=["*"]), "nothing is trained"),
        (lambda model: model.loss("cross_entropy").train_step("sgd:1", budget="1XB"), "no number of bytes"),
        (lambda model: model.loss("cross_entropy")(np.zeros([1, 1, 8, 10], np.float32), [7]), "class index 7"),
        (lambda model: model.explain("w@GRAD"), "no gradient `w@GRAD`"),
        (lambda model: model.save("model.pb"), "no format has this extension"),
        (lambda model: model.save("missing/model.onnx"), "there is no folder `missing`"),
        (lambda model: model.load_state_dict({"z": [1.0]}), "keeps no value `z`"),
        (lambda model: model.load_state_dict({"head.bias": [1.0]}), "`head.bias` is float32"),
    ],
)
def test_a_mistake_is_an_error_that_says_why(model, mistake, reason):
    with pytest.raises(autobwd.Error, match=reason) as raised:
        mistake(model)
    assert isinstance(raised.value, ValueError) and ".rs:" not in str(raised.value)


def test_no_warning_is_raised_where_all_parameters_are_trained(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.loss("cross_entropy").train_step("sgd:0.1")


def test_a_model_is_a_page_in_notebooks(model):
    shown = model._repr_html_()
    assert shown.startswith('<iframe srcdoc="') and "&lt;!doctype" not in shown and "scores" in shown
