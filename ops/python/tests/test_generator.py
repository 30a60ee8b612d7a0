"""Generation of texts."""

import pytest

import autobwd


@pytest.fixture(scope="session")
def generator(request):
    from conftest import OPS

    return autobwd.Generator(OPS / "models/tests/fixtures/qwen2", max_length=64)


def test_a_text_depends_on_prompt_options_and_seed_alone(generator):
    drawn = {generator.generate("the cat", max_tokens=8, seed=1) for _ in range(2)}
    greedy = {generator.generate("the cat", max_tokens=8, greedy=True) for _ in range(2)}
    assert len(drawn) == len(greedy) == 1


def test_parts_are_given_as_they_are_made(generator):
    parts = []
    text = generator.generate("the cat", max_tokens=8, greedy=True, on_text=parts.append)
    assert "".join(parts) == text and len(parts) > 1


def test_a_callback_ends_the_text(generator):
    parts = []

    def on_text(part):
        parts.append(part)
        return False

    text = generator.generate("the cat", max_tokens=8, greedy=True, on_text=on_text)
    assert len(parts) == 1 and text.startswith(parts[0])


def test_an_exception_of_a_callback_is_raised(generator):
    def on_text(part):
        raise KeyError(part)

    with pytest.raises(KeyError):
        generator.generate("the cat", max_tokens=8, greedy=True, on_text=on_text)


def test_a_generator_is_at_one_text_at_a_time(generator):
    with pytest.raises(autobwd.Error, match="use one generator a thread"):
        generator.generate("the cat", max_tokens=8, on_text=lambda _: generator.generate("the dog"))


@pytest.mark.parametrize(
    "mistake, reason",
    [
        (lambda generator: autobwd.Generator("missing"), "`missing` has no `tokenizer.json`"),
        (lambda generator: autobwd.Generator("qwen2", dtype="int8"), "the dtype is `int8`: known are"),
        (lambda generator: autobwd.Generator("qwen2", quantize="int9"), "int9"),
        (lambda generator: generator.generate("the cat", max_tokens=8, temperature=-1.0), "`temperature` is -1"),
        (lambda generator: generator.generate("the cat", max_tokens=1000), "64"),
    ],
)
def test_a_mistake_is_an_error_that_says_why(generator, mistake, reason):
    with pytest.raises(autobwd.Error, match=reason):
        mistake(generator)
