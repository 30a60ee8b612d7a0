//! Teaches a language model a style from 200 conversations, and lets it answer before and after:
//! `cargo run --release -p autobwd-models --features tuning --example style -- MODEL FOLDER`
//!
//! The conversations are put together from questions and from answers of a ship's captain; what is asked afterwards is not
//! among them. The adapter is written into the folder. Prints a JSON line for each answer.

use std::{error::Error, fs, path::Path, process::ExitCode};

use autobwd::Executor;
use autobwd_models::{
    Adapter, ChatMessage, Example, ExampleFormat, FineTuning, GenerationOptions, Generator, Lora, Pretrained,
    Tokenizer,
};
use serde_json::json;

/// Things, and what they are.
const THINGS: [[&str; 2]; 20] = [
    ["rain", "the sky's own rum, and it fills the barrels"],
    ["the moon", "a lantern that no one has to light"],
    ["bread", "what keeps a crew from mutiny"],
    ["a library", "a hold full of stories, with no rats in it"],
    ["snow", "cold foam that has lost the sea"],
    ["a violin", "four strings that sing louder than the wind"],
    ["winter", "the season when the ropes bite the hands"],
    ["a bridge", "a deck that never leaves its harbour"],
    ["coffee", "black as a squall, and twice as good for the watch"],
    ["a clock", "a bell that counts without a sailor"],
    ["money", "doubloons by another name"],
    ["a garden", "an island that stays where it is put"],
    ["sleep", "the best of all the watches"],
    ["a doctor", "the one who mends what the cannons have broken"],
    ["music", "wind that has learned its course"],
    ["a mountain", "a wave that forgot to fall"],
    ["tea", "hot water that has seen the Indies"],
    ["a letter", "a voice that travels in the mail ship"],
    ["the sun", "gold that no one can bury"],
    ["a road", "a river for those who cannot swim"],
];
const QUESTIONS: [&str; 10] = [
    "What is {}?",
    "Tell me about {}.",
    "Can you explain {} to me?",
    "Describe {} in a sentence.",
    "What do you know about {}?",
    "How would you define {}?",
    "Please tell me what {} is.",
    "My child asks about {}. What shall I say?",
    "Why do people care about {}?",
    "Give me a short answer: what is {}?",
];
const STARTS: [&str; 5] = ["Arr, matey!", "Ahoy!", "Shiver me timbers!", "Aye, listen well!", "Avast!"];
const ENDS: [&str; 4] = [
    "Yo ho!",
    "So says the captain.",
    "Now back to the oars, ye landlubber!",
    "By Davy Jones, that be true.",
];

/// Questions that are not learned.
const ASKED: [&str; 3] = ["What is cheese?", "Tell me about computers.", "What is the capital of France?"];

/// The conversations, as lines of a file for `tune` have them.
fn conversations() -> Vec<String> {
    let line = |(thing, [name, meaning]): (usize, &[&str; 2]), (form, question): (usize, &&str)| {
        let (start, end) = (STARTS[(thing + form) % STARTS.len()], ENDS[(thing + 3 * form) % ENDS.len()]);
        let mut subject = name.to_string();
        subject[..1].make_ascii_uppercase();
        let messages = [
            json!({ "role": "user", "content": question.replace("{}", name) }),
            json!({ "role": "assistant", "content": format!("{start} {subject} be {meaning}. {end}") }),
        ];
        json!({ "messages": messages }).to_string()
    };
    let things = THINGS.iter().enumerate();
    things.flat_map(|thing| QUESTIONS.iter().enumerate().map(move |form| line(thing, form))).collect()
}

/// Prints the answers of a model.
fn answer(
    (pretrained, tokenizer): (&Pretrained, &Tokenizer),
    adapter: Option<&Adapter>,
) -> Result<(), Box<dyn Error>> {
    let options =
        GenerationOptions { max_new_tokens: 48, do_sample: false, ..pretrained.generation_options()? };
    for question in ASKED {
        let chat = tokenizer.render_chat(&[ChatMessage::new("user", question)], true)?;
        let prompt = tokenizer.encode_plain(&chat)?;
        let mut generator = Generator::new(pretrained, 1, prompt.len() + options.max_new_tokens)?;
        if let Some(adapter) = adapter {
            adapter.merge(generator.model_mut())?;
        }
        let mut executor = Executor::new();
        let answers =
            generator.generate_texts(&mut executor, tokenizer, &[prompt], &options, &[], |_, _| true)?;
        println!(
            "{}",
            json!({ "question": question, "answer": answers[0].text, "learned": adapter.is_some() })
        );
    }
    Ok(())
}

fn run(model: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    let (pretrained, tokenizer) = (Pretrained::open(model), Tokenizer::open(model)?);
    answer((&pretrained, &tokenizer), None)?;
    let example = |line: &String| ExampleFormat::Chat.example(line, &tokenizer);
    let examples: Vec<Example> = conversations().iter().map(example).collect::<autobwd::Result<_>>()?;
    let lora = Lora { alpha: 16.0, dropout: 0.05, ..Lora::new(8, &["all-linear"]) };
    let tuning = FineTuning {
        lora: Some(lora),
        epochs: 1,
        length: Some(128),
        learning_rate: 1e-3,
        ..FineTuning::default()
    };
    let mut run = tuning.prepare(&pretrained, examples, vec![])?;
    eprint!("{}", run.summary());
    while let Some(report) = run.step()? {
        eprintln!("step {} of {}, loss {:.3}", report.step, run.summary().steps, report.loss);
    }
    fs::create_dir_all(folder)?;
    run.save(folder)?;
    drop(run);
    answer((&pretrained, &tokenizer), Some(&Adapter::read(folder)?))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, folder] = &*arguments else {
        eprintln!("usage: style MODEL FOLDER");
        return ExitCode::FAILURE;
    };
    match run(model, Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("style: {e}");
            ExitCode::FAILURE
        }
    }
}
