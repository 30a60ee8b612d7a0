//! Fuzzing of programs, weights and checkpoints: random changes, and the properties that must still hold.
//!
//! One file for each step: `seeds` has the initial inputs, `mutate` changes them, this one runs them and reports
//! violations. It must not use files and clocks: `fuzz/main.rs` does.

mod folders;
mod mutate;
mod seeds;
mod wire;

use std::collections::HashMap;

use autobwd::{
    Backward, ErrorKind, Executor, Feed, Program, Scope, Tensor, append_backward,
    exec::Checkpoint,
    explain, gradients,
    program::{VarKind, diff},
    verify,
};
use autobwd_models::{Pretrained, Tokenizer};
use autobwd_onnx::LoadOptions;
use autobwd_ops::Model;

pub use folders::{folder, folder_inputs, mutate_folder};
pub use mutate::{Rng, mutate, mutate_bytes, mutate_metadata};
pub use seeds::{
    FuzzSeed, gguf_inputs, mutate_model, mutate_onnx, onnx_inputs, onnx_operators, paddle_inputs, seeds,
};

/// Ends loops early and skips large arenas, since there are many executions.
const LOOP_LIMIT: u64 = 20;
const ARENA_LIMIT: usize = 1 << 20;
/// Number of models whose checkpoints are changed.
const CHECKPOINTS: usize = 16;
/// Maximum number of elements of a generated value.
const ELEMENTS: usize = 1 << 14;

/// The last stage that an input reached.
pub type FuzzOutcome = &'static str;

/// Results of an execution.
#[derive(Default)]
pub struct FuzzFinding {
    /// The last stage that the input reached.
    pub outcome: FuzzOutcome,
    /// Error messages, without names and numbers: an input with a new message is kept.
    pub messages: Vec<String>,
}

impl FuzzFinding {
    /// Records an error.
    ///
    /// # Errors
    /// An error that no input may cause.
    fn note(&mut self, doing: &str, e: &autobwd::Error) -> Result<(), String> {
        let text = e.to_string();
        self.messages.push(format!("{doing}: {}", pattern(e.message())));
        match text.is_empty() || e.kind() == ErrorKind::Internal || text.contains("autobwd bug") {
            true => Err(format!("{doing}: {text:?}")),
            false => Ok(()),
        }
    }

    /// Compares the outcome of a program with the result of `verify`: the same error, or success.
    fn agree<T>(
        &mut self,
        doing: &str,
        verified: &Result<(), autobwd::Error>,
        outcome: Result<T, autobwd::Error>,
    ) -> Result<Option<T>, String> {
        match (verified, outcome) {
            (Err(e), Ok(_)) => Err(format!("{doing} takes what `verify` refuses: {e}")),
            (Err(known), Err(e)) if known.to_string() != e.to_string() => {
                Err(format!("{doing} says {e}, `verify` {known}"))
            }
            (Err(_), Err(_)) => Ok(None),
            (Ok(()), Err(e)) => {
                self.note(doing, &e)?;
                match e.kind() {
                    ErrorKind::Program | ErrorKind::Slot | ErrorKind::UnknownOp => {
                        Err(format!("{doing} refuses what `verify` takes: {e}"))
                    }
                    _ => Ok(None),
                }
            }
            (Ok(()), Ok(value)) => Ok(Some(value)),
        }
    }
}

/// A message without the parts that differ between inputs.
fn pattern(message: &str) -> String {
    let (mut pattern, mut quoted) = (String::new(), false);
    for c in message.chars().take(400) {
        match c {
            '`' => quoted = !quoted,
            _ if quoted => {}
            c if c.is_ascii_digit() => {
                if !pattern.ends_with('#') {
                    pattern.push('#');
                }
            }
            c => pattern.push(c),
        }
    }
    pattern
}

