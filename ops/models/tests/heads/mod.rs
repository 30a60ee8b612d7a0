//! New heads of encoders.

use std::{fs, path::Path};

use autobwd::{
    DType, Result, Tensor,
    tensor::{load_tensors, save_tensors},
};
use autobwd_models::{
    Adapter, Example, ExampleFormat, FineTuning, Lora, Pretrained, Tokenizer, class_names, class_names_of,
};
use autobwd_ops::quantization::Quantization;
use serde_json::{Value, json};
use tempfile::tempdir;

use super::{finish, folder};

const CLASSES: [&str; 3] = ["animals", "places", "colours"];

fn texts(family: &str) -> Result<Vec<Example>> {
    let tokenizer = Tokenizer::open(folder(family))?;
    let format = ExampleFormat::Classes {
        field: "text".into(),
        label: "label".into(),
        names: CLASSES.map(String::from).to_vec(),
    };
    let lines = [("the cat", "animals"), ("on the mat", "places"), ("a dog", "animals"), ("red", "colours")];
    let example =
        |(text, label)| format.example(&json!({"text": text, "label": label}).to_string(), &tokenizer);
    lines.into_iter().map(example).collect()
}

fn quick() -> FineTuning {
    FineTuning { epochs: 12, batch: 4, learning_rate: 3e-3, ..FineTuning::default() }
}

/// The folder of a fixture with another configuration, and tensors under other names.
fn changed(
    family: &str,
    into: &Path,
    configure: impl Fn(&mut Value),
    renamed: impl Fn(&str) -> Option<String>,
) -> Result<()> {
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        fs::copy(folder(family).join(file), into.join(file)).unwrap();
    }
    let mut config: Value =
        serde_json::from_slice(&fs::read(folder(family).join("config.json")).unwrap()).unwrap();
    configure(&mut config);
    fs::write(into.join("config.json"), config.to_string()).unwrap();
    let tensors = load_tensors(folder(family).join("model.safetensors"))?;
    let kept: Vec<(String, Tensor)> =
        tensors.into_iter().filter_map(|(name, value)| Some((renamed(&name)?, value))).collect();
    save_tensors(into.join("model.safetensors"), kept.iter().map(|(name, value)| (name.as_str(), value)))
}

#[test]
fn encoders_learn_classes_with_a_new_head() -> Result<()> {
    for (family, head) in [
        ("bert", "classifier.weight"),
        ("roberta", "classifier.out_proj.weight"),
        ("distilbert", "classifier.weight"),
        ("modernbert", "classifier.weight"),
    ] {
        let pretrained = Pretrained::open(folder(family)).classes(CLASSES);
        let mut run = quick().prepare(&pretrained, texts(family)?, vec![])?;
        let reports = finish(&mut run)?;
        let [first, last] = [0, reports.len() - 1].map(|i| reports[i].loss);
        assert!(last < first / 4.0, "{family}: {first} to {last}");

        let saved = tempdir().unwrap();
        run.save(saved.path())?;
        assert_eq!(class_names(&Pretrained::open(saved.path()))?, CLASSES);
        let again = Pretrained::open(saved.path()).load()?;
        assert_eq!(again.scope.get(head)?, run.model().scope.get(head)?, "{family}");
    }
    Ok(())
}

#[test]
fn adapters_have_the_new_head() -> Result<()> {
    for family in ["bert", "roberta"] {
        let pretrained = Pretrained::open(folder(family)).classes(CLASSES);
        let lora = Some(Lora::new(2, &["query", "value"]));
        let mut run = FineTuning { lora, ..quick() }.prepare(&pretrained, texts(family)?, vec![])?;
        finish(&mut run)?;
        let saved = tempdir().unwrap();
        run.save(saved.path())?;
        // A folder with another head, or without any, changes nothing.
        for other in ["gpt2", "gpt2/missing"] {
            let same = Pretrained::open(folder(family)).head_of_adapter(folder(other))?;
            assert_eq!(class_names(&same).ok(), class_names(&Pretrained::open(folder(family))).ok());
        }
        let with_head = Pretrained::open(folder(family)).head_of_adapter(saved.path())?;
        assert_eq!(class_names(&with_head)?, CLASSES);
        let mut merged = with_head.load()?;
        Adapter::read(saved.path())?.merge(&mut merged)?;
        let mut of_head = merged.scope.iter().filter(|(name, _)| name.contains("classifier")).peekable();
        assert!(of_head.peek().is_some());
        let drawn = pretrained.load()?;
        for (name, value) in of_head {
            assert_eq!(run.model().scope.find(name), Some(value), "{family}: {name}");
            assert_ne!(drawn.scope.find(name), Some(value), "{family}: {name} was not trained");
        }
    }
    Ok(())
}

