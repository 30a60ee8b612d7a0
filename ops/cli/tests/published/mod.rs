//! `generate`, `tune` and `convert` on tiny published models.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::Duration,
};

use hound::{SampleFormat, WavSpec, WavWriter};
use image::{Rgb, RgbImage};
use serde_json::Value;
use tempfile::tempdir;

use super::{AUTOBWD, published, stderr};

fn autobwd(arguments: &[&str]) -> Output {
    Command::new(AUTOBWD).args(arguments).output().unwrap()
}

/// The line of JSON that a command prints.
#[track_caller]
fn json(arguments: &[&str]) -> Value {
    let output = autobwd(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn texts_do_not_depend_on_other_prompts_or_threads() {
    let model = published("qwen2");
    let generate = |arguments: &[&str]| {
        json(&[&["generate", &model, "--max-tokens", "12", "--json"], arguments].concat())["texts"].clone()
    };
    let both = generate(&["--prompt", "the cat", "--prompt", "on", "--seed", "3", "--threads", "2"]);
    for (i, prompt) in ["the cat", "on"].into_iter().enumerate() {
        assert_eq!(both[i], generate(&["--prompt", prompt, "--seed", "3", "--threads", "1"])[0]);
    }
    let greedy = generate(&["--prompt", "the cat", "--greedy"]);
    assert_ne!(greedy[0], both[0]);
    let quantized = ["--prompt", "the cat", "--greedy", "--quantize", "int8", "--quantize-head", "int8"];
    assert_eq!(generate(&quantized)[0]["prompt_tokens"], 3);
    let odd = autobwd(&["generate", &model, "--prompt", "a", "--quantize-head", "int4:12"]);
    assert!(stderr(&odd).contains("the group size must be a multiple of 8, not 12"), "{}", stderr(&odd));
    assert_eq!(greedy[0]["prompt_tokens"], 3);
    // The same text, as it is made.
    let streamed = autobwd(&["generate", &model, "--max-tokens", "12", "--prompt", "the cat", "--greedy"]);
    let text = greedy[0]["text"].as_str().unwrap();
    assert_eq!(String::from_utf8(streamed.stdout).unwrap(), format!("{text}\n"));

    let chat =
        generate(&["--chat", "--system", "be short", "--prompt", "the cat", "--stop", "e", "--greedy"]);
    assert!(!chat[0]["text"].as_str().unwrap().contains('e'));
    assert!(chat[0]["prompt_tokens"].as_u64().unwrap() > 2);
}

/// Conversations in which a cat sits on something.
fn write_data(path: &Path, count: usize) {
    let places = ["mat", "dog", "hat"];
    let line = |i: usize| {
        let place = places[i % places.len()];
        format!(
            "{{\"messages\": [{{\"role\": \"user\", \"content\": \"cat {i}?\"}}, \
             {{\"role\": \"assistant\", \"content\": \"on the {place}\"}}]}}\n"
        )
    };
    fs::write(path, (0..count).map(line).collect::<String>()).unwrap();
}

#[test]
fn a_killed_run_goes_on_with_the_same_bits() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, data, evaluation) = (published("qwen2"), path("data.jsonl"), path("evaluation.jsonl"));
    write_data(Path::new(&data), 60);
    write_data(Path::new(&evaluation), 5);
    let arguments = |output: &'static str| {
        let output = path(output);
        ["tune", &model, &data, "--lora", "r=4,alpha=8,targets=all-linear", "--evaluation", &evaluation]
            .into_iter()
            .chain(["--batch", "2", "--micro-batches", "2", "--epochs", "6", "--rate", "0.01"])
            .chain(["--checkpoint-every", "1", "-o", &output])
            .map(String::from)
            .collect::<Vec<String>>()
    };
    let whole = json(&arguments("whole").iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(whole["schema"], "autobwd.tune/1");
    let losses = &whole["losses"];
    assert!(losses[1].as_f64() < losses[0].as_f64(), "{whole}");

    let killed = arguments("killed");
    let mut child = Command::new(AUTOBWD).args(&killed).stderr(Stdio::null()).spawn().unwrap();
    let checkpoint = folder.path().join("killed/checkpoint.safetensors");
    while !checkpoint.exists() && child.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(checkpoint.exists(), "the run was complete before it was killed");
    let output = Command::new(AUTOBWD).args(&killed).output().unwrap();
    assert!(stderr(&output).contains("go on with --resume"), "{}", stderr(&output));
    let output = Command::new(AUTOBWD).args(&killed).arg("--resume").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let read = |run: &str, file: &str| fs::read(folder.path().join(run).join(file)).unwrap();
    for file in ["adapter_model.safetensors", "adapter_config.json"] {
        assert_eq!(read("whole", file), read("killed", file), "{file}");
    }
    let steps = |run: &str| String::from_utf8(read(run, "log.jsonl")).unwrap().lines().count();
    assert_eq!(steps("killed"), steps("whole"));
    assert!(!checkpoint.exists());

    // The adapter answers, and becomes a part of the weights.
    let adapted = path("killed");
    let answer =
        ["generate", &model, "--adapter", &adapted, "--chat", "--prompt", "cat 1?", "--greedy", "--json"];
    let answer = json(&answer)["texts"][0]["text"].clone();
    let merged = format!("{}/", path("merged"));
    let output = autobwd(&["convert", &model, &merged, "--adapter", &adapted]);
    assert!(output.status.success(), "{}", stderr(&output));
    let again = ["generate", &merged, "--chat", "--prompt", "cat 1?", "--greedy", "--json"];
    assert_eq!(json(&again)["texts"][0]["text"], answer);
}