/// Reads a program and makes every request about it.
///
/// # Errors
/// A violated property; panics are left to the caller.
pub fn program(text: &str, values: &HashMap<String, Tensor>, rng: &mut Rng) -> Result<FuzzFinding, String> {
    let mut found = FuzzFinding { outcome: "not loaded", ..FuzzFinding::default() };
    let program = match Program::from_json(text) {
        Ok(program) => program,
        Err(e) => return found.note("from_json", &e).map(|()| found),
    };
    found.outcome = "refused";
    let json = program.to_json();
    let again = Program::from_json(&json).map_err(|e| format!("what was saved does not load: {e}"))?;
    if again.to_json() != json {
        return Err("what was saved loads as something else".into());
    }
    let pictures = program.to_string().len() + program.to_dot().len() + program.to_mermaid().len();
    let same = diff(&program, &again).is_empty();
    if pictures == 0 || (!same && !json.contains("NaN")) {
        return Err(format!("a program is not itself: {}", diff(&program, &again)));
    }
    let verified = verify(&program);
    if let Err(e) = &verified {
        found.note("verify", e)?;
    }

    let names: Vec<&str> = program.root().vars.keys().map(|v| program.name(*v)).collect();
    let gradient = program.root().vars.iter().filter(|(_, desc)| desc.gradient_of.is_some());
    for (var, _) in gradient.take(3) {
        if let Err(e) = explain(&program, program.name(*var)) {
            found.note("explain", &e)?;
        }
    }
    let written: Vec<&str> =
        program.root().ops.iter().flat_map(|op| op.writes()).map(|v| program.name(v)).collect();
    let target = rng.pick(&written).or(rng.pick(&names)).copied().unwrap_or("none");
    let input = rng.pick(&names).copied().unwrap_or("none");
    let mut longer = program.clone();
    let outcome = match rng.below(2) {
        0 => append_backward(&mut longer, target, &Backward::default()).map(|_| "append_backward"),
        _ => gradients(&mut longer, &[target], &[input], &Default::default()).map(|_| "gradients"),
    };
    let differentiated = found.agree("differentiating", &verified, outcome)?;
    if differentiated.is_some() {
        verify(&longer).map_err(|e| format!("the backward part of `{target}` is not valid: {e}"))?;
    }
    let fetches: Vec<&str> = [target, written.last().copied().unwrap_or(target)].into_iter().collect();
    if run(&program, values, &fetches, &verified, &mut found)? {
        found.outcome = "runs";
    }
    if differentiated.is_some() {
        let grads: Vec<&str> = longer
            .root()
            .vars
            .iter()
            .filter(|(_, desc)| desc.gradient_of.is_some())
            .map(|(var, _)| longer.name(*var))
            .collect();
        let fetches: Vec<&str> = grads.last().copied().into_iter().collect();
        if run(&longer, values, &fetches, &Ok(()), &mut found)? {
            found.outcome = "runs with gradients";
        }
    }
    Ok(found)
}

/// Runs a program on these values, and on values with its declared shapes.
fn run(
    program: &Program,
    values: &HashMap<String, Tensor>,
    fetches: &[&str],
    verified: &Result<(), autobwd::Error>,
    found: &mut FuzzFinding,
) -> Result<bool, String> {
    let written: std::collections::HashSet<_> =
        program.root().ops.iter().flat_map(|op| op.writes()).collect();
    let (mut scope, mut feeds) = (Scope::new(), vec![]);
    for (var, desc) in program.root().vars.iter() {
        let name = program.name(*var);
        let feed = !desc.persistable && !written.contains(var) && desc.kind == VarKind::Tensor;
        if !feed && !desc.persistable {
            continue;
        }
        let fits = |t: &&Tensor| t.dtype() == desc.dtype && desc.dims.agrees(&t.meta().dims);
        let made = || {
            let dims: Vec<usize> = desc.dims.iter().map(|d| d.get().unwrap_or(2)).collect();
            let elements = dims.iter().try_fold(1_usize, |n, d| n.checked_mul(*d));
            elements.filter(|n| *n <= ELEMENTS).and_then(|_| Tensor::zeros(desc.dtype, &dims).ok())
        };
        let Some(value) = values.get(name).filter(fits).cloned().or_else(made) else { continue };
        match feed {
            true => feeds.push((name, value)),
            false => scope.set(name, value),
        }
    }
    let metas: Vec<_> = feeds.iter().map(|(name, value)| (*name, value.meta())).collect();
    let feeds: Vec<(&str, &dyn Feed)> =
        feeds.iter().map(|(name, value)| (*name, value as &dyn Feed)).collect();
    let mut executor = Executor::with_threads(1).loop_limit(LOOP_LIMIT);
    let planned = executor.plan(program, &scope, &metas, fetches);
    let Some(plan) = found.agree("planning", verified, planned)? else { return Ok(false) };
    if plan.to_string().is_empty() || plan.arena_bytes() > ARENA_LIMIT {
        return Ok(false);
    }
    let ran = executor.run(program, &mut scope, &feeds, fetches);
    Ok(found.agree("running", verified, ran)?.is_some())
}