#[test]
fn new_heads_learn_next_to_quantised_weights() -> Result<()> {
    let pretrained = Pretrained::open(folder("bert")).classes(CLASSES).quantize(Quantization::INT8);
    let lora = Some(Lora::new(2, &["query", "value"]));
    let mut run = FineTuning { lora, ..quick() }.prepare(&pretrained, texts("bert")?, vec![])?;
    let reports = finish(&mut run)?;
    assert!(reports[reports.len() - 1].loss < reports[0].loss);
    assert_eq!(run.model().scope.get("classifier.weight")?.dtype(), DType::F32);
    Ok(())
}

#[test]
fn words_have_classes() -> Result<()> {
    let tokenizer = Tokenizer::open(folder("bert"))?;
    let names = ["O", "THING"].map(String::from);
    let format =
        ExampleFormat::TokenClasses { field: "words".into(), label: "tags".into(), names: names.to_vec() };
    let line = json!({"words": ["the", "cat", "sat", "catmat"], "tags": ["O", "THING", 0, 1]}).to_string();
    let example = format.example(&line, &tokenizer)?;
    // The tokens of the words alone, with others before, between and after them.
    let of_words: Vec<i64> = example.labels.iter().copied().filter(|label| *label >= 0).collect();
    assert_eq!(of_words, [0, 1, 0, 1]);
    assert_eq!((example.labels[0], example.labels.last()), (-100, Some(&-100)));
    assert_eq!(example.tokens, tokenizer.encode("the cat sat catmat")?);

    let pretrained = Pretrained::open(folder("bert")).token_classes(&names);
    let mut run = quick().prepare(&pretrained, vec![example; 4], vec![])?;
    let reports = finish(&mut run)?;
    assert!(reports[reports.len() - 1].loss < reports[0].loss / 2.0);
    assert!(run.model().scope.find("bert.pooler.dense.weight").is_none());
    let unknown = Example::text(vec![5, 6], vec![0, 2]);
    let error = quick().prepare(&pretrained, vec![unknown], vec![]).unwrap_err().to_string();
    assert!(error.contains("the head has 2 classes, and no class 2"), "{error}");

    for (line, expected) in [
        (json!({"words": ["a"], "tags": ["O", "O"]}), "it has 1 words and 2 classes"),
        (json!({"words": "a", "tags": ["O"]}), "its `words` is no list"),
        (json!({"words": ["a"], "tags": ["X"]}), "its `tags` is \"X\", no class; known are O, THING"),
        (json!({"words": [1], "tags": ["O"]}), "its `words` has 1, which is no text"),
    ] {
        assert_eq!(format.example(&line.to_string(), &tokenizer).unwrap_err().message(), expected);
    }
    Ok(())
}

#[test]
fn encoders_without_a_head_get_one() -> Result<()> {
    let bare = tempdir().unwrap();
    let to_encoder = |config: &mut Value| config["architectures"] = json!(["BertModel"]);
    changed("bert", bare.path(), to_encoder, |name| name.strip_prefix("bert.").map(String::from))?;
    let pretrained = Pretrained::open(bare.path());
    let refused = quick().prepare(&pretrained, texts("bert")?, vec![]).unwrap_err();
    assert!(refused.to_string().contains("the model has no head that computes logits"), "{refused}");

    let model = pretrained.clone().classes(CLASSES).load()?;
    let name = "bert.encoder.layer.0.attention.self.query.weight";
    assert_eq!(model.scope.get(name)?, Pretrained::open(folder("bert")).load()?.scope.get(name)?);
    assert_eq!(model.scope.get("classifier.bias")?.slice::<f32>()?.len(), 3);
    let images = Pretrained::open(folder("vit")).classes(CLASSES).load()?;
    assert_eq!(images.scope.get("classifier.weight")?.dims()[0], 3);
    // The same values in every process.
    assert_eq!(
        model.scope.get("classifier.weight")?,
        pretrained.classes(CLASSES).load()?.scope.get("classifier.weight")?
    );
    Ok(())
}