#[test]
fn encoders_learn_classes_of_texts_and_of_words() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (texts, words) = (path("texts.jsonl"), path("words.jsonl"));
    let lines =
        "{\"text\": \"the cat\", \"kind\": \"animal\"}\n{\"text\": \"on the mat\", \"kind\": \"place\"}\n";
    fs::write(&texts, lines.repeat(4)).unwrap();
    let lines = "{\"text\": [\"the\", \"cat\", \"sat\"], \"tags\": [\"O\", \"NAME\", \"O\"]}\n";
    fs::write(&words, lines.repeat(8)).unwrap();
    let tune = |model: &str, arguments: &[&str]| {
        let options = ["--new-head", "--rate", "0.003", "--epochs", "10", "--threads", "1"];
        json(&[&["tune", model], arguments, &options].concat())
    };
    let (classifier, tagger) = (path("classifier"), path("tagger"));
    tune(&published("roberta"), &[&texts, "--labels", "kind", "-o", &classifier]);
    tune(&published("distilbert"), &[&words, "--tags", "tags", "-o", &tagger]);

    // An adapter knows the head that it was trained with, and a folder with both is a model.
    let (adapter, merged) = (path("adapter"), path("merged/"));
    let lora = ["--labels", "kind", "--lora", "r=4,targets=query+value", "-o", &adapter];
    tune(&published("bert"), &[&[&*texts], &lora[..]].concat());
    let ask = |model: &[&str]| json(&[&["classify"], model, &["--text", "the cat", "--json"]].concat());
    let found = ask(&[&published("bert"), "--adapter", &adapter]);
    assert_eq!((&found["classes"][0], found["classes"].as_array().unwrap().len()), (&"animal".into(), 2));
    let converted = autobwd(&["convert", &published("bert"), &merged, "--adapter", &adapter]);
    assert!(converted.status.success(), "{}", stderr(&converted));
    assert_eq!(ask(&[&merged]), found);

    let output = autobwd(&["classify", &classifier, "--text", "the cat", "--text", "on the mat"]);
    let lines = String::from_utf8(output.stdout).unwrap();
    let fields: Vec<Vec<&str>> = lines.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((fields[0][0], &fields[0][2..]), ("animal", &["the", "cat"][..]), "{lines}");
    assert_eq!((fields[1][0], &fields[1][2..]), ("place", &["on", "the", "mat"][..]), "{lines}");
    let found = json(&["classify", &tagger, "--text", "the  cat sat", "--json"]);
    let classes: Vec<&str> =
        found["texts"].as_array().unwrap().iter().map(|word| word["class"].as_str().unwrap()).collect();
    assert_eq!(classes, ["O", "NAME", "O"], "{found}");

    // What does not fit is said.
    for (arguments, part) in [
        (["tune", &published("roberta"), &texts, "--new-head", "-o", &tagger], "give --labels or --tags"),
        (["classify", &published("gpt2"), "--text", "a", "--threads", "1"], "has no names of classes"),
    ] {
        let output = autobwd(&arguments);
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

#[test]
fn images_sounds_and_pairs_of_texts_are_learned() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let save = |name: &str, lines: String| fs::write(folder.path().join(name), lines).unwrap();
    let learn = ["--rate", "0.01", "--epochs", "40", "--batch", "2", "--threads", "1", "-o"];
    let tune = |model: &str, arguments: &[&str], output: &str| {
        json(&[&["tune", model], arguments, &learn, &[output]].concat())
    };

    for (name, colour) in [("red.png", [250, 10, 20]), ("blue.png", [10, 20, 250])] {
        RgbImage::from_pixel(32, 32, Rgb(colour)).save(path(name)).unwrap();
    }
    let line = |name: &str| format!("{{\"file\": \"{name}.png\", \"colour\": \"{name}\"}}\n");
    save("images.jsonl", line("red") + &line("blue"));
    let arguments = ["--image", "file", "--labels", "colour", "--new-head"];
    tune(&published("vit"), &[&[&*path("images.jsonl")], &arguments[..]].concat(), &path("colours"));
    let classify =
        ["classify", &path("colours"), "--image", &path("red.png"), "--image", &path("blue.png"), "--json"];
    let found = json(&classify);
    assert_eq!([&found["texts"][0]["class"], &found["texts"][1]["class"]], ["red", "blue"], "{found}");

    let spec =
        WavSpec { channels: 1, sample_rate: 16_000, bits_per_sample: 16, sample_format: SampleFormat::Int };
    for (name, period) in [("low.wav", 60), ("high.wav", 8)] {
        let mut writer = WavWriter::create(path(name), spec).unwrap();
        (0..9000_i16).for_each(|n| writer.write_sample((n % period - period / 2) * 200).unwrap());
        writer.finalize().unwrap();
    }
    let line = |name: &str, text: &str| format!("{{\"file\": \"{name}.wav\", \"text\": \"{text}\"}}\n");
    save("sounds.jsonl", line("low", "the cat") + &line("high", "a dog"));
    let spoken = ["--audio", "file", "--language", "en"];
    tune(&published("whisper"), &[&[&*path("sounds.jsonl")], &spoken[..]].concat(), &path("ears"));
    let generate = ["generate", &path("ears"), "--language", "en", "--audio", &path("low.wav")];
    let found =
        json(&[&generate[..], &["--audio", &path("high.wav"), "--max-tokens", "20", "--json"]].concat());
    assert_eq!([&found["texts"][0]["text"], &found["texts"][1]["text"]], ["the cat", "a dog"], "{found}");
    let streamed = autobwd(&[&generate[..], &["--max-tokens", "20"]].concat());
    assert_eq!(
        String::from_utf8(streamed.stdout).unwrap(),
        "the cat\n",
        "{}",
        String::from_utf8_lossy(&streamed.stderr)
    );

    let line = |prompt: &str, completion: &str| {
        format!("{{\"prompt\": \"{prompt}\", \"completion\": \"{completion}\"}}\n")
    };
    save("pairs.jsonl", line("the cat", "sat on") + &line("the mat", "the dog"));
    tune(&published("t5"), &[&path("pairs.jsonl"), "--lora", "r=16,targets=all-linear"], &path("pairs"));
    let generate = ["generate", &published("t5"), "--adapter", &path("pairs"), "--prompt", "the cat"];
    let found = json(&[&generate[..], &["--max-tokens", "20", "--json"]].concat());
    assert_eq!(found["texts"][0]["text"], "sat on", "{found}");

    for (arguments, part) in [
        (vec!["classify", &*path("colours"), "--image", &*path("images.jsonl")], "cannot decode the image"),
        (vec!["classify", &*published("bert"), "--image", &*path("red.png")], "reads texts, not images"),
        (vec!["classify", &*path("colours"), "--text", "red"], "reads images (--image), not texts"),
        (vec!["generate", &*published("gpt2"), "--audio", &*path("low.wav")], "reads texts, not sounds"),
        (vec!["generate", &*path("ears"), "--prompt", "a"], "reads sounds (--audio), not texts"),
        (vec!["generate", &*published("gpt2"), "--prompt", "a", "--language", "en"], "cannot be used with"),
        (
            vec!["generate", &*path("ears"), "--audio", &*path("low.wav"), "--language", "xx"],
            "no token `<|xx|>`",
        ),
        (
            vec!["tune", &*published("vit"), &*path("images.jsonl"), "-o", &*path("no")],
            "reads images (--image)",
        ),
        (
            vec!["tune", &*published("whisper"), &*path("sounds.jsonl"), "-o", &*path("no")],
            "reads sounds (--audio)",
        ),
    ] {
        let output = autobwd(&arguments);
        assert!(
            !output.status.success() && stderr(&output).contains(part),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn mistakes_of_fine_tuning_are_explained() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (model, data, output) = (published("gpt2"), path("data.jsonl"), path("output"));
    fs::write(&data, "{\"text\": \"the cat sat\"}\n{\"text\": \"\"}\n{\"body\": \"a\"}\n").unwrap();
    let good = path("good.jsonl");
    fs::write(&good, "{\"text\": \"the cat sat on the mat\"}\n".repeat(9)).unwrap();
    for (arguments, status, part) in [
        (vec![&*data], 2, "line 3: it has no field `text`"),
        (vec![&*good, "--chat"], 2, "it has no list `messages`"),
        (vec![&*good, "--resume"], 1, "has no run to go on with"),
        (vec![&*good, "--memory", "10KB"], 1, "the process may take 10000 bytes, and takes "),
        (vec![&*good, "--lora", "rank=8"], 2, "known are `r`, `alpha`"),
        (vec![&*good, "--lora", "r=8,layers=5-1"], 2, "`layers=5-1` has no numbers of layers"),
        (vec![&*good, "--lora", "pattern=c_(attn"], 1, "`c_(attn` is no regular expression"),
        (
            vec![&*good, "--lora", "dropout=1"],
            1,
            "the dropout of adapters is 1, not a number from 0 and below 1",
        ),
        (vec![&*good, "--lora", "r=8,targets=q_proj"], 1, "no product has weights of a module `q_proj`"),
        (vec![&*good, "--quantize", "nf4"], 1, "quantised weights are not trained"),
        (vec![&*good, "--quantize-head", "int8"], 1, "quantised weights are not trained"),
        (vec![&*good, "--length", "4"], 1, "are more than the 4 of a row"),
        (vec!["missing.jsonl"], 2, "missing.jsonl"),
    ] {
        let result = autobwd(&[&["tune", &model], &arguments[..], &["-o", &output]].concat());
        assert_eq!(result.status.code(), Some(status), "{arguments:?}: {}", stderr(&result));
        assert!(stderr(&result).contains(part), "{arguments:?}: {}", stderr(&result));
    }
    // What is read is not replaced.
    let result = autobwd(&["tune", &model, &good, "-o", &model]);
    assert_eq!(result.status.code(), Some(2));
    assert!(stderr(&result).contains("is read and would be replaced"), "{}", stderr(&result));
    let result = autobwd(&["convert", &model, &format!("{model}/")]);
    assert_eq!(result.status.code(), Some(2));
    assert!(stderr(&result).contains("is read and would be replaced"), "{}", stderr(&result));
    // A dry run says what would be done, and leaves nothing.
    let dry = path("dry");
    let result = autobwd(&["tune", &model, &good, "--dry-run", "-o", &dry]);
    assert!(result.status.success(), "{}", stderr(&result));
    for part in ["trained", "examples    9", "steps       9", "MB in all"] {
        assert!(stderr(&result).contains(part), "{part}: {}", stderr(&result));
    }
    assert!(!Path::new(&dry).exists());
}

#[test]
fn work_on_open_shapes_is_unknown() {
    let shown = autobwd(&["show", &published("gpt2")]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("work         0 FLOPs") && !shown.contains("18,446,744"), "{shown}");
    let known = autobwd(&["show", &published("gpt2"), "--shape", "input_ids=1,8"]);
    let known = String::from_utf8(known.stdout).unwrap();
    assert!(!known.contains("0 FLOPs") && !known.contains("18,446,744"), "{known}");
}