/// Loads a model of PaddlePaddle from an input of [`paddle_inputs`], saves it, loads it again, and makes every request
/// about its program.
///
/// # Errors
/// A violated property; panics are left to the caller.
pub fn paddle(input: &[u8], rng: &mut Rng) -> Result<FuzzFinding, String> {
    let mut found = FuzzFinding { outcome: "not loaded", ..FuzzFinding::default() };
    let [file, parameters, infos] = seeds::parts(input);
    let infos = Some(&infos[..]).filter(|infos| !infos.is_empty());
    let model = match autobwd_paddle::from_bytes(&file, Some(&parameters), infos) {
        Ok(model) => model,
        Err(e) => return found.note("from_bytes", &e).map(|()| found),
    };
    match autobwd_paddle::to_bytes(&model) {
        Err(e) => found.note("to_bytes", &e)?,
        Ok(saved) => {
            let again = autobwd_paddle::from_bytes(&saved[0], Some(&saved[1]), Some(&saved[2]));
            let again = again.map_err(|e| format!("what was saved does not load: {e}"))?;
            // Attributes that are at their default may be absent the first time.
            if autobwd_paddle::to_bytes(&again).ok() != Some(saved) {
                return Err(format!("what was saved is {}", diff(&model.program, &again.program)));
            }
        }
    }
    model_requests(model, found, rng)
}

/// Loads a model of ONNX and makes every request about its program.
///
/// # Errors
/// A violated property; panics are left to the caller.
pub fn onnx(input: &[u8], rng: &mut Rng) -> Result<FuzzFinding, String> {
    let mut found = FuzzFinding { outcome: "not loaded", ..FuzzFinding::default() };
    let mut options = LoadOptions { float64: rng.below(8) == 0, ..LoadOptions::default() };
    let mut loaded = autobwd_onnx::from_bytes(input, &options);
    if let Err(e) = &loaded {
        found.note("from_bytes", e)?;
        // Values of inputs that decide about shapes.
        let signature = autobwd_onnx::signature(input).unwrap_or_default();
        let needed = signature.inputs.iter().filter(|_| e.message().contains("give the values"));
        for name in needed {
            let ints = (0..rng.below(4)).map(|_| rng.below(6) as i64 - 1).collect::<Vec<_>>();
            let value = Tensor::from_vec([ints.len()], ints).map_err(|e| e.to_string())?;
            options.values.insert(name.clone(), value);
        }
        if !options.values.is_empty() {
            loaded = autobwd_onnx::from_bytes(input, &options);
        }
    }
    match loaded {
        Ok(model) => model_requests(model, found, rng),
        Err(e) => found.note("from_bytes", &e).map(|()| found),
    }
}

/// Loads a model from a file of GGUF, encodes a text with its tokenizer, and makes every request about its program.
///
/// # Errors
/// A violated property; panics are left to the caller.
pub fn gguf(path: &std::path::Path, rng: &mut Rng) -> Result<FuzzFinding, String> {
    let mut found = FuzzFinding { outcome: "not loaded", ..FuzzFinding::default() };
    let pretrained = Pretrained::open(path);
    if let Err(e) = pretrained.generation_options() {
        found.note("generation_options", &e)?;
    }
    let tokens = Tokenizer::open(path).and_then(|tokenizer| tokenizer.encode("Hello  café, 123!\n"));
    if let Err(e) = tokens {
        found.note("tokenizer", &e)?;
    }
    match pretrained.load() {
        Ok(model) => model_requests(model, found, rng),
        Err(e) => found.note("load", &e).map(|()| found),
    }
}

/// Makes every request about a loaded model.
fn model_requests(mut model: Model, mut found: FuzzFinding, rng: &mut Rng) -> Result<FuzzFinding, String> {
    verify(&model.program).map_err(|e| format!("a loaded program is not valid: {e}"))?;
    let values = model.scope.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    let json = model.program.to_json();
    match model.train(&[]) {
        Err(e) => found.note("train", &e)?,
        Ok(_) => verify(&model.program).map_err(|e| format!("the program for training is not valid: {e}"))?,
    }
    let fetches: Vec<&str> = model.fetches.iter().map(String::as_str).collect();
    match Model::for_inference(&model.program, &model.scope, &fetches) {
        Err(e) => found.note("for_inference", &e)?,
        Ok(tuned) => verify(&tuned.program).map_err(|e| format!("the program for test is not valid: {e}"))?,
    }
    let loaded = program(&json, &values, rng)?;
    found.messages.extend(loaded.messages);
    Ok(FuzzFinding { outcome: loaded.outcome, ..found })
}