#[test]
fn tensors_of_other_heads_are_listed() -> Result<()> {
    let masked = tempdir().unwrap();
    let to_masked = |config: &mut Value| config["architectures"] = json!(["BertForMaskedLM"]);
    changed("bert", masked.path(), to_masked, |name| Some(name.into()))?;
    let pretrained = Pretrained::open(masked.path());
    let unread = pretrained.unread_tensors()?;
    let names = ["bert.pooler.dense.bias", "bert.pooler.dense.weight"];
    let names = names.into_iter().chain(["cls.seq_relationship.bias", "cls.seq_relationship.weight"]);
    assert_eq!(unread, names.collect::<Vec<_>>());
    let model = pretrained.load()?;
    assert!(unread.iter().all(|name| model.scope.find(name).is_none()));
    assert_eq!(Pretrained::open(folder("bert")).unread_tensors()?, [""; 0]);
    Ok(())
}

#[test]
fn files_may_leave_the_scope_of_an_encoder_out_and_not_the_pooler_of_a_head() -> Result<()> {
    let bare = tempdir().unwrap();
    let to_encoder = |config: &mut Value| config["architectures"] = json!(["ModernBertModel"]);
    changed("modernbert", bare.path(), to_encoder, |name| name.strip_prefix("model.").map(String::from))?;
    assert_eq!(Pretrained::open(bare.path()).load()?.fetches.len(), 1);

    let unpooled = tempdir().unwrap();
    let to_classes = |config: &mut Value| config["architectures"] = json!(["BertForSequenceClassification"]);
    let renamed =
        |name: &str| (!name.contains("pooler") && !name.starts_with("cls.")).then(|| name.to_string());
    changed("bert", unpooled.path(), to_classes, renamed)?;
    let error = Pretrained::open(unpooled.path()).load().unwrap_err().to_string();
    assert!(error.contains("the tensor `bert.pooler.dense.weight` is missing"), "{error}");
    Ok(())
}

#[test]
fn heads_that_do_not_fit_are_refused() {
    let refusal = |family: &str, names: &[&str]| {
        Pretrained::open(folder(family)).classes(names.iter().copied()).load().unwrap_err().to_string()
    };
    assert!(refusal("gpt2", &["a"]).contains("a model of type `gpt2` has no such head for classes"));
    assert!(refusal("bert", &["a", "b", "a"]).contains("two classes have the name `a`"));
    assert!(refusal("bert", &[]).contains("a head for classes needs the name of one"));
    let of_tokens = Pretrained::open(folder("vit")).token_classes(["a"]).load().unwrap_err().to_string();
    assert!(of_tokens.contains("a model of type `vit` has no such head"), "{of_tokens}");
}

#[test]
fn names_of_classes_are_those_of_the_data() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let names = |lines: &str| {
        fs::write(file.path(), lines).unwrap();
        class_names_of(file.path(), "c").map_err(|e| e.message().to_string())
    };
    let texts = |names: &[&str]| Ok(names.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(names("{\"c\": \"b\"}\n\n{\"c\": \"a\"}\n{\"c\": \"b\"}"), texts(&["a", "b"]));
    assert_eq!(names("{\"c\": 2}\n{\"c\": 0}"), texts(&["0", "1", "2"]));
    assert_eq!(names("{\"c\": [\"b\", \"a\"]}"), texts(&["a", "b"]));
    assert!(
        names("{\"c\": 2}\n{\"c\": \"a\"}")
            .unwrap_err()
            .contains("some classes in `c` are texts, others numbers")
    );
    assert!(names("{\"c\": -1}").unwrap_err().contains("its `c` is -1, no class"));
    assert!(names("{\"d\": 1}").unwrap_err().contains("it has no field `c`"));
    assert!(names("{\"c\": 99999999999}").unwrap_err().contains("no class"));
    assert!(names("").unwrap_err().contains("it has no examples"));
}