/// The models that [`checkpoint`] loads: seeds with values of all variables that their programs keep.
pub fn checkpoint_seeds(seeds: &[FuzzSeed]) -> Vec<FuzzSeed> {
    let has_values = |seed: &&FuzzSeed| {
        let mut kept = seed.program.root().vars.iter().filter(|(_, desc)| desc.persistable).peekable();
        kept.peek().is_some() && kept.all(|(var, _)| seed.values.contains_key(seed.program.name(*var)))
    };
    seeds.iter().filter(has_values).take(CHECKPOINTS).cloned().collect()
}

/// Saves the values that the program of a model keeps as a checkpoint.
///
/// # Errors
/// Those of [`Checkpoint::save`].
pub fn save_checkpoint(path: &std::path::Path, model: &FuzzSeed) -> autobwd::Result<()> {
    let mut scope = Scope::new();
    for (var, _) in model.program.root().vars.iter().filter(|(_, desc)| desc.persistable) {
        let name = model.program.name(*var);
        if let Some(value) = model.values.get(name) {
            scope.set(name, value.clone());
        }
    }
    let checkpoint = Checkpoint::new(7).with_note("loader", r#"{"seed":7,"epoch":1,"position":3}"#);
    checkpoint.with_note("", "\u{1b}\"ä").save(path, &model.program, &scope)
}

/// Loads a checkpoint from a file, saves it as `saved`, loads that, and runs the program with its values.
///
/// # Errors
/// A violated property; panics are left to the caller.
pub fn checkpoint(
    path: &std::path::Path,
    saved: &std::path::Path,
    model: &FuzzSeed,
) -> Result<FuzzFinding, String> {
    let mut found = FuzzFinding { outcome: "not loaded", ..FuzzFinding::default() };
    let program = &model.program;
    let (mut scope, mut again) = (Scope::new(), Scope::new());
    let loaded = match Checkpoint::load(path, program, &mut scope) {
        Ok(loaded) => loaded,
        Err(_) if scope.iter().next().is_some() => {
            return Err("a checkpoint that is refused changes the scope".into());
        }
        Err(e) => return found.note("load", &e).map(|()| found),
    };
    found.outcome = "loaded";
    loaded.save(saved, program, &scope).map_err(|e| format!("what was loaded is not saved: {e}"))?;
    let reloaded = Checkpoint::load(saved, program, &mut again);
    let reloaded = reloaded.map_err(|e| format!("what was saved does not load: {e}"))?;
    let bytes = |scope: &Scope| {
        let mut values: Vec<_> =
            scope.iter().map(|(name, x)| (name.to_string(), x.meta(), x.bytes().to_vec())).collect();
        values.sort_by(|a, b| a.0.cmp(&b.0));
        values
    };
    if reloaded != loaded || bytes(&scope) != bytes(&again) {
        return Err("what was saved loads as something else".into());
    }
    runs_with(&scope, model, found)
}

/// Loads weights from a file and runs a program with them.
///
/// # Errors
/// A violated property; panics are left to the caller.
pub fn weights(path: &std::path::Path, model: &FuzzSeed) -> Result<FuzzFinding, String> {
    let mut found = FuzzFinding { outcome: "not loaded", ..FuzzFinding::default() };
    let mut scope = Scope::new();
    if let Err(e) = scope.load(path) {
        return found.note("load", &e).map(|()| found);
    }
    found.outcome = "loaded";
    runs_with(&scope, model, found)
}

/// Runs the program of a model with these values.
fn runs_with(scope: &Scope, model: &FuzzSeed, mut found: FuzzFinding) -> Result<FuzzFinding, String> {
    let values = scope.iter().map(|(name, value)| (name.to_string(), value.clone()));
    let program = &model.program;
    let fed = model.values.iter().filter(|(name, _)| {
        program.find(name).is_some_and(|v| program.root().vars.get(&v).is_some_and(|desc| !desc.persistable))
    });
    let values: HashMap<String, Tensor> =
        values.chain(fed.map(|(name, value)| (name.clone(), value.clone()))).collect();
    let fetches: Vec<&str> = program.root().vars.keys().map(|v| program.name(*v)).take(1).collect();
    if run(program, &values, &fetches, &Ok(()), &mut found)? {
        found.outcome = "runs";
    }
    Ok(found)
}
